"""What is left behind is found through leases, device files and the driver library, and ended."""

import dataclasses
import json
import os
import signal
import sys
from datetime import datetime, timezone

import pytest
from conftest import poll
from doubles import gpu as gpu_double
from doubles.fixtures import driver_double, driver_libraries

import jupyter_gpu
from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.ending import Outcome, pidfd_opener
from jupyter_gpu.adapters.place import furnish
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.leftovers import Leftovers
from jupyter_gpu.core.standing import FREE, standing
from jupyter_gpu.leftovers import Found, end_leftovers, find_leftovers, hold

__all__ = ["driver_double", "driver_libraries"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's")

KERNEL_MARK = {"JPY_PARENT_PID": "1"}
# A kernel that leases a device and forks workers, prints their pids, and ends.
DYING = """
import os, signal, sys
import jupyter_gpu
held = jupyter_gpu.acquire(int(sys.argv[1]))
opened = [open(path) for path in sys.argv[3:]]
pids = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pids.append(pid)
print(held.id, *pids, flush=True)
os._exit(0)
"""
# The same without a lease.
ORPHANING = DYING.replace("jupyter_gpu.acquire(int(sys.argv[1]))", "None").replace("held.id", "0")
WAIT = "print('up'); import sys; sys.stdin.read()"


@pytest.fixture
def devices(tmp_path):
    for minor in range(8):
        (tmp_path / f"nvidia{minor}").touch()
    return tmp_path


@pytest.fixture
def find(devices):
    return lambda *wanted: find_leftovers(os.environ, wanted, device_folder=str(devices))


@pytest.fixture
def machine(simulate):
    """A function that puts four GPUs in place, with processes by their index."""

    def put(processes=None, **changes):
        rows = [
            {
                "name": "NVIDIA L4",
                "memory_used_bytes": 0,
                "memory_total_bytes": 2**34,
                "processes": [
                    {"pid": pid, "memory_bytes": 2**30} for pid in (processes or {}).get(index, ())
                ],
                **changes.get(f"gpu{index}", {}),
            }
            for index in range(4)
        ]
        return simulate({"gpus": rows})

    put()
    return put


@pytest.fixture
def dead_kernel(program, machine):
    """A function: a kernel on so many devices has ended; returns the lease's id and its workers."""

    def start(gpus=1, workers=1, **options):
        kernel = program(DYING, arguments=(gpus, workers), **options)
        lease_id, *pids = kernel.read().split()
        kernel.process.wait(timeout=10)
        return lease_id, [int(pid) for pid in pids]

    return start


@pytest.fixture
def orphan(program, machine, devices):
    """A function: a worker without a lease whose kernel has ended, with a device open."""

    def start(minor=0, **options):
        options = {"environ": KERNEL_MARK, **options}
        kernel = program(ORPHANING, arguments=(0, 1, devices / f"nvidia{minor}"), **options)
        _, pid = kernel.read().split()
        kernel.process.wait(timeout=10)
        return int(pid)

    return start


def pids(found):
    return [one.pid for one in found.leftovers.may_end]


def reasons(found):
    return {one.process.pid: one.why for one in found.leftovers.left}


def end(found):
    with hold(found, pidfd_opener()) as targets:
        return end_leftovers(os.environ, found, targets)


def is_gone(pid):
    info = processes.look(pid)
    return info is None or info.state == "Z"


def test_a_machine_at_rest_has_nothing(machine, find):
    assert find() == Found(Leftovers())
    found = find("0")
    assert found.leftovers == Leftovers()
    assert [device.index for device in found.devices] == [0]


def test_b74_workers_that_keep_a_lease_are_found_with_all_that_is_shown(dead_kernel, find):
    lease_id, (worker,) = dead_kernel(gpus=2)
    (one,) = find().leftovers.may_end
    assert (one.pid, one.role, one.own, one.indices) == (worker, "leftover", True, (0, 1))
    assert one.lease.record.id == lease_id
    assert one.user == processes.user_name(os.getuid())
    assert sys.executable in one.command
    started = datetime.fromisoformat(one.since)
    assert abs((datetime.now(timezone.utc) - started).total_seconds()) < 60


def test_they_are_ended_and_the_devices_are_free(dead_kernel, find):
    _, workers = dead_kernel(gpus=2, workers=2)
    found = find()
    assert pids(found) == sorted(workers)
    released = end(found)
    assert [one.signal for one in released.ended] == ["TERM", "TERM"]
    assert released.left == ()
    assert all(map(is_gone, workers))
    assert [device.index for device in released.devices] == [0, 1]
    words = [standing(device, released.overview).words for device in released.devices]
    assert words == [FREE, FREE]
    assert find() == Found(Leftovers())
    with jupyter_gpu.acquire("all") as lease:
        assert len(lease.devices) == 4


@pytest.mark.parametrize("name", ["index", "uuid", "start of it", "lease"])
def test_only_what_is_named_is_found(dead_kernel, find, name):
    first, (one,) = dead_kernel()
    second, (two,) = dead_kernel()
    assert sorted(pids(find())) == sorted([one, two])
    uuid = jupyter_gpu.inventory().devices[1].uuid
    what = {"index": "1", "uuid": uuid, "start of it": uuid[:12], "lease": second}[name]
    assert pids(find(what)) == [two]
    assert pids(find("0")) == [one]
    assert pids(find(first, what)) == [one, two]


def test_a_device_on_which_nothing_is_left_has_nothing(dead_kernel, find):
    dead_kernel()
    assert find("3").leftovers == Leftovers()


def test_a_lease_that_has_ended_is_nothing_and_no_mistake(machine, find):
    assert find("0123456789abcde").leftovers == Leftovers()


@pytest.mark.parametrize("what", ["9", "", "no", "0123456789abcd", "GPU-", "-1", "1.5"])
def test_what_means_nothing_is_wrong_usage(machine, find, what):
    with pytest.raises(UsageError):
        find(what)


def test_an_orphan_without_a_lease_is_found_through_its_device_file(orphan, find):
    worker = orphan(minor=2)
    (one,) = find().leftovers.may_end
    assert (one.pid, one.indices, one.lease) == (worker, (2,), None)
    assert pids(find("2")) == [worker]
    assert pids(find("1")) == []
    released = end(find())
    assert is_gone(worker)
    assert [device.index for device in released.devices] == [2]


def test_a_worker_that_the_driver_lists_comes_with_its_memory(dead_kernel, machine, find):
    _, (worker,) = dead_kernel()
    machine({0: [worker], 1: [worker]})
    (one,) = find().leftovers.may_end
    assert (one.role, one.memory_bytes) == ("leftover", 2 * 2**30)


class TestNotTouched:
    """What is in use, or is somebody else's, is left and said to be."""

    def test_an_active_lease_and_its_process(self, machine, find, program):
        with jupyter_gpu.acquire(1):
            assert find() == Found(Leftovers())
            found = find("0")
            assert pids(found) == []
            why = reasons(found)[os.getpid()]
            assert why.startswith("the lease of ")
            assert why.endswith("is active: end that program, or let it release the lease")

    def test_a_holder_that_uses_more_than_it_has_leased(self, machine, find):
        with jupyter_gpu.acquire(1):
            machine({3: [os.getpid()]})
            for what in ("0", "3"):
                assert list(reasons(find(what))) == [os.getpid()]
            assert reasons(find("2")) == {}

    def test_forked_workers_of_a_living_kernel(self, machine, find, program):
        kernel = program(DYING.replace("os._exit(0)", "sys.stdin.read()"), arguments=(1, 2))
        _, *workers = kernel.read().split()
        workers = [int(pid) for pid in workers]
        machine({0: workers})
        found = find("0")
        assert pids(found) == []
        assert all("is active" in reasons(found)[pid] for pid in (kernel.pid, *workers))

    def test_a_worker_that_keeps_a_lease_in_use_too(self, machine, find, program, eventually):
        """It has the lock of a living lease by inheritance, and descends from nobody there."""
        code = (
            "import os, signal, sys, jupyter_gpu\n"
            "held = jupyter_gpu.acquire(1)\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n        signal.pause()\n"
            "    print(pid, flush=True); os._exit(0)\n"
            "os.wait()\n"
            "sys.stdin.read()\n"
        )
        kernel = program(code)
        worker = int(kernel.read())
        eventually(lambda: kernel.pid not in processes.ancestors_of(worker))
        try:
            machine({0: [worker]})
            found = find("0")
            assert pids(found) == []
            assert "is active" in reasons(found)[worker]
        finally:
            os.kill(worker, signal.SIGKILL)

    def test_a_program_that_runs_on_its_own(self, machine, find, program):
        child = program(WAIT)
        child.read()
        machine({3: [child.pid]})
        assert find() == Found(Leftovers())
        assert reasons(find("3")) == {
            child.pid: "it runs on its own, without a lease, and is not left behind"
        }

    def test_this_command_and_what_has_started_it(self, machine, find):
        machine({3: [os.getpid(), os.getppid()]})
        found = find("3")
        assert pids(found) == []
        assert reasons(found)[os.getpid()] == "it is this command, or has started it"

    def test_a_zombie_which_is_labelled_with_its_parent(self, machine, find, program, eventually):
        child = program(WAIT)
        child.read()
        child.signal(signal.SIGKILL)
        eventually(lambda: processes.look(child.pid).state == "Z")
        machine({1: [child.pid]})
        for found in (find(), find("1")):
            assert pids(found) == []
            why = reasons(found)[child.pid]
            assert why.startswith(f"a zombie: it has ended, and its parent {os.getpid()} (")

    def test_a_pid_that_is_gone(self, machine, find):
        machine({1: [2**22 + 1]})
        assert find() == Found(Leftovers())
        assert reasons(find("1")) == {
            2**22 + 1: "it has ended, and the driver library still lists it"
        }

    def test_the_server_that_keeps_a_lease(self, machine, find, program, lease_directory):
        """A server whose kernel is gone for a moment still holds its lease."""
        code = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from jupyter_gpu.adapters import processes\n"
            "from jupyter_gpu.adapters.place import Place\n"
            "from jupyter_gpu.adapters.store import LeaseStore\n"
            "from jupyter_gpu.core.leases import Owner, ProcessRef, Record\n"
            "store = LeaseStore(Place(Path(sys.argv[1]), 'given'), write=True)\n"
            "claim = store.new_claim()\n"
            "assert claim.take((sys.argv[2],))\n"
            "gone = ProcessRef(2**22 + 1, 1, processes.pid_namespace())\n"
            "owner = Owner('kernel', processes=(gone,), keeper=processes.reference(os.getpid()))\n"
            "store.publish(claim, Record(claim.id, owner, '', uuids=(sys.argv[2],), indices=(0,)))\n"
            "print(claim.id, flush=True); sys.stdin.read()\n"
        )
        uuid = jupyter_gpu.inventory().devices[0].uuid
        server = program(code, arguments=(lease_directory, uuid))
        lease_id = server.read()
        assert find() == Found(Leftovers())
        found = find(lease_id)
        assert pids(found) == []
        assert reasons(found)[server.pid].startswith("the server that keeps the lease of ")


