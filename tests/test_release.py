"""The command that ends what is left behind: it shows, asks, ends, and says what is free."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from conftest import BECOME
from support_cli import command, finish, gpu, gpu_json

import jupyter_gpu
from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.place import furnish
from jupyter_gpu.faces.commands.command import Options
from jupyter_gpu.faces.commands.release import Release

pytestmark = [
    pytest.mark.usefixtures("eight_gpus"),
    pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's"),
]

DYING = """
import os, signal, sys
import jupyter_gpu
held = jupyter_gpu.acquire(int(sys.argv[1]))
if len(sys.argv) > 3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pids = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pids.append(pid)
print(held.id, *pids, flush=True)
os._exit(0)
"""
ORPHANING = """
import os, signal, sys
held = open(sys.argv[1])
pid = os.fork()
if pid == 0:
    signal.pause()
print(pid, flush=True)
os._exit(0)
"""


@pytest.fixture
def dead_kernel(program):
    """A function: a kernel on so many GPUs has ended; returns its lease's id and its workers."""

    def start(gpus=1, workers=1, *more, **options):
        kernel = program(DYING, arguments=(gpus, workers, *more), **options)
        lease_id, *pids = kernel.read().split()
        kernel.process.wait(timeout=10)
        return lease_id, [int(pid) for pid in pids]

    return start


def is_gone(pid):
    info = processes.look(pid)
    return info is None or info.state == "Z"


def test_nothing_to_release_says_so_and_is_no_mistake(capsys):
    assert gpu(capsys, "release") == (0, "Nothing is left behind\n", "")
    assert gpu(capsys, "release", "3", "--yes") == (0, "Nothing is left behind\n", "")
    answer = gpu_json(capsys, "release")
    assert answer == {"schema": 1, "released": [], "left": []}


def test_b74_with_yes_it_ends_them_and_says_what_is_free(capsys, dead_kernel):
    _, workers = dead_kernel(2, 2)
    code, out, err = gpu(capsys, "release", "--yes")
    assert (code, out, err) == (0, "2 processes ended; GPU 0, GPU 1 are free\n", "")
    assert all(map(is_gone, workers))
    assert gpu_json(capsys, "who")["leases"] == []


def test_its_json_is_what_is_released(capsys, dead_kernel):
    lease_id, (worker,) = dead_kernel(2)
    answer = gpu_json(capsys, "release", "--yes")
    (row,) = answer["released"]
    assert row.keys() == {"pid", "user", "command", "lease", "indices", "signal"}
    assert (row["pid"], row["lease"], row["indices"]) == (worker, lease_id, [0, 1])
    assert (row["user"], row["signal"]) == (processes.user_name(os.getuid()), "TERM")
    assert answer["left"] == []


def test_without_a_terminal_it_shows_them_and_needs_yes(capsys, dead_kernel):
    _, (worker,) = dead_kernel()
    code, out, err = gpu(capsys, "release")
    assert code == 2
    assert out.startswith("1 process left behind on GPU 0\n")
    assert f" {worker} " in out
    assert err == (
        "jupyter gpu: Nothing is ended: without a terminal to ask on, that needs --yes\n"
    )
    assert gpu(capsys, "release", "--json")[:2] == (2, "")
    assert not is_gone(worker)


def test_a_lease_in_use_is_never_touched(capsys):
    with jupyter_gpu.acquire(1) as held:
        for what in ("0", held.devices[0].uuid, held.id):
            code, out, err = gpu(capsys, "release", what, "--yes")
            assert (code, err) == (0, "")
            said = " ".join(out.split())
            assert said.startswith(f"Nothing can be released GPU 0: not ended: {os.getpid()} of ")
            assert "is active: end that program" in said
        (row,) = gpu_json(capsys, "release", "0", "--yes")["left"]
        assert row.keys() == {"pid", "user", "command", "why", "indices"}
        assert (row["pid"], row["indices"]) == (os.getpid(), [0])
        assert gpu(capsys, "release", "--yes")[1] == "Nothing is left behind\n"
        assert len(gpu_json(capsys, "who")["leases"]) == 1


