import os
import sys
from pathlib import Path

import pytest

from jupyter_gpu.adapters.device_files import users_of

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


def test_b74_a_worker_whose_kernel_is_dead_is_an_orphan(devices, program):
    kernel = program(ORPHAN, arguments=(devices / "nvidia0",))
    worker = int(kernel.read())
    kernel.process.wait(timeout=10)
    (user,) = users_of({0: 0}, folder=str(devices))
    assert (user.pid, user.orphan) == (worker, True)


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
