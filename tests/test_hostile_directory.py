"""Whatever stands in the lease directory: no crash, no grant without a lock, always a sentence."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

import jupyter_gpu
from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.place import Place, furnish
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import GPUError, NoDeviceAvailable, StoreError
from jupyter_gpu.core.layout import (
    LEASE_IDS,
    QUEUE,
    Range,
    device_range,
    lease_byte,
    nested_byte,
    new_lease_id,
)

pytestmark = [
    pytest.mark.usefixtures("eight_gpus"),
    pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's"),
]

STRANGER = 65534
DEAD = "d" * 15


@pytest.fixture
def place(lease_directory):
    """A lease directory as setup makes it."""
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


@pytest.fixture
def stranger(place):
    """A function that locks ranges of the lock file as somebody who leaves no record."""
    fd = os.open(place.lock_path, os.O_RDWR | os.O_CLOEXEC)
    yield lambda *ranges: [locks.try_lock(fd, where) for where in ranges]
    os.close(fd)


def uuids():
    return [device.uuid for device in jupyter_gpu.inventory().devices]


def holdings(place):
    with LeaseStore(place) as store:
        return store.holdings(uuids())


def replace(path, make):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


def huge(path):
    path.touch()
    os.truncate(path, 100 * 2**20)


def device_node(path):
    try:
        os.mknod(path, 0o020666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root can make device nodes")


NOT_FILES = {
    "a symbolic link": lambda path: path.symlink_to("/etc/passwd"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a device": device_node,
}
NOT_DIRECTORIES = {
    "a symbolic link": lambda path: path.symlink_to("/tmp"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
    "a file": lambda path: path.touch(),
    "a device": device_node,
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", ["lock", "layout"])
@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
def test_what_is_no_file_is_refused_by_name_and_by_readers_too(place, name, make):
    replace(place.directory / name, make)
    with pytest.raises(StoreError, match=f"GPUs cannot be leased: .*/{name} is not a plain file"):
        jupyter_gpu.acquire()
    with pytest.raises(StoreError, match="is not a plain file"):
        holdings(place)


@pytest.mark.parametrize("make", NOT_DIRECTORIES.values(), ids=NOT_DIRECTORIES)
def test_without_a_directory_for_records_nothing_is_leased_and_readers_go_on(place, make):
    replace(place.directory / "records", make)
    with pytest.raises(StoreError, match=r"a record cannot be written to .*/records"):
        jupyter_gpu.acquire()
    assert holdings(place).leases == ()
    with LeaseStore(place) as store:
        assert all(store.is_free((), uuid) for uuid in uuids())


@pytest.mark.parametrize("make", NOT_DIRECTORIES.values(), ids=NOT_DIRECTORIES)
def test_a_lease_survives_the_loss_of_the_records_and_can_be_released(place, make):
    lease = jupyter_gpu.acquire(2)
    replace(place.directory / "records", make)
    assert holdings(place).unclaimed == lease.record.uuids
    with LeaseStore(place) as store:
        assert not store.is_free((), lease.record.uuids[0])
    lease.release()
    assert holdings(place).unclaimed == ()


LIVING_RECORDS = {
    **NOT_FILES,
    "100 MB": huge,
    "nothing in it": lambda path: path.touch(),
    "bad JSON": lambda path: path.write_text('{"schema": 1,'),
    "deep JSON": lambda path: path.write_text('{"a":' * 10_000),
    "deep lists": lambda path: path.write_text("[" * 60_000),
    "no text": lambda path: path.write_bytes(bytes(range(256))),
    "not an object": lambda path: path.write_text("[1, 2]"),
    "another schema": lambda path: path.write_text('{"schema": 2}'),
    "another lease's": lambda path: path.write_text(record_text(DEAD)),
    "an endless number": lambda path: path.write_text('{"schema": ' + "9" * 50_000 + "}"),
    "closed to all": lambda path: path.touch(0o000),
}


def record_text(lease_id, **says):
    return json.dumps({"schema": 1, "id": lease_id, "kind": "api", "since": "", **says})


@pytest.mark.parametrize("make", LIVING_RECORDS.values(), ids=LIVING_RECORDS)
def test_whatever_stands_in_the_place_of_a_living_record_frees_and_takes_nothing(
    place, stranger, make
):
    lease_id, (first, *others) = new_lease_id(), uuids()
    assert stranger(lease_byte(lease_id), device_range(None, first)) == [True, True]
    make(place.directory / "records" / f"{lease_id}.json")
    found = holdings(place)
    assert (found.leases, found.unclaimed) == ((), (first,))
    with jupyter_gpu.acquire(7) as lease:
        assert list(lease.record.uuids) == others
        with pytest.raises(NoDeviceAvailable, match="0  leased by a process that has left no rec"):
            jupyter_gpu.acquire()


LIES = {
    "a ticket beyond the file": {"ticket": 10**30},
    "a ticket before the queue": {"ticket": -5},
    "a ticket and devices": {"ticket": 3, "uuids": ["GPU-x"]},
    "no device": {"uuids": []},
    "devices that do not exist": {"uuids": ["", "GPU-x", "\ud800", "a" * 5000]},
    "very many devices": {"uuids": ["GPU-x"] * 9000},
    "a request without end": {"uuids": ["GPU-x"], "request": {"min_free_memory": 10**400}},
    "colours": {"uuids": ["GPU-\x1b[31m"], "notebook": "\x1b[2J", "request": {"model": "\x07"}},
    "ancestors": {"uuids": ["GPU-x"], "ancestors": [DEAD, "../lock"]},
    "processes": {"uuids": ["GPU-x"], "processes": [{"pid": 1, "start": 10**300}] * 900},
    "a keeper": {"uuids": ["GPU-x"], "keeper": {"pid": 2**80}},
    "a time": {"uuids": ["GPU-x"], "since": "9999-99-99T99:99"},
    "numbers for indices": {"uuids": ["GPU-x"], "indices": [10**25, -1]},
}


@pytest.mark.parametrize("says", LIES.values(), ids=LIES)
def test_a_living_record_may_say_what_it_likes(place, stranger, says):
    lease_id = new_lease_id()
    stranger(lease_byte(lease_id))
    text = record_text(lease_id, **says)
    (place.directory / "records" / f"{lease_id}.json").write_text(text)
    for lease in holdings(place).leases:
        shown = json.dumps(lease.as_json(), ensure_ascii=False)
        assert shown.encode()
        assert shown.isprintable()
    with jupyter_gpu.acquire("all"), pytest.raises(NoDeviceAvailable) as caught:
        jupyter_gpu.acquire(wait=0)
    assert all(line.isprintable() for line in str(caught.value).splitlines())


def test_a_waiter_that_claims_everything_only_keeps_what_it_could_use(place, stranger):
    lease_id = new_lease_id()
    stranger(lease_byte(lease_id), Range(QUEUE.start, 1))
    text = record_text(
        lease_id, ticket=0, could_use=uuids(), request={"gpus": 3, "model": "no such model"}
    )
    (place.directory / "records" / f"{lease_id}.json").write_text(text)
    jupyter_gpu.acquire("all").release()


def test_a_waiter_that_asks_for_more_than_there_is_is_passed_when_it_stops_looking(place, stranger):
    lease_id = new_lease_id()
    stranger(lease_byte(lease_id), Range(QUEUE.start, 1))
    path = place.directory / "records" / "waiting-0.json"
    path.write_text(record_text(lease_id, ticket=0, could_use=uuids(), request={"gpus": 10**8}))
    with pytest.raises(NoDeviceAvailable, match="who waits for 100000000 GPUs"):
        jupyter_gpu.acquire()
    os.utime(path, (5, 5))
    jupyter_gpu.acquire("all").release()


@pytest.mark.parametrize(
    "ranges",
    [
        [LEASE_IDS],
        [Range(0, (1 << 63) - 1)],
        [Range(LEASE_IDS.start, (1 << 62) - 1)],
    ],
)
def test_where_somebody_has_locked_every_lease_id_nothing_is_granted(place, stranger, ranges):
    stranger(*ranges)
    began = time.monotonic()
    with pytest.raises(GPUError, match="somebody has locked the lease ids"):
        jupyter_gpu.acquire()
    assert holdings(place).leases == ()
    assert time.monotonic() - began < 2


def test_nested_bytes_that_somebody_has_locked_make_devices_unavailable(place, stranger):
    stranger(*(nested_byte(None, uuid) for uuid in uuids()[:7]))
    with jupyter_gpu.acquire() as lease:
        assert lease.devices[0].index == 7
        with pytest.raises(NoDeviceAvailable):
            jupyter_gpu.acquire()


@pytest.mark.parametrize("layout", ["2\n", "", "1.0", "\x00" * 64, "a" * 10_000])
def test_a_layout_of_another_release_is_left_alone(place, layout):
    (place.directory / "layout").write_text(layout)
    with pytest.raises(StoreError, match="this release knows layout 1") as caught:
        jupyter_gpu.acquire()
    assert len(str(caught.value)) < 400
    assert (place.directory / "layout").read_text() == layout


def test_a_network_file_system_is_refused(place):
    with pytest.raises(StoreError, match=r"network file system \(nfs4\)"):
        LeaseStore(place, write=True, filesystem=lambda _: "nfs4")


def test_ten_thousand_dead_records_cost_nothing_and_are_swept(place):
    records = place.directory / "records"
    text = record_text(DEAD, uuids=uuids(), processes=[{"pid": 1}])
    for number in range(10_000):
        (records / f"{number:015x}.json").write_text(text)
    jupyter_gpu.acquire().release()  # imports, and the directory's first listing
    began = time.perf_counter()
    assert holdings(place).leases == ()
    looked = time.perf_counter()
    lease = jupyter_gpu.acquire(8)
    took = time.perf_counter() - looked
    lease.release()
    assert looked - began < 0.1
    assert took < 0.5
    with LeaseStore(place, write=True) as store:
        began = time.perf_counter()
        store.sweep()
        assert time.perf_counter() - began < 0.5
    assert len(os.listdir(records)) <= 10_000 - 64


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore

mounted = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mounted], check=True)
os.environ["JUPYTER_GPU_LEASE_DIR"] = str(mounted / "leases")

def fill():
    with open(mounted / "filling", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as full:
            assert full.errno == 28

def refused():
    try:
        jupyter_gpu.acquire()
    except jupyter_gpu.GPUError as error:
        print(error)
    else:
        print("granted")

def looks():
    with LeaseStore(Place(mounted / "leases", "given")) as store:
        print(len(store.holdings().leases), "leases seen")
"""
FULL = """
fill()
refused()
print(sorted(path.name for path in mounted.iterdir()))
(mounted / "filling").unlink()
lease = jupyter_gpu.acquire(8)
fill()
lease.release()
fill()
refused()
looks()
print(sorted(path.name for path in (mounted / "leases" / "records").iterdir()))
(mounted / "filling").unlink()
jupyter_gpu.acquire(8).release()
"""
READ_ONLY = """
jupyter_gpu.acquire(8).release()
subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
refused()
looks()
os.environ["JUPYTER_GPU_LEASE_DIR"] = str(mounted / "others")
refused()
"""