def test_what_is_named_alone_is_ended(capsys, dead_kernel):
    first, (one,) = dead_kernel()
    _, (two,) = dead_kernel()
    answer = gpu_json(capsys, "release", "1", "--yes")
    assert [row["pid"] for row in answer["released"]] == [two]
    assert not is_gone(one)
    assert gpu(capsys, "release", first, "--yes")[1] == "1 process ended; GPU 0 is free\n"
    assert is_gone(one)


@pytest.mark.parametrize("what", ["8", "GPU-", "nothing"])
def test_what_means_nothing_is_wrong_usage(capsys, what):
    code, out, err = gpu(capsys, "release", what)
    assert (code, out) == (2, "")
    assert what in err


def test_one_that_does_not_end_when_asked_is_killed_and_that_is_said(capsys, dead_kernel):
    _, (worker,) = dead_kernel(1, 1, "deaf")
    code, out, err = gpu(capsys, "release", "--yes")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1 process ended; GPU 0 is free",
        f"Killed, because they did not end when asked: {worker}",
    ]


def test_an_orphan_that_has_a_device_open_is_ended(capsys, program, tmp_path):
    (tmp_path / "nvidia3").touch()
    kernel = program(ORPHANING, arguments=(tmp_path / "nvidia3",), environ={"JPY_PARENT_PID": "1"})
    worker = int(kernel.read())
    kernel.process.wait(timeout=10)
    options = Options(json=False, yes=True, what=[])
    assert Release(str(tmp_path)).run(options, None) == 0
    assert capsys.readouterr().out == "1 process ended; GPU 3 is free\n"
    assert is_gone(worker)


def test_another_users_leftovers_are_neither_shown_nor_ended(
    dead_kernel, program, needs_root, lease_directory
):
    lease_directory.mkdir()
    furnish(lease_directory)
    _, (worker,) = dead_kernel(uid=12001)
    ben = program(PERSON, arguments=[12002])
    assert ben.tell("release --yes") == "0 Nothing is left behind"
    assert ben.tell("release 0 --yes") == (
        "0 Nothing can be released GPU 0: not ended: a process of 12001: only 12001 and root may "
        "look at it: sudo jupyter gpu release"
    )
    assert not is_gone(worker)
    ada = program(PERSON, arguments=[12001])
    assert ada.tell("release --yes") == "0 1 process ended; GPU 0 is free"
    assert is_gone(worker)


def test_one_that_may_not_be_ended_is_left_and_is_a_failure(program, needs_root, lease_directory):
    """A worker that has gained rights: it is Ada's to look at, and not Ada's to end."""
    lease_directory.mkdir()
    furnish(lease_directory)
    become = BECOME.format(uid=12001)
    partly = become.replace("setresuid(12001, 12001, 12001)", "setresuid(0, 12001, 0)")
    assert partly != become
    kernel = program(partly + DYING, arguments=(1, 1))
    _, worker = kernel.read().split()
    kernel.process.wait(timeout=10)
    said = program(PERSON, arguments=[12001]).tell("release --yes")
    assert said.startswith("1 No process has ended GPU 0: 12001 (")
    assert f"draining) GPU 0: not ended: {worker} of 12001 (" in said
    assert said.endswith(": this user may not end it")
    assert not is_gone(int(worker))


# A first call imports what the next ones need, which are made as another user.
PERSON = """
import contextlib, io, os, sys
from jupyter_gpu.cli import main
def said(words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    return f"{code} {' '.join(out.getvalue().split())}"
assert "no device 99" in said(["release", "99"])
assert said(["release", "7"]) == "0 Nothing is left behind"
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
for line in sys.stdin:
    print(said(line.split()), flush=True)
"""


