"""``%gpu use`` in kernels of real Jupyter servers: at once, through restarts, and after kills."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
from doubles import gpu
from doubles.fixtures import driver_double, driver_libraries  # noqa: F401 - fixtures
from kernels import Kernel, StartedByArgv, argv_of, free_count, leases, start_argv
from support_server import Server, wait_until

import jupyter_gpu
from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.core.layout import LEASE_IDS, QUEUE

FREEZE = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"


@pytest.fixture
def server(lease_directory, simulate):
    """A server over a simulated machine of four GPUs."""
    simulate("4xH200")
    with Server(lease_directory.parent) as server:
        yield server


@pytest.fixture
def frozen_server(lease_directory, driver_double, monkeypatch):  # noqa: F811
    """A server over doubles of the driver with four GPUs, where CUDA can be initialised."""
    driver_double.write(*map(gpu, range(4)))
    double = {
        "LD_LIBRARY_PATH": str(driver_double.libraries),
        "JUPYTER_GPU_DOUBLE": str(driver_double.path),
    }
    with Server(lease_directory.parent, **double) as server:
        yield server


def started(answer):
    assert answer.status == 201, answer.body
    return answer.body["kernel"]["id"]


def use(server, kernel, line):
    """What ``%gpu use … --json`` gives in a kernel, or the error's text."""
    said = server.run(kernel, f"import json\nused = %gpu use {line} --json\nprint(json.dumps(used))")
    return json.loads(said) if said.startswith("{") else said


def shown(server, kernel, line=""):
    return server.run(kernel, f"print(get_ipython().run_line_magic('gpu', {line!r}))")


def held():
    """The physical indices of the only lease."""
    (lease,) = leases()
    assert lease.note is None
    return lease.record.indices


def lock_file():
    return os.open(find_place(os.environ, simulated=False).lock_path, os.O_RDONLY | os.O_CLOEXEC)


def lease_ids():
    fd = lock_file()
    try:
        assert locks.first_lock(fd, QUEUE) is None
        return len(list(locks.locked_ranges(fd, LEASE_IDS)))
    finally:
        os.close(fd)


@contextlib.contextmanager
def taken_on(server, count):
    """So many devices are taken by a program on the server's machine."""
    code = f"import jupyter_gpu; lease = jupyter_gpu.acquire({count}); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=server.environ, stdin=-1, stdout=-1
    ) as child:
        try:
            assert child.stdout.readline() == b"1\n"
            yield
        finally:
            child.communicate(b"\n")


COUNT = """
import jupyter_gpu
for count in range(len(jupyter_gpu.inventory().devices), 0, -1):
    try:
        jupyter_gpu.acquire(count).release()
    except jupyter_gpu.NoDeviceAvailable:
        continue
    print(count)
    break
else:
    print(0)
"""


def free_on(server):
    """How many devices a program on the server's machine could have at this moment."""
    return int(subprocess.check_output([sys.executable, "-c", COUNT], env=server.environ))


def restart(server, kernel):
    old = wait_until(lambda: server.kernel_process(kernel))
    assert server.request("POST", f"kernels/{kernel}/restart").status == 200
    wait_until(lambda: server.kernel_process(kernel) not in (None, old))


def test_a_change_at_once_is_kept_by_restarts_and_ends_with_the_kernel(server):
    kernel = started(server.open_notebook("a.ipynb"))
    (before,) = leases()
    assert use(server, kernel, "2,3")["lease"]["indices"] == [2, 3]
    assert server.visible(kernel) == "2,3"
    (lease,) = leases()
    assert lease.record.id == before.record.id
    assert lease.record.owner == before.record.owner
    assert free_count() == 2
    for _ in range(2):
        restart(server, kernel)
        assert server.visible(kernel) == "2,3"
        assert (held(), free_count(), lease_ids()) == ((2, 3), 2, 1)
    assert use(server, kernel, "1")["lease"]["indices"] == [2]
    assert free_count() == 3
    assert server.request("DELETE", f"kernels/{kernel}").status == 204
    assert leases() == ()
    assert free_count() == 4
    assert server.logs(f"kernel {kernel} gave back physical 2: the kernel has ended")


def test_none_at_once_stays_none_and_some_can_be_had_again(server):
    kernel = started(server.open_notebook("a.ipynb", "pytorch-2gpus"))
    assert use(server, kernel, "0")["devices"] == []
    assert (free_count(), leases()) == (4, ())
    restart(server, kernel)
    assert server.visible(kernel) == "-1"
    assert (free_count(), leases()) == (4, ())
    assert "No GPU is visible in this kernel" in shown(server, kernel)
    assert use(server, kernel, "1,2")["lease"]["indices"] == [1, 2]
    restart(server, kernel)
    assert (server.visible(kernel), held()) == ("1,2", (1, 2))