@pytest.mark.usefixtures("needs_root")
class TestTwoUsers:
    """Everybody has what is theirs, root has all."""

    ADA, BEN = 12001, 12002
    FIND = """
import os, sys
from jupyter_gpu.adapters.ending import pidfd_opener
from jupyter_gpu.leftovers import end_leftovers, find_leftovers, hold
for line in sys.stdin:
    found = find_leftovers(os.environ, line.split(), device_folder=sys.argv[1])
    with hold(found, pidfd_opener()) as targets:
        pids = [one.pid for one in found.leftovers.may_end]
        ended = len(end_leftovers(os.environ, found, targets).ended) if pids else 0
    left = [(one.process.pid, one.process.user, one.why) for one in found.leftovers.left]
    print(repr((pids, ended, left)))
"""

    @pytest.fixture
    def place(self, lease_directory, machine, simulate):
        simulate("4xL4")  # without a file, which only this user could read
        lease_directory.mkdir()
        furnish(lease_directory)

    @pytest.fixture
    def asks(self, program, devices):
        def start(uid):
            person = program(self.FIND, uid=uid, arguments=(devices,))
            return lambda *what: eval(person.tell(" ".join(what)))

        return start

    def test_another_user_may_neither_see_nor_end_it(self, place, dead_kernel, asks):
        _, (worker,) = dead_kernel(uid=self.ADA)
        ben = asks(self.BEN)
        assert ben() == ([], 0, [])
        found, ended, ((pid, user, why),) = ben("0")
        assert (found, ended, pid, user) == ([], 0, None, str(self.ADA))
        assert why.startswith(f"only {self.ADA} and root may look at it")
        assert not is_gone(worker)

    def test_ones_own_is_ended(self, place, dead_kernel, asks):
        _, (worker,) = dead_kernel(uid=self.ADA)
        assert asks(self.ADA)() == ([worker], 1, [])
        assert is_gone(worker)

    def test_root_has_everybodys_and_may_end_it(self, place, dead_kernel, find):
        _, (worker,) = dead_kernel(uid=self.ADA)
        (one,) = find().leftovers.may_end
        assert (one.pid, one.user, one.own) == (worker, str(self.ADA), False)
        end(find())
        assert is_gone(worker)

    def test_a_record_that_names_anothers_process_puts_it_at_no_risk(
        self, place, dead_kernel, find, program, lease_directory
    ):
        lease_id, (worker,) = dead_kernel(uid=self.BEN)
        victim = program(WAIT, uid=self.ADA)
        victim.read()
        info, namespace = processes.look(victim.pid), processes.pid_namespace()
        path = lease_directory / "records" / f"{lease_id}.json"
        reference = {"pid": victim.pid, "start": info.start, "namespace": namespace}
        path.write_text(json.dumps({**json.loads(path.read_text()), "workers": [reference]}))
        assert pids(find()) == [worker]

    def test_a_record_of_bens_protects_nothing_of_adas(
        self, place, dead_kernel, find, program, lease_directory
    ):
        lease_id, (worker,) = dead_kernel(uid=self.ADA)
        code = (
            "import sys, jupyter_gpu; held = jupyter_gpu.acquire(1)\n"
            "print(held.id, flush=True); sys.stdin.read()\n"
        )
        ben = program(code, uid=self.BEN)
        path = lease_directory / "records" / f"{ben.read()}.json"
        info, namespace = processes.look(worker), processes.pid_namespace()
        reference = {"pid": worker, "start": info.start, "namespace": namespace}
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "processes": [*record["processes"], reference]}))
        assert pids(find(lease_id)) == [worker]


