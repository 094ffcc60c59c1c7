"""What keeps a lease alive whose kernel is gone: found, named, and nobody else's business."""

import json
import os
import sys

import pytest
from conftest import poll

import jupyter_gpu
from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.lease_reader import LeaseReader, leases_kept_by
from jupyter_gpu.adapters.place import Place, furnish
from jupyter_gpu.adapters.records import RecordDirectory
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.layout import lease_byte

pytestmark = [
    pytest.mark.usefixtures("eight_gpus"),
    pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's"),
]

ADA, BEN = 12001, 12002

# A kernel: it takes a lease, starts what it is told to, prints the pids, and ends on any line.
KERNEL = """
import os, signal, subprocess, sys
import jupyter_gpu
held = jupyter_gpu.acquire(1)
device = sys.argv[1]

def forked():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid

def spawned(then="0"):
    code = f"held = open({device!r}); {then}; print('up', flush=True); signal.pause()"
    command = [sys.executable, "-c", f"import signal, sys; {code}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\\n"
    kept.append(child)
    return child.pid

kept = []
pids = [eval(expression) for expression in sys.argv[2:]]
print(held.id, *pids, flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.fixture
def devices(tmp_path):
    (tmp_path / "nvidia0").touch()
    return tmp_path


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


@pytest.fixture
def dead_kernel(program, devices, place):
    """A function that starts a kernel with workers, ends it, and returns its id and their pids."""

    def start(*workers, reap=True, **options):
        kernel = program(KERNEL, arguments=(devices / "nvidia0", *workers), **options)
        lease_id, *pids = kernel.read().split()
        kernel.send("")
        if reap:
            kernel.process.wait(timeout=10)
        return kernel, lease_id, [int(pid) for pid in pids]

    return start


@pytest.fixture
def read(place, devices):
    """A function that returns the lease with an id, as it is seen now."""

    def seen(lease_id):
        directory_fd = os.open(place.directory, os.O_RDONLY)
        fd = os.open(place.lock_path, os.O_RDONLY)
        records = RecordDirectory(place, directory_fd)
        try:
            reader = LeaseReader(fd, records, device_folder=str(devices))
            return reader.lease(lease_byte(lease_id))
        finally:
            records.close()
            os.close(fd)
            os.close(directory_fd)

    return seen


def test_b74_a_forked_worker_is_named_with_pid_and_command(dead_kernel, read):
    _, lease_id, (worker,) = dead_kernel("forked()")
    found = read(lease_id)
    assert (found.state, found.pids) == ("draining", (worker,))
    assert found.note.startswith(f"kept by process {worker} ({sys.executable}")


def test_b69_a_spawned_worker_beside_it_is_named_too(dead_kernel, read):
    _, lease_id, (forked, spawned) = dead_kernel("forked()", "spawned()")
    found = read(lease_id)
    assert found.pids == (forked, spawned)
    assert f"process {spawned} (" in found.note


def test_a_worker_that_has_left_the_session_is_found_by_its_parent(dead_kernel, read):
    # The middle one does not use the GPU any more; what it has started leads a session of its own.
    inner = (
        "held.close(); import subprocess; "
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import sys; held = open(sys.argv[1]); print(1, flush=True); sys.stdin.read()', "
        "held.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True); "
        "child.stdout.readline()"
    )
    _, lease_id, (forked, middle) = dead_kernel("forked()", f"spawned({inner!r})")
    found = read(lease_id)
    assert forked in found.pids
    assert middle not in found.pids
    (grandchild,) = set(found.pids) - {forked}
    assert processes.look(grandchild).parent == middle


def test_what_has_no_gpu_open_is_not_named(dead_kernel, read):
    _, lease_id, (forked, _) = dead_kernel("forked()", "spawned('held.close()')")
    assert read(lease_id).pids == (forked,)


def test_a_zombie_is_labelled_with_who_has_to_reap_it(dead_kernel, read, eventually):
    kernel, lease_id, (worker,) = dead_kernel("forked()", reap=False)
    eventually(lambda: processes.look(kernel.pid).state == "Z")
    found = read(lease_id)
    assert (found.state, found.pids) == ("draining", (worker,))
    reaper = f"; process {kernel.pid} is a zombie, which process {os.getpid()} ("
    assert reaper in found.note
    assert found.note.endswith(") has to reap")


def rewrite(place, lease_id, **says):
    path = place.directory / "records" / f"{lease_id}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **says}))


def test_a_later_session_with_the_number_of_the_kernels_is_another(
    dead_kernel, read, place, program, devices
):
    _, lease_id, (forked,) = dead_kernel("forked()")
    code = f"import sys; held = open({str(devices / 'nvidia0')!r}); print('open'); sys.stdin.read()"
    other = program(code)
    other.read()
    info = processes.look(other.pid)
    namespace = processes.pid_namespace()
    rewrite(
        place,
        lease_id,
        processes=[{"pid": other.pid, "start": info.start - 1, "namespace": namespace}],
    )
    assert read(lease_id).pids == (forked,)


def test_a_session_that_began_before_the_kernel_is_not_the_kernels(
    dead_kernel, read, place, program, devices
):
    """The leader is gone, so that only the start times tell the two sessions apart."""
    _, lease_id, (forked,) = dead_kernel("forked()")
    code = (
        "import os, sys\n"
        f"held = open({str(devices / 'nvidia0')!r})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.stdin.read(); os._exit(0)\n"
        "print(pid, flush=True); os._exit(0)\n"
    )
    leader = program(code)
    member = int(leader.read())
    leader.process.wait(timeout=10)
    began, namespace = processes.look(member).start, processes.pid_namespace()
    reference = {"pid": leader.pid, "start": began, "namespace": namespace}
    rewrite(place, lease_id, processes=[reference])
    assert set(read(lease_id).pids) == {forked, member}
    rewrite(place, lease_id, processes=[{**reference, "start": began + 1}])
    assert read(lease_id).pids == (forked,)
    rewrite(place, lease_id, processes=[{**reference, "start": None}])
    assert read(lease_id).pids == (forked,)


def test_which_leases_a_process_keeps(dead_kernel, place):
    _, lease_id, (forked, spawned) = dead_kernel("forked()", "spawned()")
    lock_file = place.lock_path.stat()
    assert leases_kept_by(forked, lock_file) == {lease_id}
    assert leases_kept_by(spawned, lock_file) == frozenset()
    assert leases_kept_by(2**22 + 1, lock_file) == frozenset()
    assert leases_kept_by(forked, os.stat(os.devnull)) == frozenset()


@pytest.mark.usefixtures("needs_root")
class TestOtherUsers:
    """Who may not look into a process is told no pid and no command."""

    LOOK = """