def test_a_kernel_that_began_with_none_keeps_what_it_has_taken(server):
    kernel = started(server.open_notebook("a.ipynb", "pytorch-cpu"))
    assert use(server, kernel, "3")["lease"]["indices"] == [0, 1, 2]
    assert use(server, kernel, "1,3")["lease"]["indices"] == [1, 3]
    restart(server, kernel)
    assert (server.visible(kernel), held(), free_count()) == ("1,3", (1, 3), 2)
    restart(server, kernel)
    assert (server.visible(kernel), held(), free_count()) == ("1,3", (1, 3), 2)


def test_a_kernel_killed_after_a_change_is_restarted_with_the_new_devices(server):
    kernel = started(server.open_notebook("a.ipynb"))
    use(server, kernel, "3")
    old = server.kernel_process(kernel)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: server.kernel_process(kernel) not in (None, old))
    assert (server.visible(kernel), held()) == ("0,1,2", (0, 1, 2))


def test_a_change_of_kernel_takes_the_new_devices_over(server):
    session = server.open_notebook("a.ipynb").body
    old = session["kernel"]["id"]
    use(server, old, "--devices 3")
    with jupyter_gpu.acquire(3):
        changed = server.request(
            "PATCH", f"sessions/{session['id']}", {"kernel": {"name": "pytorch-1gpu"}}
        )
        assert changed.status == 200, changed.body
        assert server.visible(changed.body["kernel"]["id"]) == "3"
    wait_until(lambda: len(leases()) == 1)
    assert (held(), free_count()) == ((3,), 3)


def test_a_new_name_of_the_notebook_undoes_nothing(server):
    session = server.open_notebook("a.ipynb").body
    use(server, session["kernel"]["id"], "2,3")
    new = {"path": "b.ipynb", "name": "b.ipynb"}
    assert server.request("PATCH", f"sessions/{session['id']}", new).status == 200
    wait_until(lambda: str(leases()[0].record.owner.notebook).endswith("/b.ipynb"))
    assert held() == (2, 3)


def test_what_outlives_its_server_can_be_changed_and_ends_with_the_kernel(server):
    kernel = started(server.open_notebook("a.ipynb"))
    server.run(kernel, f"import os; os.getppid = lambda: {server.process.pid}")
    server.process.kill()
    server.process.wait()
    assert use(server, kernel, "1,2")["lease"]["indices"] == [1, 2]
    assert free_count() == 2
    os.kill(server.kernel_process(kernel), signal.SIGKILL)
    wait_until(lambda: not leases())
    assert free_count() == 4


POINTS = {
    "a lease id is locked": ("jupyter_gpu.adapters.claim.Claim.adopt", "before"),
    "devices are locked": ("jupyter_gpu.adapters.claim.Claim.take", "after"),
    "what was granted has a record": ("jupyter_gpu.allocator.Acquisition.step", "after"),
    "the record is written": ("jupyter_gpu.adapters.witness.Witness.publish", "after"),
    "the old devices are unlocked": ("jupyter_gpu.adapters.claim.Claim.keep_only", "after"),
    "the part has no record": ("jupyter_gpu.adapters.witness.Witness.remove_record", "after"),
    "all is done": ("jupyter_gpu.lease_change.LeaseChange.join", "after"),
    "nothing is left to be done": ("jupyter_gpu.switch.Switch.put", "before"),
    "it stands in line": ("jupyter_gpu.adapters.store.LeaseStore.publish", "after"),
}
DIE_AT = """
import os, pkgutil, signal
def die_at(path, when, line):
    names, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(names)
    really = getattr(owner, name)
    def dying(*arguments, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = really(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, dying)
    get_ipython().run_line_magic("gpu", line)
import jupyter_gpu.switch
"""


