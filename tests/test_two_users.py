"""Ada holds a lease, Ben attacks it: two real users over a directory as ``setup`` makes it."""

import os
import sys

import pytest
from conftest import poll

import jupyter_gpu
from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.place import Place, furnish, safety
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import NoDeviceAvailable
from jupyter_gpu.core.layout import LEASE_IDS, QUEUE, device_range, lease_byte, ticket_byte

pytestmark = [
    pytest.mark.usefixtures("needs_root", "eight_gpus"),
    pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's"),
]

ADA, BEN = 12001, 12002

# Evaluates what it is told, line by line, as its user, and answers with what came of it.
PERSON = """
import fcntl, json, os, stat, struct, sys, time
import jupyter_gpu
from pathlib import Path
from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.layout import *
from jupyter_gpu.core.leases import Owner, Record

home = Path(os.environ["JUPYTER_GPU_LEASE_DIR"])
records = home / "records"
place = Place(home, "system")
kept = {}

def acquire(gpus=1, **options):
    lease = jupyter_gpu.acquire(gpus, **options)
    kept[lease.id] = lease
    return lease.id

def visible(lease_id):
    return kept[lease_id].environment["CUDA_VISIBLE_DEVICES"]

def forget(lease_id):
    del kept[lease_id]

def seen():
    with LeaseStore(place) as store:
        found = store.holdings([d.uuid for d in jupyter_gpu.inventory().devices])
    leases = [(l.user, l.state, list(l.record.indices), l.note) for l in found.leases]
    return leases, len(found.unclaimed)

def lock(*ranges, shared=False):
    fd = kept.setdefault("fd", os.open(home / "lock", os.O_RDWR))
    return [locks.try_lock(fd, Range(*r), shared=shared) for r in ranges]

def unlock(start, length):
    locks.unlock(os.open(home / "lock", os.O_RDWR), Range(start, length))

def write(name, text):
    (records / name).write_text(text)

def forge(lease_id, uuids, **says):
    text = {"schema": 1, "id": lease_id, "kind": "kernel", "user": "ada", "uuids": uuids, **says}
    write(f"{lease_id}.json", json.dumps(text))

print(os.getuid())
for line in sys.stdin:
    try:
        answer = eval(line)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(repr(answer))
"""


class Person:
    """A user with a process of their own."""

    def __init__(self, started):
        self.program, self.uid = started, int(started.read())

    def says(self, expression):
        return eval(self.program.tell(expression))


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    found = Place(lease_directory, "system")
    assert safety(found) is None
    return found


@pytest.fixture
def ada(place, program):
    return Person(program(PERSON, uid=ADA))


@pytest.fixture
def ben(place, program):
    return Person(program(PERSON, uid=BEN))


@pytest.fixture
def lease(ada):
    """The id of a lease of Ada's on GPU 0 and 1."""
    found = ada.says("acquire(2)")
    assert ada.says(f"visible({found!r})") == "0,1"
    return found


@pytest.fixture
def uuids():
    return [device.uuid for device in jupyter_gpu.inventory().devices]


HERS = (str(ADA), "active", [0, 1], None)


def assert_ada_holds(place, lease, uuids):
    """What root sees: the lease as it was, the devices locked, nobody else's."""
    with LeaseStore(place) as store:
        found = store.holdings(uuids)
        assert [
            (one.user, one.state, list(one.record.indices), one.note) for one in found.leases
        ] == [HERS]
        assert found.leases[0].record.id == lease
        assert found.unclaimed == ()
        assert not any(store.is_free((), uuid) for uuid in uuids[:2])


def test_the_other_user_sees_who_holds_what(ben, lease, ada):
    assert ben.says("seen()") == ([HERS], 0)
    assert ada.says("seen()") == ([HERS], 0)


def test_the_other_user_gets_other_devices_and_a_refusal_that_names_the_holder(ben, lease):
    assert ben.says("visible(acquire(3))") == "2,3,4"
    refusal = ben.says("acquire(6)")
    assert refusal.startswith("NoDeviceAvailable: No 6 GPUs are free")
    assert f"  0, 1  {ADA}  " in refusal


