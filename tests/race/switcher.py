"""A server whose kernel changes its devices again and again, and is killed in the middle of it.

Kernels are forked, so that hundreds fit into a test. Each reports, as contenders do (see
contender.py), what it surely has: from after a change until before the next one. The time before
each kill is written into a file of the kernel's name with ``.killed`` behind it.
"""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from contender import Reporter

from jupyter_gpu import GPUError
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.renewal import renew
from jupyter_gpu.switch import Switch


def be_a_kernel(folder, name, lease, chance):
    """Change devices until killed."""
    os.environ.update(lease.environment)
    reporter = Reporter(folder, name)
    owner = Owner("kernel", processes=(reference(os.getpid()),))
    while True:
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        if value != "-1":
            reporter.tell("H", value)
        time.sleep(chance.random() * 0.003)
        if value != "-1":
            reporter.tell("D", value)
        switch = Switch(Request(chance.randint(0, 3), wait_seconds=0), owner, os.environ)
        assert switch.own is not None, "the kernel's own lease is found by its descriptor"
        try:
            switch.put(switch.now(), os.environ)
        except GPUError:
            reporter.tell("R")


def run_kernel(folder, name, lease, chance):
    """Fork a kernel, let it live for a moment, and kill it whatever it does."""
    pid = os.fork()
    if pid == 0:
        try:
            be_a_kernel(folder, name, lease, chance)
        except BaseException:
            traceback.print_exc()
        finally:
            (folder.parent / "failed").touch()
            os._exit(70)
    lease.describe(lambda owner: Owner("kernel", processes=(reference(pid),), keeper=owner.keeper))
    time.sleep(chance.random() * 0.03)
    report = next(iter(folder.glob(f"{name}-{pid}-*")), None)
    moment = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if report is not None:
        (folder.parent / f"{report.name}.killed").write_text(str(moment))


def main():
    folder, number, kernels = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(number)
    owner = Owner("kernel", keeper=reference(os.getpid()))
    request = Request(1, wait_seconds=60)
    with acquire_now(Acquisition(request, owner, os.environ)) as lease:
        for one in range(kernels):
            renew(lease, os.environ, "auto")
            run_kernel(folder, f"s{number}k{one}", lease, random.Random(chance.random()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
