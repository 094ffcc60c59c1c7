"""MPS: which daemon a share goes through, and one's own started, asked and stopped.

NVIDIA's program is played by a script of its name, whose daemon speaks through a socket and keeps
the pid file as the real one does. Its servers and clients are what a test writes beside that.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from jupyter_gpu.adapters import mps, surroundings
from jupyter_gpu.core.errors import GPUError

WAIT = "import sys; print('ready'); sys.stdin.read()"
NAME = "nvidia-cuda-mps-control"
FAKE = """#!{python} -IS
import json, os, socket, sys, time

pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
mood = os.environ.get("FAKE_MPS", "")
control, pid_file, state = (os.path.join(pipes, n) for n in ("control", "{name}.pid", "state"))


def connected():
    link = socket.socket(socket.AF_UNIX)
    link.connect(control)
    return link


def servers():
    try:
        return json.load(open(state))
    except (OSError, ValueError):
        return {{}}


def answer(words):
    if words[0] == "get_server_list":
        return "".join(pid + "\\n" for pid in servers())
    if words[0] == "get_client_list":
        return "".join(str(pid) + "\\n" for pid in servers().get(words[1], ()))
    return "" if words[0] == "quit" else "Unknown command\\n"


def serve(listener):
    quitting = None
    while quitting is None or (any(servers().values()) and time.monotonic() < quitting):
        listener.settimeout(None if quitting is None else 0.01)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            continue
        words = link.recv(4096).decode().split()
        if words[0] == "quit" and mood != "stubborn":
            quitting = time.monotonic() + (0 if "-t" in words else 1e9)
        link.sendall(answer(words).encode())
        link.close()
    for path in (control, pid_file):
        os.unlink(path)


