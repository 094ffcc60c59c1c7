"""A lease in the hands of its holder, and who keeps it alive: with real processes."""

import dataclasses
import gc
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.errors import NoDeviceAvailable, StoreError
from jupyter_gpu.lease import Grant, HeldLease, notice_of

pytestmark = pytest.mark.usefixtures("eight_gpus")

HOLD = """
import sys, jupyter_gpu
lease = jupyter_gpu.acquire(int(sys.argv[1]), wait=float(sys.argv[2]))
print(lease.environment["CUDA_VISIBLE_DEVICES"])
for line in sys.stdin:
    if line.strip() == "release":
        lease.release()
        print("released")
"""
SLEEP = "import sys; print('ready'); sys.stdin.read()"


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def holder(program):
    """Start a program that holds so many devices; returns it and what it got."""

    def start(count=1, wait=0.0, **options):
        started = program(options.pop("code", HOLD), arguments=[count, wait], **options)
        return started, started.read()

    return start


def free_devices():
    """How many devices one could have now."""
    count = 8
    while count:
        try:
            jupyter_gpu.acquire(count).release()
        except NoDeviceAvailable:
            count -= 1
        else:
            break
    return count


def leases(place):
    with LeaseStore(place) as store:
        return store.holdings().leases


def test_a_lease_tells_its_devices_and_the_variables_to_set():
    with jupyter_gpu.acquire(2) as lease:
        assert [device.index for device in lease.devices] == [0, 1]
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert lease.environment["JUPYTER_GPU_LEASE"] == lease.id
        assert int(lease.environment["JUPYTER_GPU_LEASE_FD"]) in lease.pass_fds
        assert lease.exclusive
        assert lease.record.uuids == tuple(device.uuid for device in lease.devices)
        assert lease.limits == ()
        assert 0 <= lease.waited_seconds < 5


def test_a_lease_shows_its_devices_and_whether_it_is_held():
    lease = jupyter_gpu.acquire(2, devices=[0, 2])
    assert repr(lease) == "<HeldLease physical 0, 2 (leased)>"
    lease.release()
    assert repr(lease) == "<HeldLease physical 0, 2 (released)>"
    assert repr(jupyter_gpu.acquire(0)) == "<HeldLease no device>"
    assert repr(HeldLease(Grant(lease.devices, {}))) == "<HeldLease physical 0, 2 (not exclusive)>"


def test_the_environment_is_a_copy():
    with jupyter_gpu.acquire() as lease:
        lease.environment["CUDA_VISIBLE_DEVICES"] = "spoilt"
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_this_process_is_not_touched():
    before = dict(os.environ)
    with jupyter_gpu.acquire():
        assert dict(os.environ) == before


def test_a_released_lease_is_free_and_says_so(place):
    lease = jupyter_gpu.acquire("all")
    lease.release()
    lease.release()
    assert lease.released
    assert lease.pass_fds == ()
    assert "JUPYTER_GPU_LEASE" not in lease.environment
    assert lease.kept_by_others() == ()
    assert free_devices() == 8
    assert leases(place) == ()


def test_an_error_inside_the_with_gives_the_devices_back():
    with pytest.raises(ZeroDivisionError), jupyter_gpu.acquire("all"):
        1 / 0  # noqa: B018 - the error
    assert free_devices() == 8


def test_a_forgotten_lease_is_free_and_leaves_no_record(place):
    lease = jupyter_gpu.acquire("all")
    del lease
    gc.collect()
    assert os.listdir(records_path(place)) == []
    assert free_devices() == 8


def test_a_lease_that_its_program_does_not_release_ends_with_it(holder, place):
    one, _ = holder(8)
    assert one.end() == 0
    assert free_devices() == 8


def test_a_lease_on_nothing_is_nothing():
    with jupyter_gpu.acquire(0) as lease:
        assert (lease.devices, lease.id, lease.claim, lease.record) == ((), None, None, None)
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == "-1"
        assert not lease.exclusive
        assert lease.released
        assert lease.pass_fds == ()
        lease.describe(lambda owner: owner)