@pytest.fixture
def in_a_mount(tmp_path):
    """Run code on a small file system of its own, that nobody else sees; returns its lines."""
    probe = [shutil.which("unshare") or "false", "-m", "true"]
    if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs a mount namespace of its own")

    def run(code):
        done = subprocess.run(
            ["unshare", "-m", sys.executable, "-c", MOUNTED + code, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return run


def test_on_a_full_disk_nothing_is_granted_and_what_is_held_can_be_released(in_a_mount):
    assert [line.rpartition("/leases")[2] for line in in_a_mount(FULL)] == [
        " cannot be made: No space left on device.",
        "['filling']",
        "/records: No space left on device.",
        "0 leases seen",
        "[]",
    ]


def test_on_a_read_only_disk_nothing_is_granted_and_readers_go_on(in_a_mount):
    first, seen, other = in_a_mount(READ_ONLY)
    assert first.endswith("/leases/lock cannot be opened: Read-only file system.")
    assert seen == "0 leases seen"
    assert other.endswith("/others cannot be made: Read-only file system.")


class TestPermissions:
    """Root passes every check, so another user asks."""

    IMPORTS = """
import sys, jupyter_gpu
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
"""
    ASK = """
for question in sys.stdin:
    try:
        if question.strip() == "acquire":
            with jupyter_gpu.acquire() as lease:
                print("granted", lease.environment["CUDA_VISIBLE_DEVICES"])
        else:
            with LeaseStore(find_place(os.environ, simulated=True)) as store:
                print("seen", len(store.holdings().leases))
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""

    @pytest.fixture
    def user(self, needs_root, program):
        return program(self.IMPORTS + self.ASK, uid=STRANGER)

    @pytest.mark.parametrize(
        ("name", "mode", "acquire", "look"),
        [
            (".", 0o755, "granted 0", "seen 0"),
            (".", 0o700, "leases cannot be opened: Permission denied", None),
            (".", 0o744, "leases/lock cannot be opened: Permission denied", None),
            ("lock", 0o600, "leases/lock cannot be opened: Permission denied", None),
            ("lock", 0o644, "leases/lock cannot be opened: Permission denied", "seen 0"),
            ("layout", 0o600, "leases/layout cannot be opened: Permission denied", None),
            ("records", 0o755, "leases/records: Permission denied", "seen 0"),
            ("records", 0o700, "leases/records: it is missing or is not a directory", "seen 0"),
        ],
    )
    def test_wrong_modes_are_a_sentence(self, place, user, name, mode, acquire, look):
        (place.directory / name).chmod(mode)
        assert acquire in user.tell("acquire")
        looked = user.tell("look")
        assert looked == look if look else looked.endswith(acquire + ".")

    def test_a_place_that_cannot_be_made_is_a_sentence(self, lease_directory, user):
        assert "leases cannot be made: Permission denied" in user.tell("acquire")
        assert user.tell("look") == "seen 0"

    def test_a_place_below_what_is_closed_is_a_sentence(self, place, user):
        place.directory.parent.chmod(0o700)
        assert user.tell("acquire").startswith("StoreError GPUs cannot be leased: ")
        assert user.tell("look").startswith("StoreError GPUs cannot be leased: ")

    def test_names_that_another_user_squats_take_nothing_from_anybody(
        self, needs_root, place, program
    ):
        squat = f"""
import os, sys
os.chdir(sys.argv[1])
open("recent-{STRANGER}.json", "w").write('{{"a.ipynb": ["g9"]}}')
os.mkdir("0123456789abcde.json"), os.mkdir(".0123456789abcde.json.01234567")
print("squatted")
"""
        remember = """
with LeaseStore(find_place(os.environ, simulated=True), write=True) as store:
    store.remember_devices("a.ipynb", ("g1",))
    print(store.recent_devices("a.ipynb"))
    store.sweep()
    with jupyter_gpu.acquire("all") as lease:
        print(len(lease.devices))
"""
        squatter = program(squat, uid=12345, arguments=[place.directory / "records"])
        assert squatter.read() == "squatted"
        victim = program(self.IMPORTS + remember, uid=STRANGER)
        assert (victim.read(), victim.read()) == ("()", "8")

    def test_a_place_that_another_user_owns_grants_locks_all_the_same(self, place, user):
        for path in (place.directory, *place.directory.iterdir()):
            os.chown(path, STRANGER, STRANGER)
        with jupyter_gpu.acquire(8):
            assert user.tell("acquire").startswith("NoDeviceAvailable")
        assert user.tell("acquire") == "granted 0"