import json, sys
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore
from pathlib import Path
with LeaseStore(Place(Path(sys.argv[1]), "given")) as store:
    leases = store.holdings().leases
print(json.dumps([[one.user, one.state, list(one.pids), one.note] for one in leases]))
"""

    @pytest.fixture
    def seen_by(self, program, place):
        def look(uid):
            ((user, state, pids, note),) = json.loads(
                program(self.LOOK, uid=uid, arguments=(place.directory,)).read()
            )
            return user, state, tuple(pids), note

        return look

    def test_anothers_is_a_process_of_that_user(self, dead_kernel, seen_by):
        _, _, (worker,) = dead_kernel("forked()", uid=ADA)
        assert seen_by(BEN) == (str(ADA), "draining", (), f"kept by a process of {ADA}")
        user, state, pids, note = seen_by(ADA)
        assert (user, state, pids) == (str(ADA), "draining", (worker,))
        assert f"process {worker} (" in note

    def test_several_are_not_counted(self, dead_kernel, seen_by):
        dead_kernel("forked()", "forked()", uid=ADA)
        assert seen_by(BEN)[3] == f"kept by processes of {ADA}"

    def test_ones_own_that_may_not_be_looked_into_is_named_all_the_same(
        self, dead_kernel, program, place
    ):
        """A process that has another group is closed to its own user."""
        _, _, (worker,) = dead_kernel("forked()", uid=ADA)
        # The same user in root's group, as newgrp makes it; the first look imports what it needs.
        become = f"import os; os.setgroups([]); os.setresuid({ADA}, {ADA}, {ADA})"
        asking = program(f"{self.LOOK}\n{become}\n{self.LOOK}", arguments=(place.directory,))
        asking.read()
        ((user, state, pids, note),) = json.loads(asking.read())
        assert (user, state, pids) == (str(ADA), "draining", [worker])
        assert note.startswith(f"kept by process {worker} (")

    def test_root_is_told_everybodys(self, dead_kernel, read):
        _, lease_id, (worker,) = dead_kernel("forked()", uid=ADA)
        found = read(lease_id)
        assert (found.user, found.pids) == (str(ADA), (worker,))

    @pytest.mark.parametrize("whose", ["root", "ben"])
    def test_a_record_cannot_name_the_process_of_another_user(
        self, dead_kernel, read, place, program, whose
    ):
        _, lease_id, (worker,) = dead_kernel("forked()", uid=ADA)
        other = program("print('up'); input()", uid=BEN if whose == "ben" else None)
        other.read()
        info, namespace = processes.look(other.pid), processes.pid_namespace()
        lie = {"pid": other.pid, "start": info.start, "namespace": namespace}
        rewrite(place, lease_id, workers=[lie])
        found = read(lease_id)
        assert (found.user, found.state, found.pids) == (str(ADA), "draining", (worker,))


def test_a_lease_in_use_keeps_its_pids(place, read):
    with jupyter_gpu.acquire(1) as held:
        assert read(held.id).pids == (os.getpid(),)


def test_a_kernel_whose_server_lives_is_not_draining(dead_kernel, read, place):
    _, lease_id, _ = dead_kernel("forked()")
    info = processes.look(os.getpid())
    keeper = {"pid": info.pid, "start": info.start, "namespace": processes.pid_namespace()}
    rewrite(place, lease_id, keeper=keeper)
    assert read(lease_id).state == "active"


def test_once_the_last_worker_ends_the_lease_does(dead_kernel, place):
    _, lease_id, (worker,) = dead_kernel("forked()")
    with LeaseStore(place) as store:
        assert store.is_live(lease_id)
        os.kill(worker, 15)
        poll(lambda: not store.is_live(lease_id))