def test_the_record_follows_what_is_known_of_the_owner(place):
    with jupyter_gpu.acquire() as lease:
        lease.describe(lambda owner: dataclasses.replace(owner, notebook="b.ipynb"))
        assert leases(place)[0].record.owner.notebook == "b.ipynb"
        assert lease.record.owner.notebook == "b.ipynb"


def test_a_record_that_cannot_be_written_does_not_end_the_lease(place):
    with jupyter_gpu.acquire(8) as lease:
        shutil.rmtree(records_path(place))
        records_path(place).touch()
        with pytest.raises(StoreError):
            lease.describe(lambda owner: dataclasses.replace(owner, notebook="b.ipynb"))
        assert not lease.released
        with LeaseStore(place) as store:
            assert not store.is_free((), lease.record.uuids[0])


def test_a_lease_can_be_released_when_its_directory_is_gone(lease_directory):
    lease = jupyter_gpu.acquire()
    shutil.rmtree(lease_directory)
    lease_directory.write_text("in the way")
    lease.release()
    assert lease.released
    lease_directory.unlink()


def test_describing_a_lease_that_has_ended_does_nothing(place):
    lease = jupyter_gpu.acquire()
    lease.release()
    lease.describe(lambda owner: dataclasses.replace(owner, notebook="b.ipynb"))
    assert leases(place) == ()


def test_a_grant_without_a_lock_is_not_exclusive():
    lease = HeldLease(Grant((), {"CUDA_VISIBLE_DEVICES": "0"}))
    assert not lease.exclusive
    assert lease.released
    lease.release()


def test_programs_get_different_devices(holder):
    assert {holder(2)[1] for _ in range(4)} == {"0,1", "2,3", "4,5", "6,7"}
    assert free_devices() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_holder_that_is_killed_is_free_at_once(holder, place, how):
    one, _ = holder(8)
    assert free_devices() == 0
    one.signal(how)
    one.process.wait(timeout=10)
    assert free_devices() == 8
    assert leases(place) == ()


def test_a_holder_that_is_stopped_keeps_its_devices_and_stops_nobody(holder):
    one, got = holder(2)
    one.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert free_devices() == 6
    _, others_got = holder(3)
    assert time.monotonic() - began < 5
    assert got == "0,1"
    assert others_got == "2,3,4"
    one.signal(signal.SIGCONT)
    assert one.tell("release") == "released"


def test_a_program_that_is_started_does_not_inherit_the_lease(program):
    with jupyter_gpu.acquire(8):
        child = program(SLEEP)
        child.read()
    assert free_devices() == 8


def test_a_program_that_is_given_the_descriptor_keeps_the_lease(program, place):
    with jupyter_gpu.acquire(8) as lease:
        child = program(SLEEP, pass_fds=lease.pass_fds)
        child.read()
        assert [process.pid for process in lease.kept_by_others()] == [child.pid]
    assert free_devices() == 0
    (left,) = leases(place)
    assert left.pids == (child.pid,)
    child.kill()
    assert free_devices() == 8


FORK = """
import os, signal, sys, jupyter_gpu
lease = jupyter_gpu.acquire(2)
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "release":
        lease.release()
    while True:
        signal.pause()
print(pid)
for line in sys.stdin:
    lease.release()
    print("released")
"""


def test_a_forked_worker_outlives_its_holder_and_keeps_the_devices(program, place, eventually):
    parent = program(FORK, arguments=["keep"])
    worker = int(parent.read())
    os.kill(parent.pid, signal.SIGKILL)
    parent.process.wait(timeout=10)
    assert free_devices() == 6
    (lease,) = leases(place)
    assert (lease.state, lease.pids) == ("draining", (worker,))
    assert f"kept by process {worker} ({sys.executable}" in lease.note
    with pytest.raises(NoDeviceAvailable) as refused:
        jupyter_gpu.acquire(8)
    # The words wrap where the path of Python makes them too long.
    assert f"draining (kept by process {worker} " in " ".join(str(refused.value).split())
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: free_devices() == 8)
    assert leases(place) == ()