class TestRaces:
    """Between the question and the answer processes end, and their numbers may be taken again."""

    def test_one_that_ends_meanwhile_has_ended_by_itself(self, dead_kernel, find):
        _, (worker,) = dead_kernel()
        found = find()
        with hold(found, pidfd_opener()) as targets:
            os.kill(worker, signal.SIGKILL)
            poll(lambda: is_gone(worker))
            (ended,) = end_leftovers(os.environ, found, targets).ended
        assert ended.signal is None

    @pytest.mark.parametrize("opener", [pidfd_opener(), None], ids=["pidfd", "none"])
    def test_a_number_that_is_anothers_by_then_is_not_touched(
        self, dead_kernel, find, program, opener
    ):
        _, (worker,) = dead_kernel()
        found = find()
        another = program(WAIT)
        another.read()
        (one,) = found.leftovers.may_end
        # The number of the worker, as if the other had it now: only the start time differs.
        taken = dataclasses.replace(one, pid=another.pid)
        assert one.start != processes.look(another.pid).start
        found = Found(Leftovers((taken,)), found.devices)
        with hold(found, opener) as targets:
            (ended,) = end_leftovers(os.environ, found, targets).ended
        assert ended.signal is None
        assert another.process.poll() is None
        assert not is_gone(worker)

    def test_one_that_may_not_be_ended_is_left_with_the_reason(self, dead_kernel, find):
        class Refusing:
            def end(self):
                return (Outcome(worker, None, "this user may not end it"),)

        _, (worker,) = dead_kernel()
        released = end_leftovers(os.environ, find(), Refusing())
        assert released.ended == ()
        assert [(one.process.pid, one.why) for one in released.left] == [
            (worker, "this user may not end it")
        ]