def test_where_nothing_is_leased_nothing_can_be_released(capsys, monkeypatch):
    monkeypatch.setattr(locks, "possible", lambda: False)
    code, out, err = gpu(capsys, "release")
    assert (code, out) == (1, "")
    assert "no leases on this system" in err


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *words):
        self._main, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*words), stdin=theirs, stdout=theirs, stderr=theirs, cwd="/", bufsize=0,
            start_new_session=True, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        os.close(theirs)
        self.said = ""

    def read_until(self, words):
        deadline = time.monotonic() + 20
        while words not in self.said:
            assert select.select([self._main], [], [], max(0, deadline - time.monotonic()))[0], (
                self.said
            )
            self._read()
        return self.said

    def _read(self):
        self.said += os.read(self._main, 4096).decode().replace("\r\n", "\n")

    def type(self, words):
        os.write(self._main, words.encode())

    def end(self):
        """Read to the end; returns the exit code."""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while True:
                self._read()
        return self.process.wait(timeout=10)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(timeout=10)
        os.close(self._main)


@pytest.fixture
def terminal():
    started = []

    def start(*words):
        started.append(Terminal(*words))
        return started[-1]

    yield start
    for one in started:
        one.close()


class TestQuestion:
    """On a terminal it asks, and only yes is yes."""

    @pytest.mark.parametrize("yes", ["y\n", "YES\n"])
    def test_it_shows_them_and_asks(self, terminal, dead_kernel, yes):
        lease_id, workers = dead_kernel(1, 2)
        asked = terminal("release")
        said = asked.read_until("End these 2 processes? [y/N] ")
        lines = said.splitlines()
        assert lines[0] == "2 processes left behind on GPU 0"
        assert all(f" {pid} " in said for pid in workers)
        assert lease_id in said
        assert not any(map(is_gone, workers))
        asked.type(yes)
        assert asked.end() == 0
        assert asked.said.endswith("2 processes ended; GPU 0 is free\n")
        assert all(map(is_gone, workers))

    @pytest.mark.parametrize("no", ["\n", "n\n", "yess\n", "\x04"])
    def test_anything_else_ends_nothing(self, terminal, dead_kernel, no):
        _, (worker,) = dead_kernel()
        asked = terminal("release")
        asked.read_until("End this process? [y/N] ")
        asked.type(no)
        assert asked.end() == 0
        assert asked.said.endswith("Nothing is ended\n")
        assert not is_gone(worker)

    def test_ctrl_c_ends_nothing(self, terminal, dead_kernel):
        _, (worker,) = dead_kernel()
        asked = terminal("release")
        asked.read_until("[y/N] ")
        asked.process.send_signal(signal.SIGINT)
        assert asked.end() == 130
        assert "Traceback" not in asked.said
        assert not is_gone(worker)

    def test_one_that_ends_before_the_answer_is_not_claimed(
        self, terminal, dead_kernel, eventually
    ):
        _, (worker,) = dead_kernel()
        asked = terminal("release")
        asked.read_until("[y/N] ")
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: is_gone(worker))
        asked.type("y\n")
        assert asked.end() == 0
        assert f"Had ended by themselves: {worker}\n" in asked.said

    def test_json_never_asks(self, terminal, dead_kernel):
        _, (worker,) = dead_kernel()
        asked = terminal("release", "--json")
        assert asked.end() == 2
        assert "y/N" not in asked.said
        assert not is_gone(worker)

    def test_where_only_the_answer_goes_elsewhere_it_asks_still(self, dead_kernel, tmp_path):
        """The question stands on standard error, so that a file gets what is left behind."""
        _, (worker,) = dead_kernel()
        main, theirs = pty.openpty()
        try:
            os.write(main, b"n\n")
            code, out, _ = finish("release", stdin=theirs, stderr=theirs)
            assert (code, "y/N" in out) == (0, False)
            assert out.startswith("1 process left behind")
            assert b"[y/N]" in os.read(main, 4096)
        finally:
            os.close(main)
            os.close(theirs)
        assert not is_gone(worker)
