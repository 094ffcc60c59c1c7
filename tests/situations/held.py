"""Section F: held GPUs, memory that is not freed."""

import os
import signal

import pytest
from doubles import gpu
from kernels import free_count, leases

import jupyter_gpu
from situations.rows import Row, shows

GIB = 2**30
FOUR = tuple(gpu(n) for n in range(4))
START_WORKER = """
import contextlib, os, signal, stat
worker = os.fork()
if worker == 0:
    os.setsid()
    # The kernel's ports are not for its worker to keep: the kernel that follows needs them.
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
    while True:
        signal.pause()
print(worker)
"""


def workers_of_a_killed_kernel_keep_its_devices(world):
    """Not given out while one of them lives."""
    world.simulate("4xH200")
    with world.kernel(ours=("--gpus=2",)) as kernel:
        worker = int(kernel.run(START_WORKER).printed)
        try:
            os.kill(kernel.pid, signal.SIGKILL)
            world.eventually(lambda: leases() and leases()[0].state == "draining")
            assert free_count() == 2
            with pytest.raises(jupyter_gpu.NoDeviceAvailable, match="draining"):
                jupyter_gpu.acquire(4)
        finally:
            os.kill(worker, signal.SIGKILL)
    world.eventually(lambda: free_count() == 4)


def a_restart_gets_the_same_devices(world):
    """Also where a process of the old kernel lingers, which is named."""
    world.simulate("4xH200")
    with world.provisioned(gpus=1) as kernel:
        (before,) = leases()
        worker = int(kernel.run(START_WORKER).printed)
        try:
            kernel.restart()
            (after,) = leases()
            assert after.record.uuids == before.record.uuids
            assert worker in after.pids
            assert "1 of 4 GPUs is yours" in kernel.run("%gpu").answer
        finally:
            os.kill(worker, signal.SIGKILL)


def memory_without_a_process(world):
    """Held, by whom cannot be seen; nothing is suggested that would not help."""
    full = gpu(0, memory_used_bytes=int(8.5 * GIB))
    world.double.write(full, *FOUR[1:])
    with world.kernel() as kernel:
        who, check = kernel.run("%gpu who").answer, kernel.run("%gpu check").answer
    assert "8.5 GiB" in who
    assert "no process that can be seen" in who
    assert "not visible from here" in check
    assert "empty_cache" not in who + check


def an_idle_kernel_is_called_idle(world):
    """Idle time per holder and owner."""
    world.simulate("4xH200")
    with world.idle_lease(hours=3, notebook="/home/alice/exp7.ipynb", indices=1):
        with world.kernel() as kernel:
            who, status = kernel.run("%gpu who").answer, kernel.run("%gpu").answer
    assert "exp7.ipynb" in who
    assert "idle 3 h" in who
    assert "idle 3 h" in status


def several_idle_kernels_are_told_apart(world):
    """Each with its owner and its own time."""
    world.simulate("4xH200")
    with (
        world.idle_lease(hours=3, notebook="/home/alice/exp7.ipynb", indices=1),
        world.idle_lease(hours=50, notebook="/home/bob/old.ipynb", indices=1),
        world.kernel() as kernel,
    ):
        answer = kernel.run("%gpu who").result
    (first,) = [line for line in answer.splitlines() if "exp7.ipynb" in line]
    (second,) = [line for line in answer.splitlines() if "old.ipynb" in line]
    assert "idle 3 h" in first
    assert "idle 2 days" in second


def a_worker_that_outlived_its_kernel_is_listed(world):
    """With its pid and its command, so that nobody needs lsof."""
    world.simulate("4xH200")
    with world.kernel(ours=("--gpus=1",)) as kernel:
        worker = int(kernel.run(START_WORKER).printed)
        try:
            os.kill(kernel.pid, signal.SIGKILL)
            world.eventually(lambda: leases() and leases()[0].state == "draining")
            with world.kernel() as other:
                assert str(worker) in other.run("%gpu who").answer
                check = other.run("%gpu check").answer
            assert str(worker) in check
            assert "jupyter_gpu.kernel" in check
        finally:
            os.kill(worker, signal.SIGKILL)
    world.eventually(lambda: free_count() == 4)


ROWS = (
    Row("B64", play=memory_without_a_process),
    Row("B69", play=workers_of_a_killed_kernel_keep_its_devices),
    Row("B70", play=a_restart_gets_the_same_devices),
    Row("B72", play=an_idle_kernel_is_called_idle),
    Row("B73", play=several_idle_kernels_are_told_apart),
    Row("B74", play=a_worker_that_outlived_its_kernel_is_listed),
    Row("B72", part="alone", cells=shows("%gpu who", "No GPU is leased")),
)