ATTACKS = {
    "unlink": "os.unlink(records / '{id}.json')",
    "rename away": "os.rename(records / '{id}.json', records / 'gone')",
    "rename over": "(write('mine', '{{}}'), os.rename(records / 'mine', records / '{id}.json'))",
    "overwrite": "write('{id}.json', '{{}}')",
    "append": "open(records / '{id}.json', 'a')",
    "truncate": "os.truncate(records / '{id}.json', 0)",
    "touch": "os.utime(records / '{id}.json', (5, 5))",
    "chmod of the record": "os.chmod(records / '{id}.json', 0o666)",
    "chown": "os.chown(records / '{id}.json', 12002, 12002)",
    "rename the records": "os.rename(records, home / 'other')",
    "remove the records": "os.rmdir(records)",
    "chmod of the records": "os.chmod(records, 0o777)",
    "delete the lock": "os.unlink(home / 'lock')",
    "replace the lock": "os.rename(records / 'x', home / 'lock')",
    "chmod of the lock": "os.chmod(home / 'lock', 0o600)",
    "another layout": "(home / 'layout').write_text('2')",
    "delete the layout": "os.unlink(home / 'layout')",
    "rename the directory": "os.rename(home, home.with_name('other'))",
    "a file beside the lock": "(home / 'more').touch()",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_files_that_are_not_bens_cannot_be_touched(ben, lease, place, uuids, attack):
    answer = ben.says(attack.format(id=lease))
    assert answer.startswith(("PermissionError", "FileNotFoundError")), answer
    assert_ada_holds(place, lease, uuids)


HARMLESS = {
    "truncate the lock": "os.truncate(home / 'lock', 0)",
    "write into the lock": "(home / 'lock').write_text('nonsense')",
    "unlock": "unlock(0, 0)",
    "flock": "fcntl.flock(os.open(home / 'lock', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)",
}


@pytest.mark.parametrize("attack", HARMLESS.values(), ids=HARMLESS)
def test_what_ben_may_do_to_the_lock_file_changes_nothing(ben, lease, place, uuids, attack):
    ben.says(attack)
    assert_ada_holds(place, lease, uuids)
    assert ben.says("visible(acquire())") == "2"


def test_a_link_to_a_record_is_no_record(ben, lease, place, uuids):
    target = "1" * 15
    ben.says(f"os.link(records / '{lease}.json', records / '{target}.json')")
    ben.says(f"os.symlink(records / '{lease}.json', records / '{target[::-1]}x.json')")
    ben.says(f"lock(({lease_byte(target).start}, 1))")
    assert_ada_holds(place, lease, uuids)


def test_devices_that_ada_holds_cannot_be_locked(ben, lease, place, uuids):
    where = [device_range(None, uuid) for uuid in uuids[:2]] + [lease_byte(lease)]
    ranges = ", ".join(f"({r.start}, {r.length})" for r in where)
    assert ben.says(f"lock({ranges})") == [False] * 3
    assert ben.says(f"lock({ranges}, shared=True)") == [False] * 3
    assert_ada_holds(place, lease, uuids)


def test_a_record_that_says_ada_is_bens(ben, place, uuids):
    mine = ben.says("acquire(1)")
    ben.says(f"forge({mine!r}, {uuids[:1]!r}, indices=[0])")
    with LeaseStore(place) as store:
        assert [one.user for one in store.holdings(uuids).leases] == [str(BEN)]


@pytest.mark.parametrize(
    ("claims", "doubtful"),
    [(slice(0, 3), {str(ADA), str(BEN)}), (slice(0, 8), {str(BEN)})],
    ids=["what is locked", "what is free too"],
)
def test_a_claim_to_adas_devices_is_shown_as_a_contradiction_and_takes_nothing(
    ben, ada, lease, uuids, claims, doubtful
):
    mine = ben.says("acquire(1)")
    ben.says(f"forge({mine!r}, {uuids[claims]!r}, indices=[0])")
    for person in (ada, ben):
        leases, _ = person.says("seen()")
        assert {user for user, _, _, note in leases if note is not None} == doubtful
    assert ada.says("visible(acquire(5))") == "3,4,5,6,7"


def test_a_record_under_the_id_of_adas_lease_cannot_be_put_there(ben, lease, place, uuids):
    answer = ben.says(f"forge({lease!r}, {uuids!r})")
    assert answer.startswith("PermissionError")
    assert_ada_holds(place, lease, uuids)


def test_a_record_put_there_before_adas_refuses_service_and_appears_as_bens(ada, ben, place, uuids):
    ada.says("kept.update(store=LeaseStore(place, write=True))")
    lease = ada.says("(kept.update(claim=kept['store'].new_claim()), kept['claim'].id)[1]")
    ada.says(f"kept['claim'].take(({uuids[0]!r},))")
    ben.says(f"forge({lease!r}, {uuids[:1]!r}, indices=[0])")
    record = f"Record({lease!r}, Owner('api'), '', uuids=({uuids[0]!r},))"
    answer = ada.says(f"kept['store'].publish(kept['claim'], {record})")
    assert answer.startswith("StoreError: GPUs cannot be leased: a record cannot be written")
    with LeaseStore(place) as store:
        assert [one.user for one in store.holdings(uuids).leases] == [str(BEN)]


class TestImpersonation:
    """Ada's lease has ended; Ben locks the same bytes to appear as Ada."""

    @pytest.fixture
    def dead(self, ada, lease, place):
        ada.program.kill()
        assert (records_path(place) / f"{lease}.json").exists()
        return lease

    @pytest.fixture
    def ranges(self, dead, uuids):
        where = [lease_byte(dead), *(device_range(None, uuid) for uuid in uuids[:2])]
        return ", ".join(f"({r.start}, {r.length})" for r in where)

    def test_root_sees_whose_process_it_really_is(self, ben, dead, ranges, place, uuids):
        assert ben.says(f"lock({ranges})") == [True] * 3
        with LeaseStore(place) as store:
            (found,) = store.holdings(uuids).leases
        assert (found.user, found.state, found.pids) == (
            str(BEN),
            "draining",
            (ben.program.pid,),
        )
        assert found.note.startswith(f"recorded for {ADA}, but kept by process {ben.program.pid}")
        assert found.note.endswith(f" of {BEN}")

    @pytest.mark.parametrize("uid", [ADA, 12003])
    def test_nobody_is_told_that_it_is_ada(self, ben, dead, ranges, program, uid):
        ben.says(f"lock({ranges})")
        somebody = Person(program(PERSON, uid=uid))
        leases, unclaimed = somebody.says("seen()")
        note = f"recorded for {ADA}, but no process of {ADA} can be seen to keep it"
        assert leases == [(None, "draining", [0, 1], note)]
        assert unclaimed == 0

    def test_ben_does_not_fool_himself(self, ben, dead, ranges):
        ben.says(f"lock({ranges})")
        ((user, *_),), _ = ben.says("seen()")
        assert user == str(BEN)

    def test_a_dead_record_is_swept_by_its_owner_only(self, ben, dead, place, program):
        assert ben.says("LeaseStore(place, write=True).sweep()") is None
        assert (records_path(place) / f"{dead}.json").exists()
        Person(program(PERSON, uid=ADA)).says("LeaseStore(place, write=True).sweep()")
        assert not (records_path(place) / f"{dead}.json").exists()


def test_a_lease_that_ada_forgets_leaves_nothing_to_impersonate(ada, lease, place):
    ada.says(f"forget({lease!r})")
    assert os.listdir(records_path(place)) == []


def test_a_lease_of_another_user_cannot_be_parted(ben, lease, monkeypatch):
    ben.says(f"os.environ.update(JUPYTER_GPU_LEASE={lease!r})")
    assert ben.says("acquire()").startswith("ImpossibleRequest")


def test_a_lease_of_roots_is_parted_by_what_root_has_started_only(ben, place, program):
    root = Person(program(PERSON, uid=0))
    ben.says(f"os.environ.update(JUPYTER_GPU_LEASE={root.says('acquire()')!r})")
    assert ben.says("acquire()").startswith("ImpossibleRequest")
    # These tests are root's, and Ben's process descends from theirs.
    with jupyter_gpu.acquire(1) as lease:
        ben.says(f"os.environ.update(JUPYTER_GPU_LEASE={lease.id!r})")
        part = ben.says("acquire()")
        assert ben.says(f"visible({part!r})") == str(lease.devices[0].index)


def test_a_lease_of_a_server_that_died_before_its_kernel_began_is_not_adas(
    ada, ben, program, place, uuids
):
    ada.says("kept.update(store=LeaseStore(place, write=True))")
    lease = ada.says("(kept.update(claim=kept['store'].new_claim()), kept['claim'].id)[1]")
    ada.says(f"kept['claim'].take(({uuids[0]!r},))")
    keeper = "processes.reference(os.getpid())"
    record = f"Record({lease!r}, Owner('kernel', keeper={keeper}), '', uuids=({uuids[0]!r},))"
    assert ada.says(f"kept['store'].publish(kept['claim'], {record})") is None
    ada.program.kill()
    where = [lease_byte(lease), device_range(None, uuids[0])]
    ben.says(f"lock({', '.join(f'({r.start}, {r.length})' for r in where)})")
    ((user, state, *_),), _ = Person(program(PERSON, uid=12003)).says("seen()")
    assert (user, state) == (None, "draining")


def test_a_waiter_that_was_killed_does_not_wait_on_in_somebody_elses_hands(ada, ben, place, uuids):
    with jupyter_gpu.acquire("all"):
        ada.program.send("acquire(wait='60s')")
        with LeaseStore(place) as store:
            (waiter,) = poll(lambda: store.holdings().waiters)
            ada.program.kill()
            record = waiter.record
            where = [lease_byte(record.id), ticket_byte(record.ticket)]
            poll(lambda: not store.holdings().waiters)
            ben.says(f"lock({', '.join(f'({r.start}, {r.length})' for r in where)})")
            assert [(w.user, w.stalled) for w in store.holdings().waiters] == [(None, True)]


def test_the_descriptor_of_a_lease_cannot_be_had_from_outside(ben, ada, lease):
    fd = ada.says(f"kept[{lease!r}].claim.fd")
    answer = ben.says(f"os.open('/proc/{ada.program.pid}/fd/{fd}', os.O_RDWR)")
    assert answer.startswith("PermissionError")


class TestRefusingService:
    """Ben can lock what is free; then root can name his process, and nobody is deceived."""

    def name(self, place, where):
        return processes.holders_of(os.stat(place.lock_path), where)

    def test_devices(self, ben, ada, place, uuids):
        where = [device_range(None, uuid) for uuid in uuids]
        ben.says(f"lock({', '.join(f'({r.start}, {r.length})' for r in where)})")
        refusal = ada.says("acquire()")
        assert refusal.startswith("NoDeviceAvailable: No GPU is free")
        assert "leased by a process that has left no record" in refusal
        assert self.name(place, where[5]) == (ben.program.pid,)
        assert ada.says("seen()") == ([], 8)
        ben.program.kill()
        assert len(ada.says("visible(acquire(8))").split(",")) == 8

    def test_lease_ids(self, ben, ada, place):
        ben.says(f"lock(({LEASE_IDS.start}, {LEASE_IDS.length}))")
        assert "somebody has locked the lease ids" in ada.says("acquire()")
        assert self.name(place, lease_byte("7" * 15)) == (ben.program.pid,)

    def test_the_queue(self, ben, ada, place):
        with jupyter_gpu.acquire(8):
            ben.says(f"lock(({QUEUE.start}, {QUEUE.length}))")
            assert "somebody has locked the queue" in ada.says("acquire(wait=30)")
            assert self.name(place, QUEUE) == (ben.program.pid,)

    def test_holding_everything_by_leases_names_ben_to_everybody(self, ben, ada):
        ben.says("acquire(8)")
        assert f"  {BEN}  " in ada.says("acquire()")
        with pytest.raises(NoDeviceAvailable, match=f"  {BEN}  "):
            jupyter_gpu.acquire()

    def test_a_user_may_not_look_into_the_processes_of_another(self, ben, ada, place, uuids):
        where = device_range(None, uuids[0])
        ben.says(f"lock(({where.start}, {where.length}))")
        looked = ada.says(
            "__import__('jupyter_gpu.adapters.processes', fromlist=['x'])"
            f".holders_of(os.stat(home / 'lock'), Range({where.start}, {where.length}))"
        )
        assert looked == ()
