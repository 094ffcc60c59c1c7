"""A fresh real kernel over the driver doubles, and what is shown under each of its cells."""

import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

STANDINS = Path(__file__).parent / "standins"
SECONDS = 60
# How the HTML of every view of ours begins.
_OURS = '<div class="jupyter-gpu"'


@dataclass
class Cell:
    """What one cell showed: our hints, its result, its streams, its error."""

    number: int | None = None
    hints: list = field(default_factory=list)
    result: str = ""
    printed: str = ""
    error: str = ""

    @property
    def hint(self):
        """The hints in one line of text."""
        return flat(" ".join(self.hints))

    @property
    def answer(self):
        """The result in one line of text."""
        return flat(self.result)


def flat(text):
    return " ".join(text.split())


class CellKernel:
    """A client of a kernel: ``run`` runs a cell and returns a Cell."""

    def __init__(self, manager):
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def restart(self):
        """Restart it as a front end does, and wait until it is there again."""
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code, **options):
        cell = Cell()

        def gather(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.printed += content["text"]
            elif kind == "display_data":
                data = content["data"]
                target = cell.hints if data.get("text/html", "").startswith(_OURS) else None
                if target is not None:
                    target.append(data["text/plain"])
                else:
                    cell.printed += data.get("text/plain", "")
            elif kind == "execute_result":
                cell.result = content["data"]["text/plain"]
            elif kind == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"

        reply = self.client.execute_interactive(
            code, output_hook=gather, timeout=SECONDS, allow_stdin=False, **options
        )
        cell.number = reply["content"].get("execution_count")
        return cell


def _provisioned_by_us(config):
    return {"kernel_provisioner": {"provisioner_name": "gpu-provisioner", "config": config}}


@contextlib.contextmanager
def kernel(double, *, standins=(), ours=(), environ=None, config=None):
    """Start a kernel on the machine of the double, and end it.

    ``standins`` are folders of tests/standins; ``ours`` the options of our wrapper, which leases,
    or None for a plain ipykernel that loads the extension. With ``config`` our provisioner starts it.
    """
    folders = [str(STANDINS / name) for name in ("driver", *standins)]
    environment = double.environment(
        JUPYTER_GPU_LEASE_DIR=os.environ["JUPYTER_GPU_LEASE_DIR"],
        PYTHONPATH=os.pathsep.join(folders),
        **(environ or {}),
    )
    plain = ("-m", "ipykernel_launcher", "--ext=jupyter_gpu")
    words = plain if ours is None else ("-m", "jupyter_gpu.kernel", *ours)
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(
        argv=[sys.executable, *words, "-f", "{connection_file}"],
        display_name="test",
        language="python",
        metadata={} if config is None else _provisioned_by_us(config),
    )
    manager.start_kernel(env=environment)
    try:
        made = CellKernel(manager)
        try:
            yield made
        finally:
            made.client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.term()
