"""Systems without our locks (macOS, Windows, some sandboxes): every kernel starts all the same.

A program that is such a system as far as Python code can tell: the name of the platform, and the
modules, functions and locks that it does not have. Jupyter itself is imported before, because it
picks its own ways by the platform that is really there.
"""

import json

import pytest
from kernels import StartedByArgv, start_argv

NOT_EXCLUSIVE = "These GPUs are not exclusive here: this system has no suitable locks."

IPYKERNEL = """
import debugpy.server, ipykernel.debugger, ipykernel.kernelapp, ipykernel.parentpoller
import platform as system
system.mac_ver = lambda: ("10.8", ("", "", ""), "")  # asked by ipykernel on macOS
"""
JUPYTER_CLIENT = """
import jupyter_client.provisioning, psutil, zmq
"""
ELSEWHERE = """
import errno, json, os, runpy, sys
import asyncio, ctypes.util, hashlib, importlib.metadata, multiprocessing, tempfile, zoneinfo
import pynvml
platform = sys.argv.pop(1)
if platform == "sandbox":
    import fcntl
    real = fcntl.fcntl
    def without_our_locks(fd, command, argument=0):
        if command in (36, 37):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, argument)
    fcntl.fcntl = without_our_locks
else:
    sys.platform = platform
    for module in ("fcntl", "pwd", "grp", "resource", "termios") if platform == "win32" else ():
        sys.modules[module] = None
    missing = {
        "darwin": ("pidfd_open", "sched_getaffinity", "posix_fallocate", "memfd_create"),
        "win32": (
            "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "fchmod",
            "fchown", "fork", "getpgid", "getsid", "getuid", "geteuid", "killpg", "mkfifo",
            "pidfd_open", "register_at_fork", "sched_getaffinity", "setsid", "statvfs", "uname",
        ),
    }
    for name in missing[platform]:
        if hasattr(os, name):
            delattr(os, name)
"""
# The wrapper, as the argv of a kernelspec starts it.
WRAPPER = (
    JUPYTER_CLIENT
    + IPYKERNEL
    + ELSEWHERE
    + """
import jupyter_gpu.kernel
jupyter_gpu.kernel.main()
"""
)
ACQUIRE = (
    ELSEWHERE
    + """
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
request = Request.parse(json.loads(sys.argv[1]))
with acquire_now(Acquisition(request, Owner("kernel"), os.environ)) as lease:
    told = {"indices": [device.index for device in lease.devices], "caution": lease.caution}
    told |= {"exclusive": lease.exclusive, "environment": lease.environment}
    told |= {"pass_fds": list(lease.pass_fds), "id": lease.id}
print(json.dumps(told))
"""
)
PROVISION = (
    JUPYTER_CLIENT
    + ELSEWHERE
    + """
from jupyter_client import KernelManager
from jupyter_gpu.faces.refused import KernelRefused
from jupyter_gpu.provisioner import GPUProvisioner
async def life():
    manager = KernelManager(kernel_name="python3")
    given = json.loads(sys.argv[1])
    provisioner = GPUProvisioner(
        parent=manager, kernel_id="a", kernel_spec=manager.kernel_spec, **given
    )
    try:
        prepared = await provisioner.pre_launch(env=dict(os.environ))
    except KernelRefused as error:
        return {"refused": str(error)}
    await provisioner.cleanup()
    manager.cleanup_connection_file()
    names = ("CUDA_VISIBLE_DEVICES", "JUPYTER_GPU_NOTICE", "JUPYTER_GPU_LEASE")
    return {name: prepared["env"].get(name) for name in names} | {"fds": prepared["pass_fds"]}
print(json.dumps(asyncio.run(life())))
"""
)
STATUS = (
    ELSEWHERE
    + """
import jupyter_gpu, jupyter_gpu.overview
overview = jupyter_gpu.overview.read_overview(os.environ)
told = {"devices": len(overview.inventory.devices), "exclusive": overview.leasing.exclusive}
told |= {"problem": overview.leasing.problem, "visible": jupyter_gpu.visible("1").cuinit}
print(json.dumps(told))
"""
)