def test_a_worker_keeps_the_devices_when_its_parent_releases_them(program, place, eventually):
    parent = program(FORK, arguments=["keep"])
    worker = int(parent.read())
    assert parent.tell("") == "released"
    assert free_devices() == 6
    (lease,) = leases(place)
    assert (lease.state, lease.pids) == ("draining", (worker,))
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: free_devices() == 8)


def test_a_worker_that_releases_its_copy_takes_nothing_from_its_parent(program, place, eventually):
    parent = program(FORK, arguments=["release"])
    worker = int(parent.read())
    eventually(lambda: [p.pid for p in _keepers(place)] == [parent.pid])
    (lease,) = leases(place)
    assert (lease.state, lease.pids, lease.note) == ("active", (parent.pid,), None)
    assert parent.tell("") == "released"
    assert free_devices() == 8
    os.kill(worker, signal.SIGKILL)


def _keepers(place):
    with LeaseStore(place) as store:
        return [p for lease in store.holdings().leases for p in store.kept_by(lease.record.id)]


MULTIPROCESSING = """
import multiprocessing, os, sys, time, jupyter_gpu

def work(connection):
    connection.send(os.getpid())
    time.sleep(3600)

if __name__ == "__main__":
    lease = jupyter_gpu.acquire(8)
    context = multiprocessing.get_context(sys.argv[1])
    here, there = context.Pipe()
    worker = context.Process(target=work, args=(there,))
    worker.start()
    print(here.recv())
    sys.stdin.read()
"""


@pytest.mark.parametrize(("method", "kept"), [("fork", True), ("spawn", False)])
def test_a_forked_worker_keeps_the_lease_and_a_spawned_one_does_not(
    tmp_path, program, eventually, method, kept
):
    path = tmp_path / "train.py"
    path.write_text(MULTIPROCESSING)
    parent = program(path, arguments=[method])
    worker = int(parent.read())
    parent.kill()
    assert free_devices() == (0 if kept else 8)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: free_devices() == 8)