@pytest.mark.parametrize("point", POINTS)
def test_a_kernel_killed_in_the_middle_of_a_change_leaves_nothing_half_done(server, point):
    kernel = started(server.open_notebook("a.ipynb", "pytorch-2gpus"))
    old = server.kernel_process(kernel)
    waits = point == "it stands in line"
    line = "use 4 --wait 60s" if waits else "use 1,2"
    holder = jupyter_gpu.acquire(1) if waits else None
    with server.client(kernel) as client:
        client.execute(DIE_AT + f"die_at({POINTS[point][0]!r}, {POINTS[point][1]!r}, {line!r})")
        wait_until(lambda: server.kernel_process(kernel) not in (None, old), what="the restart")
    if holder is not None:
        holder.release()
    seen = server.visible(kernel)
    assert seen in ("0,1", "1,2")
    assert ",".join(map(str, held())) == seen
    assert lease_ids() == 1
    assert free_count() == 2
    assert use(server, kernel, "3")["lease"]["indices"] == [0, 1, 2]
    assert (held(), lease_ids(), free_count()) == ((0, 1, 2), 1, 1)


def test_what_is_frozen_changes_with_the_restart(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    server.run(kernel, FREEZE)
    answer = use(server, kernel, "2,3")
    assert (answer["when"], answer["restarting"], answer["devices"]) == ("restart", False, None)
    assert "nothing changes now" in answer["notes"][0]
    assert server.visible(kernel) == "0"
    assert (held(), lease_ids(), free_on(server)) == ((0,), 1, 3)
    restart(server, kernel)
    assert (server.visible(kernel), held(), lease_ids()) == ("2,3", (2, 3), 1)
    assert free_on(server) == 2
    restart(server, kernel)
    assert server.visible(kernel) == "2,3"
    assert not list(server.runtime.glob(".*gpu-request*"))


def test_an_option_restarts_the_kernel_itself(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    old = wait_until(lambda: server.kernel_process(kernel))
    server.run(kernel, FREEZE)
    assert use(server, kernel, "2 --restart")["restarting"]
    wait_until(lambda: server.kernel_process(kernel) not in (None, old), what="the restart")
    assert server.visible(kernel) == "0,1"
    assert (held(), free_on(server)) == ((0, 1), 2)
    assert server.get(f"kernels/{kernel}").body["id"] == kernel


def test_a_thread_that_never_ends_does_not_keep_the_kernel_from_its_restart(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    old = wait_until(lambda: server.kernel_process(kernel))
    server.run(kernel, f"{FREEZE}\nimport threading; threading.Thread(target=threading.Event().wait).start()")
    assert use(server, kernel, "2 --restart")["restarting"]
    wait_until(lambda: server.kernel_process(kernel) not in (None, old), seconds=30)
    assert server.visible(kernel) == "0,1"


def test_what_cannot_be_had_restarts_nothing_and_is_told_before(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    server.run(kernel, f"{FREEZE}\nkept = 'work'")
    with taken_on(server, 2):
        said = use(server, kernel, "3 --restart")
        assert "No 3 GPUs are free" in said
        assert server.run(kernel, "print(kept)") == "work"
        answer = use(server, kernel, "3")
        assert "At this moment they could not be had. No 3 GPUs are free" in answer["notes"][1]
        restart(server, kernel)
        told = server.run(kernel, "pass")
        assert told.startswith("3 GPUs, as %gpu use had asked for, could not be had.")
        assert "No 3 GPUs are free" in told
        assert "0  yours already" in told
        assert "This kernel has physical 0." in told
        assert " ".join(told.split()) in " ".join(shown(server, kernel).split())
        assert server.visible(kernel) == "0"
        assert held_by(kernel) == (0,)
    restart(server, kernel)
    assert server.run(kernel, "pass") == ""


def held_by(kernel):
    (found,) = [one for one in leases() if one.record.owner.kernel_id == kernel]
    return found.record.indices


def test_a_hostile_request_is_told_and_changes_nothing(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    path = server.runtime / f".kernel-{kernel}.json.gpu-request"
    path.symlink_to("/etc/passwd")
    restart(server, kernel)
    assert "it is not a plain file" in server.run(kernel, "pass")
    assert (server.visible(kernel), held()) == ("0", (0,))
    assert not os.path.lexists(path)
    path.write_text(json.dumps({"schema": 1, "options": {"gpuss": 2}}))
    path.chmod(0o600)
    restart(server, kernel)
    assert "There is no option 'gpuss'" in server.run(kernel, "pass")
    assert server.visible(kernel) == "0"


def test_none_through_a_restart_stays_none(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    server.run(kernel, FREEZE)
    use(server, kernel, "0")
    assert server.visible(kernel) == "0"
    for _ in range(2):
        restart(server, kernel)
        assert server.visible(kernel) == "-1"
        assert (leases(), lease_ids()) == ((), 0)
    assert use(server, kernel, "2")["lease"]["indices"] == [0, 1]
    restart(server, kernel)
    assert server.visible(kernel) == "0,1"


def test_a_request_that_nobody_reads_is_removed_with_the_kernel(frozen_server):
    server = frozen_server
    kernel = started(server.open_notebook("a.ipynb"))
    server.run(kernel, FREEZE)
    use(server, kernel, "2")
    (path,) = server.runtime.glob(".*gpu-request*")
    assert path.stat().st_mode & 0o777 == 0o600
    server.request("DELETE", f"kernels/{kernel}")
    assert not path.exists()


@pytest.fixture
def started_by_argv(tmp_path):
    """Start the wrapper as VS Code does, twice with one connection file if asked to."""
    kernels, connection = [], []

    def start(environ=None, again=None):
        if again is None:
            process, file, stderr = start_argv(tmp_path, environ=environ)
            connection.append(file.read_text())
        else:
            file, stderr = again, tmp_path / "stderr"
            file.write_text(connection[0])  # which the kernel before has removed
            with stderr.open("wb") as sink:
                process = subprocess.Popen(
                    argv_of("pytorch-1gpu", file), env={**os.environ, **environ}, stderr=sink
                )
        kernels.append(StartedByArgv(process, file, stderr))
        wait_until(lambda: is_ready(kernels[-1]), seconds=60, what="the kernel to answer")
        return kernels[-1], file

    yield start
    for kernel in kernels:
        kernel.close()


def is_ready(kernel):
    """Whether a kernel answers; a heartbeat missed under load is no end of it."""
    assert kernel.process.poll() is None, kernel.said()
    try:
        Kernel.wait_until_ready(kernel)
    except RuntimeError:
        return False
    return True


def printed(kernel, line):
    return kernel.run(f"print(get_ipython().run_line_magic('gpu', {line!r}))")[0]


def test_a_kernel_started_by_its_argv_changes_at_once(simulate, started_by_argv):
    simulate("4xH200")
    kernel, _ = started_by_argv()
    (before,) = leases()
    assert "2 of 4 GPUs are yours now" in printed(kernel, "use 2,3")
    assert kernel.see()["CUDA_VISIBLE_DEVICES"] == "2,3"
    (lease,) = leases()
    assert (lease.record.id, lease.record.indices) == (before.record.id, (2, 3))
    assert "This kernel has no GPU now" in printed(kernel, "use 0")
    assert free_count() == 4
    assert "cuda:0 = physical 1" in printed(kernel, "use --devices 1")
    assert free_count() == 3
    kernel.process.kill()
    wait_until(lambda: not leases())


def test_a_frozen_kernel_started_by_its_argv_gets_them_at_its_next_start(
    driver_double,  # noqa: F811
    started_by_argv,
):
    driver_double.write(*map(gpu, range(4)))
    environ = {
        "LD_LIBRARY_PATH": str(driver_double.libraries),
        "JUPYTER_GPU_DOUBLE": str(driver_double.path),
    }
    kernel, file = started_by_argv(environ)
    kernel.run(FREEZE)
    assert "nothing changes now" in printed(kernel, "use 2,3")
    assert kernel.see()["CUDA_VISIBLE_DEVICES"] == "0"
    with pytest.raises(pytest.fail.Exception, match="Nothing starts this kernel again"):
        printed(kernel, "use 2,3 --restart")
    kernel.shut_down()
    again, _ = started_by_argv(environ, file)
    assert again.see()["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_a_frozen_kernel_that_nobody_leased_for_is_told_what_to_do(
    driver_double,  # noqa: F811
    managed_python,
):
    assert "Restart the kernel and run" in managed_python(f"{FREEZE}\n%load_ext jupyter_gpu\n%gpu use 2")
    assert "1 of 4 GPUs is yours now" in managed_python(
        "%load_ext jupyter_gpu\nprint(get_ipython().run_line_magic('gpu', 'use 1'))"
    )


@pytest.fixture
def managed_python(driver_double, lease_directory):  # noqa: F811
    """Run code in a fresh kernel of a server's own Python kernelspec, which is not ours."""
    driver_double.write(*map(gpu, range(4)))
    double = {
        "LD_LIBRARY_PATH": str(driver_double.libraries),
        "JUPYTER_GPU_DOUBLE": str(driver_double.path),
    }
    with Server(lease_directory.parent, **double) as server:
        names = map("{}.ipynb".format, itertools.count())
        yield lambda code: server.run(started(server.open_notebook(next(names), "python3")), code)