def test_a_device_that_stays_in_use_is_said_to_be(dead_kernel, machine, find, program):
    dead_kernel()
    other = program(WAIT)
    other.read()
    machine({0: [other.pid]})
    released = end(find())
    (device,) = released.devices
    assert str(other.pid) in standing(device, released.overview).words


def test_a_mig_device_is_told_from_its_siblings(program, simulate, find, devices):
    parts = [{"profile": "1g.18gb"}, {"profile": "1g.18gb"}]
    seen = simulate({"gpus": [{"name": "H200", "mig": parts}]})
    whole, first, second = seen.devices
    kernel = program(DYING.replace("int(sys.argv[1])", "'mig:1g.18gb'"), arguments=(1, 1))
    _, worker = kernel.read().split()
    kernel.process.wait(timeout=10)
    worker = int(worker)
    (leased,) = [part for part in (first, second) if find(part.uuid).leftovers.may_end]
    assert pids(find(leased.uuid)) == [worker]
    assert pids(find("0")) == pids(find(whole.uuid)) == [worker]
    (other,) = {first, second} - {leased}
    assert pids(find(other.uuid)) == []


def test_an_orphan_on_a_gpu_in_mig_mode_is_found_by_the_part_that_the_driver_names(
    orphan, simulate, find
):
    worker = orphan(minor=0)

    def machine(*listed):
        parts = [
            {"profile": "1g.18gb", "processes": [{"pid": pid} for pid in listed]},
            {"profile": "1g.18gb"},
        ]
        return simulate({"gpus": [{"name": "H200", "mig": parts}]}).devices

    _, first, second = machine()
    assert pids(find("0")) == [worker]
    assert pids(find(first.uuid)) == pids(find(second.uuid)) == []
    machine(worker)
    assert pids(find(first.uuid)) == [worker]
    assert pids(find(second.uuid)) == []


def test_in_a_container_the_drivers_pids_are_those_of_the_host(driver_double, needs_root):
    """Pid 1 is somebody here too: what the driver means by it is another process."""
    driver_double.write(gpu_double(0, processes=[{"pid": 1, "memory_bytes": 2**30}]))
    code = (
        "import os\n"
        "from jupyter_gpu.leftovers import find_leftovers\n"
        "for wanted in ((), ('0',)):\n"
        "    found = find_leftovers(os.environ, wanted).leftovers\n"
        "    print(found.may_end, [(o.process.pid, o.process.words, o.why) for o in found.left])\n"
    )
    said = driver_double.run(
        "unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code,
        JUPYTER_GPU_LEASE_DIR=os.environ["JUPYTER_GPU_LEASE_DIR"],
    )  # fmt: skip
    why = "it has no process id here: end it where it runs"
    row = f"() {[(None, 'a process outside this container', why)]}"
    assert said.splitlines() == [row, row]