if sys.argv[1:] == ["-d"]:
    if mood == "broken":
        sys.exit("No such device: the driver is not loaded")
    try:
        connected()
        sys.exit("An instance of this daemon is already running")
    except OSError:
        pass
    for name in (control, pid_file):
        if os.path.lexists(name):
            os.unlink(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(control)
    listener.listen()
    child = os.fork()
    if child:
        with open(pid_file, "w") as file:
            file.write(str(child))
        os._exit(0)
    os.setsid()
    with open(os.path.join(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log"), "w") as log:
        json.dump(dict(os.environ), log)
    if mood == "deaf":
        time.sleep(3600)
    serve(listener)
else:
    try:
        link = connected()
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    link.sendall(sys.stdin.read().encode())
    sys.stdout.write(link.recv(65536).decode())
"""


class Fake:
    """A folder for the program and one for the user's own daemon, both with short names."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "jupyter-gpu-mps-1"
        self.pipes = self.home / "pipe"
        (folder / "bin").mkdir()
        program = folder / "bin" / NAME
        program.write_text(FAKE.format(python=sys.executable, name=NAME))
        program.chmod(0o755)
        self.environ = {"PATH": str(folder / "bin")}

    def connect(self, clients):
        """Say which servers have which clients: ``{4711: [pid, …]}``."""
        (self.pipes / "new").write_text(json.dumps(clients))
        (self.pipes / "new").replace(self.pipes / "state")

    def start(self, **changes):
        return mps.start({**self.environ, **changes}, home=self.home)

    def stop(self, **options):
        return mps.stop(self.environ, home=self.home, **options)

    def status(self, **changes):
        return mps.status({**self.environ, **changes}, home=self.home)

    def find(self, **changes):
        return mps.find_daemon({**self.environ, **changes}, home=self.home)

    def end(self):
        """End what the tests have started, by the pid that each daemon has written."""
        for path in self.folder.rglob(f"{NAME}.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def fake():
    # A socket's path has 107 letters at most, which pytest's own folders use up.
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    one = Fake(folder)
    yield one
    one.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def daemon(program):
    """Put a process there that is a daemon by all that can be seen: ``daemon(folder)``."""

    def put(folder):
        process = program(WAIT, arguments=(NAME, "-d"))
        process.read()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").touch()
        (folder / f"{NAME}.pid").write_text(f"{process.pid}\n")
        return process

    return put


class TestLooking:
    """A daemon is looked for, and never spoken to."""

    def find(self, pipes):
        return mps.find_mps({"CUDA_MPS_PIPE_DIRECTORY": str(pipes)})

    def test_without_a_pipe_there_is_none(self, tmp_path):
        found = self.find(tmp_path)
        assert (found.directory, found.daemon) == (str(tmp_path), False)

    def test_a_living_daemon_runs(self, tmp_path, daemon):
        daemon(tmp_path)
        assert self.find(tmp_path).daemon is True

    def test_a_pid_that_is_another_programs_is_no_daemon(self, tmp_path, monkeypatch):
        monkeypatch.setattr(surroundings, "has_foreign_pids", lambda: False)
        (tmp_path / "control").touch()
        (tmp_path / f"{NAME}.pid").write_text(str(os.getpid()))
        assert self.find(tmp_path).daemon is False
        monkeypatch.setattr(surroundings, "has_foreign_pids", lambda: True)
        assert self.find(tmp_path).daemon is None

    @pytest.mark.parametrize("text", ["", "many", None])
    def test_a_pipe_without_a_pid_leaves_it_unknown(self, tmp_path, text):
        (tmp_path / "control").touch()
        if text is not None:
            (tmp_path / f"{NAME}.pid").write_text(text)
        assert self.find(tmp_path).daemon is None

    def test_nvidias_own_folder_is_the_default(self):
        assert mps.find_mps({}).directory == "/tmp/nvidia-mps"

    def test_a_folder_that_cannot_be_a_path_has_none(self):
        assert self.find("/\0").daemon is False


class TestFinding:
    """Named by the environment, else one's own, else NVIDIA's own directory."""

    def test_where_none_runs_ones_own_comes_first(self, fake):
        assert fake.find() == mps.MPS(str(fake.pipes), daemon=False)

    def test_ones_own_is_found_whatever_the_environment_is(self, fake, daemon):
        daemon(fake.pipes)
        assert fake.find() == mps.MPS(str(fake.pipes), daemon=True)
        assert mps.find_daemon({}, home=fake.home) == mps.MPS(str(fake.pipes), daemon=True)

    def test_the_one_that_the_environment_names_comes_before_it(self, fake, daemon):
        daemon(fake.pipes)
        named = fake.folder / "named"
        assert fake.find(CUDA_MPS_PIPE_DIRECTORY=str(named)).directory == str(fake.pipes)
        daemon(named)
        assert fake.find(CUDA_MPS_PIPE_DIRECTORY=str(named)).directory == str(named)

    def test_one_that_may_run_is_better_than_none_and_worse_than_one_that_does(self, fake, daemon):
        named = fake.folder / "named"
        named.mkdir()
        (named / "control").touch()
        assert fake.find(CUDA_MPS_PIPE_DIRECTORY=str(named)) == mps.MPS(str(named), daemon=None)
        daemon(fake.pipes)
        assert fake.find(CUDA_MPS_PIPE_DIRECTORY=str(named)).directory == str(fake.pipes)

    def test_another_users_daemon_serves_nobody_else(self, fake, needs_root):
        fake.pipes.mkdir(parents=True)
        (fake.pipes / "control").touch()
        waits = {"executable": "/bin/cat", "stdin": subprocess.PIPE}
        for user, serves in ((65534, False), (0, True)):
            with subprocess.Popen([NAME, "-"], user=user, **waits) as process:
                (fake.pipes / f"{NAME}.pid").write_text(str(process.pid))
                assert mps.find_mps({"CUDA_MPS_PIPE_DIRECTORY": str(fake.pipes)}).daemon is True
                assert fake.find().daemon is serves

    def test_a_folder_that_is_a_link_is_not_trusted(self, fake, daemon):
        daemon(fake.folder / "elsewhere" / "pipe")
        fake.home.symlink_to(fake.folder / "elsewhere")
        assert fake.find().daemon is False
        assert fake.status().runs is False

    def test_a_simulated_machine_has_only_one_that_is_named(self, fake, daemon):
        daemon(fake.pipes)
        assert fake.find(JUPYTER_GPU_SIMULATE="1xH200").daemon is False
        named = {"CUDA_MPS_PIPE_DIRECTORY": str(fake.pipes), "JUPYTER_GPU_SIMULATE": "1xH200"}
        assert fake.find(**named).daemon is True

    def test_the_users_own_folder_follows_from_the_user_alone(self, monkeypatch):
        before = mps.own_home()
        monkeypatch.setenv("TMPDIR", "/elsewhere")
        assert mps.own_home() == before == Path(f"/tmp/jupyter-gpu-mps-{os.geteuid()}")


class TestStarting:
    """One's own daemon comes up in a folder that nobody else can open."""

    def test_it_runs_and_answers(self, fake):
        running, started = fake.start()
        assert (running.runs, started, running.own) == (True, True, True)
        assert running.directory == str(fake.pipes)
        assert running.log == str(fake.home / "log")
        assert running.pid == int((fake.pipes / f"{NAME}.pid").read_text())
        assert (running.servers, running.clients) == ((), ())
        assert fake.find() == mps.MPS(str(fake.pipes), daemon=True)

    def test_its_folder_is_closed_to_others(self, fake):
        fake.home.mkdir(mode=0o755)
        fake.start()
        assert stat.S_IMODE(fake.home.stat().st_mode) == 0o700

    def test_a_second_start_changes_nothing(self, fake):
        first, _ = fake.start()
        second, started = fake.start()
        assert (second.pid, started) == (first.pid, False)

    def test_two_at_once_end_with_one(self, fake):
        found = []
        threads = [threading.Thread(target=lambda: found.append(fake.start())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 4
        assert len({running.pid for running, _ in found}) == 1

    def test_what_limits_the_caller_does_not_limit_the_daemon(self, fake):
        fake.start(
            CUDA_VISIBLE_DEVICES="3",
            CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10",
            JUPYTER_GPU_LEASE_FD="7",
            HOME="/home/alice",
        )
        environ = json.loads((fake.home / "log" / "control.log").read_text())
        assert environ["HOME"] == "/home/alice"
        assert [n for n in environ if n.startswith(("CUDA_", "JUPYTER_"))] == [
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_MPS_LOG_DIRECTORY",
        ]

    def test_it_keeps_no_lease_and_no_session_of_the_caller(self, fake):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        running, _ = fake.start()
        os.close(write)
        assert os.read(read, 1) == b""  # the daemon has no copy of it
        os.close(read)
        assert os.getsid(running.pid) != os.getsid(0)

    def test_one_that_the_environment_names_and_that_runs_is_enough(self, fake, daemon):
        named = fake.folder / "named"
        process = daemon(named)
        running, started = fake.start(CUDA_MPS_PIPE_DIRECTORY=str(named))
        assert (running.pid, running.directory, started) == (process.pid, str(named), False)
        assert not running.own

    def test_what_a_killed_daemon_leaves_is_no_obstacle(self, fake, eventually):
        first, _ = fake.start()
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: fake.find().daemon is not True)
        second, started = fake.start()
        assert started
        assert second.pid != first.pid

    def test_why_it_does_not_come_up_is_told(self, fake):
        with pytest.raises(
            GPUError, match=r"does not start: .*the driver is not loaded.*control\.log"
        ):
            fake.start(FAKE_MPS="broken")

    def test_one_that_does_not_answer_has_not_come_up(self, fake):
        with pytest.raises(GPUError, match=r"does not answer within 0\.1 s"):
            mps.start({**fake.environ, "FAKE_MPS": "deaf"}, home=fake.home, seconds=0.1)

    def test_without_nvidias_program_it_says_what_to_install(self, fake):
        with pytest.raises(GPUError, match=f"{NAME} is not on the PATH.*nvidia-cuda-mps"):
            mps.start({"PATH": "/nowhere"}, home=fake.home)

    def test_a_simulated_machine_has_no_mps(self, fake):
        with pytest.raises(GPUError, match="simulated"):
            fake.start(JUPYTER_GPU_SIMULATE="1xH200")
        assert not fake.home.exists()

    @pytest.mark.parametrize("kind", ["file", "link"])
    def test_a_folder_that_is_none_is_refused(self, fake, kind):
        fake.home.touch() if kind == "file" else fake.home.symlink_to(fake.folder)
        with pytest.raises(GPUError, match="is not a directory"):
            fake.start()

    def test_another_users_folder_is_refused(self, fake, needs_root):
        fake.home.mkdir()
        os.chown(fake.home, 65534, 65534)
        with pytest.raises(GPUError, match="belongs to nobody"):
            fake.start()

    def test_a_folder_that_cannot_be_made_is_told(self, fake):
        with pytest.raises(GPUError, match="cannot be made: No such file"):
            mps.start(fake.environ, home=fake.folder / "not" / "there")


class TestAsking:
    """Servers and their clients are what the daemon says; what it does not say is unknown."""

    def test_servers_and_clients_are_listed(self, fake):
        fake.start()
        fake.connect({4711: [os.getpid()], 4712: [999_999_999]})
        found = fake.status()
        assert found.servers == (4711, 4712)
        mine, gone = found.clients
        assert mine.pid == os.getpid()
        assert "pytest" in mine.command
        assert gone == mps.Client(999_999_999, None)

    def test_where_none_runs_there_is_nobody(self, fake):
        found = fake.status()
        assert (found.runs, found.pid, found.servers, found.clients) == (False, None, (), ())

    def test_without_the_program_who_uses_it_is_unknown(self, fake):
        fake.start()
        found = fake.status(PATH="/nowhere")
        assert (found.runs, found.clients) == (True, None)

    @pytest.mark.parametrize("said", ["Cannot find MPS", "12 many"])
    def test_an_answer_that_is_no_list_is_none(self, fake, said):
        fake.start()
        (fake.folder / "bin" / NAME).write_text(f"#!/bin/sh\necho '{said}'\n")
        assert fake.status().clients is None

    def test_a_list_of_clients_that_is_none_is_unknown(self, fake):
        fake.start()
        script = "#!/bin/sh\nread word rest\n[ $word = get_server_list ] && echo 5 || exit 1\n"
        (fake.folder / "bin" / NAME).write_text(script)
        found = fake.status()
        assert (found.servers, found.clients) == ((5,), None)

    def test_the_log_of_another_daemon_is_where_it_is_told_or_nvidias_own(self, fake, daemon):
        named = fake.folder / "named"
        daemon(named)
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(named)}
        assert fake.status(**pipes).log == "/var/log/nvidia-mps"
        assert fake.status(**pipes, CUDA_MPS_LOG_DIRECTORY="/logs").log == "/logs"


class TestStopping:
    """Only one's own is stopped, by its own command, and not while programs use it."""

    def test_it_ends(self, fake):
        running, _ = fake.start()
        after, stopped = fake.stop()
        assert (after.runs, stopped) == (False, True)
        assert not (fake.pipes / "control").exists()
        assert mps.processes.look(running.pid) is None or (
            mps.processes.look(running.pid).state in "ZX"
        )

    def test_where_none_runs_there_is_nothing_to_do(self, fake):
        after, stopped = fake.stop()
        assert (after.runs, stopped) == (False, False)

    def test_it_refuses_while_programs_use_it_and_names_them(self, fake):
        running, _ = fake.start()
        fake.connect({4711: [os.getpid()]})
        with pytest.raises(GPUError) as refused:
            fake.stop()
        assert "1 program uses the daemon" in str(refused.value)
        assert f"  {os.getpid()}  " in str(refused.value)
        assert "mps stop --force" in str(refused.value)
        assert fake.status().pid == running.pid

    def test_by_force_it_ends_all_the_same(self, fake):
        fake.start()
        fake.connect({4711: [os.getpid()]})
        assert fake.stop(force=True)[1]

    def test_who_cannot_be_told_is_not_ended_without_force(self, fake):
        fake.start()
        program = fake.folder / "bin" / NAME
        true = program.read_text()
        program.write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(GPUError, match=r"cannot be told.*--force"):
            fake.stop()
        program.write_text(true)
        assert fake.stop()[1]

    def test_one_that_does_not_obey_is_told_with_its_pid(self, fake):
        running, _ = fake.start(FAKE_MPS="stubborn")
        with pytest.raises(GPUError, match=f"The daemon {running.pid} has not ended within 0.1 s"):
            fake.stop(seconds=0.1)
        assert fake.status().runs

    def test_what_cannot_be_seen_is_not_stopped(self, fake):
        fake.pipes.mkdir(parents=True)
        (fake.pipes / "control").touch()
        with pytest.raises(GPUError, match="cannot be seen from here"):
            fake.stop()

    def test_the_one_that_the_environment_names_is_never_stopped(self, fake, daemon):
        named = fake.folder / "named"
        process = daemon(named)
        environ = {**fake.environ, "CUDA_MPS_PIPE_DIRECTORY": str(named)}
        assert mps.stop(environ, home=fake.home)[1] is False
        assert process.process.poll() is None
