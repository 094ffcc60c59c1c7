"""Kernels for tests: what one sees of its devices, and starting one as front ends do.

Most Jupyter front ends hold a kernel through jupyter_client; VS Code, Zed and others start the
``argv`` of kernel.json themselves. ``Kernel`` is a client of either, ``start_argv`` the second way.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

import jupyter_gpu
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore

KERNELSPECS = Path(__file__).parent.parent / "kernelspecs"
START_SECONDS = 60
REPLY_SECONDS = 30

SEE = """
import json, os
NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "JUPYTER_GPU_LEASE")
seen = {name: os.environ.get(name) for name in NAMES} | {"pid": os.getpid()}
"""
# A cell that leaves what it sees in a file, and runs until it is told to end.
SEE_AND_WAIT = (
    SEE
    + """
import pathlib, time
folder = pathlib.Path(%r)
(folder / "next").write_text(json.dumps(seen))
(folder / "next").rename(folder / "seen.json")
deadline = time.monotonic() + 60
while not (folder / "end").exists() and time.monotonic() < deadline:
    time.sleep(0.005)
"""
)


def leases():
    """Every lease of this environment's lease directory, as its readers see them."""
    return _holdings().leases


def queue():
    """Everybody who waits for a device now."""
    return _holdings().waiters


def keepers(lease):
    """The processes whose own descriptors keep a lease alive."""
    with _store() as store:
        return [process.pid for process in store.kept_by(lease.record.id)]


def _holdings():
    with _store() as store:
        return store.holdings()


def _store():
    return LeaseStore(find_place(os.environ, simulated=is_simulated(os.environ)))


def free_count():
    """How many devices can be leased at this moment, by leasing them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for count in range(len(jupyter_gpu.inventory().devices), 0, -1):
            try:
                with jupyter_gpu.acquire(count):
                    return count
            except jupyter_gpu.NoDeviceAvailable:
                continue
    return 0


def require_leased(seen, indices):
    """Check that a kernel that saw this holds exactly these devices, and that others cannot."""
    total = len(jupyter_gpu.inventory().devices)
    (lease,) = leases()
    assert lease.record.id == seen["JUPYTER_GPU_LEASE"]
    assert lease.record.indices == indices
    assert lease.record.owner.kind == "kernel"
    assert seen["pid"] in lease.pids
    assert seen["pid"] in keepers(lease)
    assert seen["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, indices))
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert free_count() == total - len(indices)


def wait_for_file(path, process=None, within=START_SECONDS):
    """What a JSON file says, as soon as it is there; fails when the process ends without it."""
    deadline = time.monotonic() + within
    while not path.exists():
        if process is not None and process.poll() is not None and not path.exists():
            pytest.fail(f"ended with {process.returncode} and left no {path.name}")
        if time.monotonic() > deadline:
            pytest.fail(f"no {path.name} within {within} s")
        time.sleep(0.005)
    return json.loads(path.read_text(encoding="utf-8"))


class Kernel:
    """A client of a running kernel, by its connection file."""

    def __init__(self, connection_file):
        self.client = BlockingKernelClient(connection_file=str(connection_file))
        self.client.load_connection_file()
        self.client.start_channels()

    def wait_until_ready(self):
        self.client.wait_for_ready(timeout=START_SECONDS)
        return self

    def run(self, code, **options):
        """Run code and return what it printed: (standard output, standard error)."""
        printed = {"stdout": [], "stderr": []}

        def gather(message):
            if message["msg_type"] == "stream":
                printed[message["content"]["name"]].append(message["content"]["text"])

        reply = self.client.execute_interactive(
            code, output_hook=gather, timeout=REPLY_SECONDS, allow_stdin=False, **options
        )
        if reply["content"]["status"] != "ok":
            pytest.fail(f"{code!r} gave {reply['content']}")
        return "".join(printed["stdout"]), "".join(printed["stderr"])

    def see(self):
        """What the kernel sees of its devices."""
        return json.loads(self.run(f"{SEE}print(json.dumps(seen))")[0])

    def close(self):
        self.client.stop_channels()
        self.client.context.term()


class StartedByArgv(Kernel):
    """A kernel whose process the front end has started itself."""

    def __init__(self, process, connection_file, stderr):
        self.process, self.stderr = process, stderr
        super().__init__(connection_file)

    def said(self):
        """What has come out of its standard error, as on the front end's terminal."""
        return self.stderr.read_text(encoding="utf-8")

    def wait_until_ready(self):
        # On a busy machine the client takes a late heartbeat for the kernel's end.
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return super().wait_until_ready()
            except RuntimeError as error:
                if self.process.poll() is None and time.monotonic() < deadline:
                    continue
                ended = self.process.poll()
                pytest.fail(f"{error}; the process ended with {ended}:\n{self.said()}")

    def shut_down(self):
        """End it as front ends do, and return its exit status."""
        self.client.shutdown()
        return self.process.wait(timeout=REPLY_SECONDS)

    def close(self):
        self.process.kill()
        self.process.wait(timeout=REPLY_SECONDS)
        super().close()


def argv_of(name, connection_file, *, put="-f X", options=(), run=None):
    """The command of a kernelspec as a front end starts it.

    ``put`` is how it gives the connection file: in its place, or last in one word as VS Code does.
    ``run`` is what Python runs instead of the wrapper's module.
    """
    argv = json.loads((KERNELSPECS / name / "kernel.json").read_text(encoding="utf-8"))["argv"]
    assert argv[0] == "python"
    assert argv[-2:] == ["-f", "{connection_file}"]
    assert argv[1:3] == ["-m", "jupyter_gpu.kernel"]
    argv[:3] = [sys.executable, *(run or argv[1:3])]
    if put == "-f X":
        argv[-2:] = [*options, "-f", str(connection_file)]
    else:
        argv[-2:] = [*options, put.replace("X", str(connection_file))]
    return argv


def start_argv(folder, name="pytorch-1gpu", *, put="-f X", options=(), run=None, environ=None):
    """Start a kernel by the ``argv`` of kernel.json; returns the process, not yet ready."""
    number = len(list(folder.glob("kernel-*.json")))
    kernel_id = f"0000000{number}-0000-4000-8000-000000000000"
    file, _ = write_connection_file(str(folder / f"kernel-{kernel_id}.json"), key=b"secret")
    stderr = folder / f"stderr-{number}"
    with stderr.open("wb") as sink:
        process = subprocess.Popen(
            argv_of(name, file, put=put, options=options, run=run),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            env={**os.environ, **(environ or {})},
            cwd=folder,
            start_new_session=True,
        )
    return process, Path(file), stderr
