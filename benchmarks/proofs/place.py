"""The machine under test: its cards, its leases, and the places that the proofs use."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pairs

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.nvml import NVMLMachine
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import NoDeviceAvailable
from jupyter_gpu.core.leases import Lease
from proofs.kernel_server import Server

KERNELSPECS = ("pytorch-1gpu", "pytorch-2gpus", "pytorch-cpu")
AT_ONCE = "-at-once"
_MARGIN_BYTES = 64 * 2**20


class Workplace:
    """One machine and a lease directory, kernelspecs and settings of our own; ``close`` it.

    It sets this process's environment, which its children get.
    """

    def __init__(self) -> None:
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = Path(tempfile.mkdtemp(prefix="jupyter-gpu-proofs-", dir=parent))
        self._machine = NVMLMachine()
        environment = pairs.child_environment(
            JUPYTER_GPU_LEASE_DIR=str(self.folder / "leases"),
            JUPYTER_PATH=str(self.folder / "share"),
            JUPYTER_RUNTIME_DIR=str(self.folder / "runtime"),
            IPYTHONDIR=str(self.folder / "ipython"),
            JUPYTER_NO_CONFIG="1",
        )
        environment["PYTHONPATH"] += os.pathsep + str(pairs.ROOT / "benchmarks")
        os.environ.clear()
        os.environ.update(environment)
        self._write_kernelspecs()
        self.inventory = self.read()
        self.gpus = self.inventory.gpus
        self._idle_bytes = {gpu.uuid: self.used_bytes(gpu.uuid) for gpu in self.gpus}

    def close(self) -> None:
        self._machine.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_kernelspecs(self) -> None:
        """Write the project's kernelspecs where this Jupyter looks, and some that do not wait."""
        for name in KERNELSPECS:
            spec = json.loads((pairs.ROOT / "kernelspecs" / name / "kernel.json").read_text())
            self._write_kernelspec(name, spec)
            spec["metadata"]["kernel_provisioner"]["config"]["wait"] = 0
            self._write_kernelspec(name + AT_ONCE, spec)

    def _write_kernelspec(self, name: str, spec: dict) -> None:
        folder = self.folder / "share" / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(spec))

    def add_kernelspec(self, name: str, config: dict) -> None:
        """Write a kernelspec of PyTorch with these options."""
        spec = json.loads((pairs.ROOT / "kernelspecs" / KERNELSPECS[0] / "kernel.json").read_text())
        spec["argv"] = [word for word in spec["argv"] if not word.startswith("--gpus")]
        spec["metadata"]["kernel_provisioner"]["config"] = config
        self._write_kernelspec(name, spec)

    def topology(self):
        return self._machine.topology()

    @staticmethod
    def command_of(pid: int) -> str:
        """Return a process by its name, where it can be seen from here."""
        return os.path.basename((processes.command_line(pid) or "unseen").split(" ")[0])

    def server(self) -> Server:
        return Server(os.environ)

    def read(self):
        return self._machine.read(sensors=False)

    def used_bytes(self, uuid: str) -> int:
        device = self.read().find(uuid)
        return device.memory_used_bytes or 0

    def is_clear(self, uuid: str) -> bool:
        """Return whether no more memory is used than when we came."""
        return self.used_bytes(uuid) < self._idle_bytes[uuid] + _MARGIN_BYTES

    def named_pids(self, uuid: str) -> list[int]:
        return [process.pid for process in self.read().find(uuid).processes]

    def lease_of(self, kernel: str) -> Lease | None:
        """Return the lease of a kernel, by its kernel id."""
        with self.store() as store:
            leases = store.holdings().leases
        return next((one for one in leases if one.record.owner.kernel_id == kernel), None)

    def store(self) -> LeaseStore:
        return LeaseStore(find_place(os.environ, simulated=False))

    def locks_supported(self) -> bool:
        with LeaseStore(find_place(os.environ, simulated=False), write=True) as store:
            return store.supported

    def is_free(self, uuid: str) -> bool:
        with self.store() as store:
            return store.is_free((), uuid)

    def refusal(self, uuid: str) -> str | None:
        """Ask once for a device: the words of the refusal, or None when it was given."""
        import jupyter_gpu

        try:
            jupyter_gpu.acquire(1, devices=[uuid], wait=0).release()
        except NoDeviceAvailable as error:
            return str(error)
        return None


def lives(pid: int) -> bool:
    """Return whether a process still runs; one that only waits to be reaped does not."""
    info = processes.look(pid)
    return info is not None and info.state not in "ZX"


def ms_since(when: float) -> float:
    return round((time.monotonic() - when) * 1000, 1)


def until(condition: Callable[[], object], within: float, every: float = 0.002) -> float:
    """Look until a condition is true, and return when it was; fails at the deadline."""
    deadline = time.monotonic() + within
    for now in _ticks(every):
        if condition():
            return now
        if now > deadline:
            raise TimeoutError(f"not within {within} s: {condition.__qualname__}")
    raise AssertionError("time does not end")


def _ticks(every: float) -> Iterator[float]:
    while True:
        yield time.monotonic()
        time.sleep(every)
