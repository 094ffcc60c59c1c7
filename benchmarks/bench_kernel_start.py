"""How much later a kernel answers because it comes with GPUs.

From the start of the kernel to the reply to its first cell, in one process that starts kernel after
kernel, as a server does: the kernelspec "PyTorch (1 GPU)" with its provisioner and wrapper; the
wrapper alone, as front ends start it that know no provisioners; and ipykernel's own kernelspec with
jupyter_client's own provisioner. ZeroMQ tries again every millisecond instead of every 100 ms to
reach a kernel that is still starting, so that the rhythm of its attempts does not hide the kernel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pairs

PLAIN = "ipykernel, LocalProvisioner"
OURS = "PyTorch (1 GPU), gpu-provisioner"
WRAPPER = "the wrapper without provisioner"
GOAL_MS = 25
_NAMES = {PLAIN: "plain", OURS: "pytorch-1gpu", WRAPPER: "wrapper"}


def write_kernelspecs(folder: Path) -> Path:
    """Write the three kernelspecs into a folder and return it."""
    from ipykernel.kernelspec import get_kernel_dict

    ours = json.loads((pairs.ROOT / "kernelspecs/pytorch-1gpu/kernel.json").read_text())
    alone = {**ours, "metadata": {k: v for k, v in ours["metadata"].items() if k != "kernel_provisioner"}}
    for name, spec in (("plain", get_kernel_dict()), ("pytorch-1gpu", ours), ("wrapper", alone)):
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.json").write_text(json.dumps(spec))
    return folder


class Starter:
    """Starts kernels of one folder of kernelspecs; ``close`` it."""

    def __init__(self, folder: Path) -> None:
        import zmq
        from jupyter_client.kernelspec import KernelSpecManager

        self._specs = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
        self._context = zmq.Context()
        self._context.setsockopt(zmq.RECONNECT_IVL, 1)

    def first_reply_ms(self, name: str) -> float:
        """Start a kernel, run a cell, and return the milliseconds until its reply."""
        from jupyter_client import KernelManager

        manager = KernelManager(
            kernel_name=name, kernel_spec_manager=self._specs, context=self._context
        )
        began = time.perf_counter()
        manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = manager.blocking_client()
            client.start_channels()
            request = client.execute("1 + 1", store_history=False)
            while True:
                message = client.get_shell_msg(timeout=60)
                if message["parent_header"].get("msg_id") == request:
                    break
            took = time.perf_counter() - began
            client.stop_channels()
        finally:
            manager.shutdown_kernel(now=True)
        assert message["content"]["status"] == "ok", message["content"]
        return took * 1000

    def close(self) -> None:
        self._context.destroy(linger=0)


def run(rounds: int, environment: Mapping[str, str], where: str) -> pairs.Report:
    """Measure; ``environment`` tells the kernels and the provisioner what machine this is."""
    report = pairs.Report("kernel_start", where)
    folder = Path(tempfile.mkdtemp(prefix="jupyter-gpu-bench-"))
    before = dict(os.environ)
    places = {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_GPU_LEASE_DIR": str(folder / "leases"),
        "JUPYTER_NO_CONFIG": "1",
    }
    try:
        changed = pairs.child_environment(**places, **environment)
        os.environ.clear()
        os.environ.update(changed)
        starter = Starter(write_kernelspecs(folder / "kernels"))
        first_ms = starter.first_reply_ms("pytorch-1gpu")
        kernels = {
            label: lambda name=name: starter.first_reply_ms(name)
            for label, name in (*_NAMES.items(), (PLAIN + pairs.AGAIN, "plain"))
        }
        samples = pairs.take_turns(kernels, rounds)
        starter.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
    report.compare(
        "start of a kernel to its first reply, in a running server",
        samples, OURS, PLAIN, pairs.Goal("difference", GOAL_MS),
    )  # fmt: skip
    report.compare(
        "the same without the provisioner, the wrapper leasing by itself",
        samples, WRAPPER, PLAIN, pairs.Goal("difference", GOAL_MS),
    )  # fmt: skip
    report.alone("the very first kernel of a server, its imports included", [first_ms])
    return report


def main() -> int:
    parser = pairs.options(__doc__.partition("\n")[0], pairs=60)
    arguments = parser.parse_args()
    report = run(arguments.pairs, {"JUPYTER_GPU_SIMULATE": "8xH200"}, "simulated 8xH200")
    report.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
