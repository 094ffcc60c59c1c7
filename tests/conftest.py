"""What every test has: a clean environment, a lease directory of its own, and no lease left after.

Fixtures that others may use: ``lease_directory``, ``simulate``, ``eight_gpus``, ``program``,
``eventually``.
"""

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

pytest.register_assert_rewrite("situations", "kernels", "cell_kernel")

from jupyter_gpu.adapters import locks, processes  # noqa: E402 - after the path is set
from jupyter_gpu.adapters.machine import find_machine  # noqa: E402
from jupyter_gpu.core.layout import Range  # noqa: E402

if (TESTS / "doubles" / "fixtures.py").exists():
    pytest_plugins = ["doubles.fixtures"]

FOREIGN_VARIABLES = ("CUDA_", "NVIDIA_", "SLURM_", "JUPYTER_", "JPY_", "IPYTHON")
WHOLE_FILE = Range(0, (1 << 63) - 1)
PATIENCE_SECONDS = 10.0


def poll(condition, *, within=PATIENCE_SECONDS, every=0.005):
    """Look until the condition is true, and return what it gave; fail at the deadline."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within} s: {condition}")
        time.sleep(every)


@pytest.fixture(scope="session", autouse=True)
def _a_clean_session():
    """Drop what the terminal or the job that runs the tests has set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN_VARIABLES)]:
            patch.delenv(name)
        yield


@pytest.fixture
def lease_directory():
    """A place for leases that does not exist yet, in a folder that other users can traverse."""
    parent = Path(tempfile.mkdtemp(prefix="jupyter-gpu-test-"))
    parent.chmod(0o755)
    yield parent / "leases"
    shutil.rmtree(parent, ignore_errors=True)


@pytest.fixture(autouse=True)
def _a_clean_environment(monkeypatch, lease_directory, tmp_path_factory):
    """Give each test its own places, and check that no lease is left in them."""
    for name in [name for name in os.environ if name.startswith(FOREIGN_VARIABLES)]:
        monkeypatch.delenv(name)
    own = lease_directory.parent
    monkeypatch.setenv("JUPYTER_GPU_LEASE_DIR", str(lease_directory))
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(own / f"jupyter-{name.lower()}"))
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "1")
    monkeypatch.setenv("IPYTHONDIR", str(own / "ipython"))
    yield
    left = leases_left(lease_directory / "lock")
    assert left == [], f"a test has left leases: {left}"


def leases_left(lock, within=3.0):
    """Return what is still locked after a moment in which ending processes may end."""
    deadline = time.monotonic() + within
    while left := _locked(lock):
        if time.monotonic() > deadline:
            break
        gc.collect()  # a lease that is only forgotten yet
        time.sleep(0.01)
    return left


def _locked(lock):
    try:
        if not stat.S_ISREG(lock.lstat().st_mode):
            return []
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        if locks.supported(fd) and locks.first_lock(fd, WHOLE_FILE) is not None:
            holders = processes.holders_of(os.fstat(fd), WHOLE_FILE)
            return [f"{found} held by {holders}" for found in locks.locked_ranges(fd, WHOLE_FILE)]
        return []
    finally:
        os.close(fd)


@pytest.fixture
def needs_root():
    """Skip a test that needs several users where there is only one, except in CI."""
    if getattr(os, "getuid", lambda: 1)() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI runs these tests as root: they need processes of several users")
        pytest.skip("needs root, for processes of several users")


@pytest.fixture
def simulate(monkeypatch, tmp_path_factory):
    """Put a simulated machine in place: ``simulate("8xH200")``, or a description as a dict.

    Returns its inventory. Calling it again changes the machine under whoever uses it, in one step.
    """
    folder = tmp_path_factory.mktemp("machine")
    folder.chmod(0o755)

    def put(description):
        if isinstance(description, dict):
            path = folder / "machine.json"
            (folder / "next").write_text(json.dumps(description), encoding="utf-8")
            (folder / "next").replace(path)
            description = str(path)
        monkeypatch.setenv("JUPYTER_GPU_SIMULATE", description)
        with find_machine(os.environ) as machine:
            return machine.read()

    return put


@pytest.fixture
def eight_gpus(simulate):
    """The inventory of a simulated machine with eight GPUs, which is in place."""
    return simulate("8xH200")


@pytest.fixture
def eventually():
    """A function that looks until a condition is true: ``eventually(lambda: …, within=10)``."""
    return poll


# Becomes another user after everything is imported: the interpreter may stand where only root
# can go. Then /proc shows the process as that user's, as it does one that was started by them.
BECOME = """
import codecs, ctypes, json, os, random, secrets, shutil, subprocess, tempfile, traceback
import jupyter_gpu.allocator, jupyter_gpu.adapters.nvml, jupyter_gpu.adapters.simulated
for name in ("ascii", "latin-1", "utf-8"):
    codecs.lookup(name)
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE
"""


class Program:
    """A Python program in a process of its own that one talks with, line by line.

    ``code`` is its text, or the Path of its file. It leads a session: its children end with it.
    With a ``uid`` the process is that user's, for which this one must be root.
    """

    def __init__(self, code, *, environ=None, pass_fds=(), uid=None, arguments=()):
        environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), **(environ or {})}
        if uid is not None:
            code = BECOME.format(uid=uid) + code
        how = [str(code)] if isinstance(code, Path) else ["-c", code]
        self._said = b""
        self.process = subprocess.Popen(
            [sys.executable, "-u", *how, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=pass_fds,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def read(self):
        """The next line that it prints; fails when it ends, or takes too long, without."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\n" not in self._said:
            output = self.process.stdout
            if not select.select([output], [], [], max(0, deadline - time.monotonic()))[0]:
                pytest.fail(f"the program said nothing more than {self._said}")
            piece = os.read(output.fileno(), 65536)
            if not piece:
                pytest.fail(f"the program ended with {self.process.wait()} and said {self._said}")
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def tell(self, line):
        """Send a line and return the next one that it prints."""
        self.send(line)
        return self.read()

    def send(self, line):
        self.process.stdin.write(f"{line}\n".encode())

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def end(self):
        """Close its input and wait; returns its status."""
        self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def program():
    """Start Python programs that end with the test: ``program(code, uid=65534, …)``."""
    started = []

    def start(code, **options):
        started.append(Program(code, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()