@pytest.fixture(params=["darwin", "win32", "sandbox"])
def platform(request):
    return request.param


@pytest.fixture(autouse=True)
def _four_gpus(simulate):
    simulate("4xH200")


@pytest.fixture
def elsewhere(platform, program):
    """Run code on such a system; returns what it prints, which is JSON."""

    def run(code, *arguments, environ=None):
        words = (platform, *map(json.dumps, arguments))
        return json.loads(program(code, arguments=words, environ=environ).read())

    return run


def test_devices_are_chosen_and_not_leased(elsewhere):
    assert elsewhere(ACQUIRE, {"gpus": 2}) == {
        "indices": [0, 1],
        "exclusive": False,
        "environment": {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        },
        "caution": NOT_EXCLUSIVE,
        "pass_fds": [],
        "id": None,
    }


@pytest.mark.parametrize(
    ("request_", "environ", "sentence"),
    [
        ({"gpus": 5}, {}, "this machine has 4 GPUs"),
        ({"gpus": 1, "model": "T4"}, {}, "this machine has 4 GPUs"),
        ({"gpus": 1}, {"JUPYTER_GPU_SIMULATE": ""}, "this machine has no GPU that can be seen"),
    ],
)
def test_where_none_can_be_chosen_the_kernel_sees_what_it_would_see_without_us(
    elsewhere, request_, environ, sentence
):
    told = elsewhere(ACQUIRE, request_, environ=environ)
    assert told["caution"].startswith("No GPU was chosen. ")
    assert sentence in told["caution"]
    assert told["caution"].endswith("Nothing is exclusive here: this system has no\nsuitable locks.")
    del told["caution"]
    assert told == {
        "indices": [],
        "exclusive": False,
        "environment": {},
        "pass_fds": [],
        "id": None,
    }


def test_no_gpu_asked_for_is_no_gpu_and_nothing_to_say(elsewhere):
    told = elsewhere(ACQUIRE, {"gpus": 0})
    assert told["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert told["caution"] is None


def test_the_provisioner_prepares_a_kernel_and_says_that_it_is_not_exclusive(elsewhere):
    assert elsewhere(PROVISION, {"gpus": 2}) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "JUPYTER_GPU_NOTICE": NOT_EXCLUSIVE,
        "JUPYTER_GPU_LEASE": None,
        "fds": [],
    }


def test_the_provisioner_prepares_a_kernel_where_there_is_no_gpu(elsewhere):
    told = elsewhere(PROVISION, {"gpus": 2}, environ={"JUPYTER_GPU_SIMULATE": ""})
    assert told["CUDA_VISIBLE_DEVICES"] is None
    assert "this machine has no GPU that can be seen" in told["JUPYTER_GPU_NOTICE"]


def test_a_wrong_option_is_refused_there_too(elsewhere):
    told = elsewhere(PROVISION, {"gpus": "many"})
    assert told["refused"].startswith("gpus: 'many' is not")


def test_the_machine_can_be_looked_at(elsewhere):
    told = elsewhere(STATUS)
    assert told["devices"] == 4
    assert told["visible"] == 0
    assert told["exclusive"] is False
    assert told["problem"].startswith("Not exclusive here")


def test_a_real_kernel_starts_by_the_wrapper_and_says_it_once(platform, tmp_path):
    runner = tmp_path / "elsewhere.py"
    runner.write_text(WRAPPER, encoding="utf-8")
    started = start_argv(tmp_path, "pytorch-2gpus", run=(str(runner), platform))
    kernel = StartedByArgv(*started)
    try:
        kernel.wait_until_ready()
        assert kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])") == (
            "0,1\n",
            f"{NOT_EXCLUSIVE}\n",
        )
        assert kernel.see()["JUPYTER_GPU_LEASE"] is None
        expected = "linux" if platform == "sandbox" else platform
        assert kernel.run("import sys; print(sys.platform)") == (f"{expected}\n", "")
        assert kernel.shut_down() == 0
    finally:
        kernel.close()
