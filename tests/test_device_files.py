import os
import sys
from pathlib import Path

import pytest

from jupyter_gpu.adapters.device_files import has_gpu_open, users_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

OPEN = "import sys; held = [open(path) for path in sys.argv[1:]]; print('open'); sys.stdin.read()"
ORPHAN = """
import os, sys
held = open(sys.argv[1])
pid = os.fork()
if pid == 0:
    sys.stdin.read()
    os._exit(0)
print(pid, flush=True)
os._exit(0)
"""


@pytest.fixture
def devices(tmp_path):
    for minor in range(12):
        (tmp_path / f"nvidia{minor}").touch()
    return tmp_path


def test_who_has_a_device_open_is_named_with_its_physical_index(devices, program):
    child = program(OPEN, arguments=(devices / "nvidia1", devices / "nvidia0"))
    child.read()
    (user,) = users_of({0: 3, 1: 2}, folder=str(devices))
    assert (user.pid, user.indices, user.orphan) == (child.pid, (2, 3), False)
    assert user.command.startswith(sys.executable)
    assert str(child.pid) in user.words


def test_only_the_devices_asked_for_count(devices, program):
    child = program(OPEN, arguments=(devices / "nvidia11",))
    child.read()
    assert users_of({1: 1}, folder=str(devices)) == ()
    assert users_of({}, folder=str(devices)) == ()


def test_the_process_that_asks_may_be_left_out(devices):
    with (devices / "nvidia0").open():
        assert [user.pid for user in users_of({0: 0}, folder=str(devices))] == [os.getpid()]
        assert users_of({0: 0}, folder=str(devices), ours=os.getpid()) == ()


KERNEL = {"JPY_PARENT_PID": "1"}  # what Jupyter gives to a kernel, and its workers inherit


def orphan_of(program, devices, code=ORPHAN, **options):
    """Start a leader of a session that ends at once, and return its worker as users_of sees it."""
    kernel = program(code, arguments=(devices / "nvidia0",), **options)
    worker = int(kernel.read())
    kernel.process.wait(timeout=10)
    (user,) = users_of({0: 0}, folder=str(devices))
    assert user.pid == worker
    return user


@pytest.mark.parametrize("environ", [KERNEL, {"JUPYTER_GPU_LEASE": "a" * 15}])
def test_b74_a_worker_whose_kernel_is_dead_is_an_orphan(devices, program, environ):
    assert orphan_of(program, devices, environ=environ).orphan


def test_a_program_that_was_to_outlive_its_terminal_is_none(devices, program):
    assert not orphan_of(program, devices).orphan


def test_a_job_of_a_shell_is_none_although_a_notebook_has_started_the_shell(devices, program):
    # As a shell does, on both sides of the fork.
    code = ORPHAN.replace("if pid == 0:", "os.setpgid(pid, pid)\nif pid == 0:")
    assert not orphan_of(program, devices, code, environ=KERNEL).orphan


SPAWNED = """
import os, sys
held = open(sys.argv[1])
os.set_inheritable(held.fileno(), True)
pid = os.fork()
if pid == 0:
    code = "import sys; sys.stdin.read()  # from multiprocessing.spawn import spawn_main"
    os.execv(sys.executable, [sys.executable, "-c", code])
print(pid, flush=True)
if len(sys.argv) == 2:
    os._exit(0)
sys.stdin.read()
"""


def test_a_spawned_worker_is_known_by_its_command(devices, program, eventually):
    kernel = program(SPAWNED, arguments=(devices / "nvidia0",))
    worker = int(kernel.read())
    kernel.process.wait(timeout=10)
    eventually(lambda: "spawn_main" in Path(f"/proc/{worker}/cmdline").read_text())
    (user,) = users_of({0: 0}, folder=str(devices))
    assert (user.pid, user.orphan) == (worker, True)


def test_workers_of_a_living_program_are_none_although_its_terminal_is_gone(
    devices, program, eventually
):
    # The leader forks a program and ends; the program, which has a worker, goes on.
    code = "import os\nif os.fork():\n    os._exit(0)\n" + SPAWNED
    leader = program(code, arguments=(devices / "nvidia0", "stay"))
    worker = int(leader.read())
    leader.process.wait(timeout=10)
    eventually(lambda: "spawn_main" in Path(f"/proc/{worker}/cmdline").read_text())
    users = users_of({0: 0}, folder=str(devices))
    assert len(users) == 2
    assert worker in {user.pid for user in users}
    assert not any(user.orphan for user in users)


def test_whether_a_process_has_any_gpu_open(devices, program):
    (devices / "nvidia-uvm").touch()
    (devices / "nvidiactl").touch()
    with_one = program(OPEN, arguments=(devices / "nvidia11",))
    without = program(OPEN, arguments=(devices / "nvidia-uvm", devices / "nvidiactl"))
    with_one.read()
    without.read()
    assert has_gpu_open(with_one.pid, folder=str(devices))
    assert has_gpu_open(without.pid, folder=str(devices)) is False
    assert not has_gpu_open(with_one.pid, folder=str(devices.parent))
    assert has_gpu_open(2**22 + 1, folder=str(devices)) is None


def test_a_daemon_that_is_no_python_is_none(devices, program, eventually):
    code = (
        "import os, sys\n"
        "held = open(sys.argv[1]); os.set_inheritable(held.fileno(), True)\n"
        "pid = os.fork()\n"
        "if pid == 0: os.execvp('sh', ['sh', '-c', 'read line'])\n"
        "print(pid, flush=True); os._exit(0)\n"
    )
    leader = program(code, arguments=(devices / "nvidia0",))
    daemon = int(leader.read())
    leader.process.wait(timeout=10)
    # Until its exec it is a Python whose parent is gone.
    eventually(lambda: Path(f"/proc/{daemon}/comm").read_text().strip() == "sh")
    (user,) = users_of({0: 0}, folder=str(devices))
    assert (user.pid, user.orphan) == (daemon, False)