class TestNested:
    """Leases under a lease: a notebook run by papermill in a leased notebook, say."""

    @pytest.fixture
    def below(self, program):
        """Start a program under a lease, which inherits it or not, and takes a part of it."""

        def start(environment, count=1, *, inherits=(), code=HOLD):
            child = program(code, arguments=[count, 0], environ=environment, pass_fds=inherits)
            return child, child.read()

        return start

    def test_a_program_under_a_lease_parts_its_devices(self, below):
        with jupyter_gpu.acquire(3) as lease:
            one, first = below(lease.environment)
            two, second = below(lease.environment, 2)
            assert (first, second) == ("0", "1,2")
            failing = subprocess.run(
                [sys.executable, "-c", HOLD, "1", "0"],
                env={**os.environ, **lease.environment},
                capture_output=True,
                text=True,
                check=False,
            )
            assert "NoDeviceAvailable" in failing.stderr
            assert one.end() == two.end() == 0

    def test_it_cannot_have_more_than_its_lease_holds(self, monkeypatch):
        with jupyter_gpu.acquire(2) as lease:
            for name, value in lease.environment.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(jupyter_gpu.ImpossibleRequest, match="leaves 0, 1"):
                jupyter_gpu.acquire(3)
            with pytest.raises(jupyter_gpu.ImpossibleRequest, match="outside the pool"):
                jupyter_gpu.acquire(devices=[5])

    def test_leases_nest_more_than_once(self, below, place):
        top = jupyter_gpu.acquire(4)
        inner = """
import os, subprocess, sys, jupyter_gpu
with jupyter_gpu.acquire(2) as lease:
    environment = {**os.environ, **lease.environment}
    code = "import jupyter_gpu; lease = jupyter_gpu.acquire(); print(lease.record.ancestors)"
    answer = subprocess.run([sys.executable, "-c", code], env=environment, stdout=-1, text=True)
    print(answer.stdout.strip(), lease.id)
sys.stdin.read()
"""
        child, answer = below(top.environment, code=inner)
        innermost, _, middle = answer.rpartition(" ")
        assert eval(innermost) == (top.id, middle)
        child.end()
        top.release()

    def test_a_device_stays_taken_when_the_ancestor_is_killed(self, holder, below, place):
        """A program that does not inherit the lease uses its devices when it is gone."""
        code = HOLD.replace("print(", "print(lease.id, ")
        top, answer = holder(3, code=code)
        lease_id = answer.split()[0]
        inner, got = below({"JUPYTER_GPU_LEASE": lease_id}, 2)
        assert got == "0,1"
        top.kill()
        assert free_devices() == 6
        with jupyter_gpu.acquire(6) as rest:
            assert [device.index for device in rest.devices] == [2, 3, 4, 5, 6, 7]
        (left,) = leases(place)
        assert left.record.uuids == rest_of(inner, left)
        inner.kill()
        assert free_devices() == 8

    def test_a_waiter_under_a_lease_that_ends_asks_the_machine_instead(
        self, program, place, eventually
    ):
        top = jupyter_gpu.acquire(1)
        inner = jupyter_gpu.acquire(7)
        environment = {**top.environment, "CUDA_VISIBLE_DEVICES": "0,1,2"}
        busy = program(HOLD, arguments=[1, 0], environ=environment)
        assert busy.read() == "0"
        waiting = program(HOLD, arguments=[1, 20], environ=environment)
        with LeaseStore(place) as store:
            eventually(lambda: store.holdings().waiters)
        top.release()
        inner.release()
        assert waiting.read() in ("1", "2")
        busy.end()
        waiting.end()


def rest_of(inner, lease):
    """The UUIDs of a lease, once it is known to be that of the process."""
    assert lease.pids == (inner.pid,)
    return lease.record.uuids


def test_a_lease_left_to_the_process_outlives_its_object(program, place):
    code = """
import gc, jupyter_gpu
lease = jupyter_gpu.acquire(2)
lease.leave()
print(lease.released)
del lease
gc.collect()
print("gone")
input()
"""
    child = program(code)
    assert [child.read(), child.read()] == ["True", "gone"]
    (found,) = leases(place)
    assert found.pids == (child.pid,)
    child.kill()
    assert free_devices() == 8


def test_while_another_process_changes_a_lease_nothing_is_written(place):
    with jupyter_gpu.acquire(2) as lease, Witness(place) as kernel:
        assert kernel.try_change(lease.id)
        with lease.changing() as witness:
            assert witness is None
        lease.describe(lambda owner: dataclasses.replace(owner, notebook="b.ipynb"))
        assert leases(place)[0].record.owner.notebook is None
        assert lease.recorded_indices() == (0, 1)
    with lease.changing() as witness:
        assert witness is None


def test_describing_keeps_what_the_kernel_has_written_about_its_devices(place):
    with jupyter_gpu.acquire(2) as lease:
        with Witness(place) as kernel:
            uuids, indices = lease.record.uuids[:1], (0,)
            kernel.publish(dataclasses.replace(lease.record, uuids=uuids, indices=indices))
        lease.describe(lambda owner: dataclasses.replace(owner, notebook="b.ipynb"))
        (found,) = leases(place)
        assert (found.record.owner.notebook, found.record.indices) == ("b.ipynb", (0,))
        assert lease.recorded_indices() == (0,)


def test_the_words_of_a_kernels_notice():
    assert notice_of((), None) is None
    assert notice_of(("a", "b"), "Careful.") == (
        "The pool of GPUs is limited by a.\nThe pool of GPUs is limited by b.\nCareful."
    )
