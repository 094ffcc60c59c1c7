"""MPS, NVIDIA's Multi-Process Service: its control daemon is found, started, asked and stopped.

A daemon is known by the directory of its pipes, and a program goes through it when it has that
directory in its environment. Everything is said to it by NVIDIA's ``nvidia-cuda-mps-control``: with
``-d`` that becomes the daemon, without it sends the commands that it reads to the daemon.

A user's own daemon has a directory that follows from the user alone, so that every process of the
user finds it. Nothing but the daemon in that directory is ever started or stopped here, and that
only by its own commands, never by a signal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu.adapters import processes, surroundings
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.share_caps import (
    LOG_DIRECTORY,
    OWN_LOGS,
    OWN_PIPES,
    OWN_PREFIX,
    PIPE_DIRECTORY,
    own_log_directory,
)

PROGRAM = "nvidia-cuda-mps-control"
# Where NVIDIA's programs look without variables.
_DEFAULT_PIPES, _DEFAULT_LOGS = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - its own
_PATIENCE_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_FORCED_SECONDS = 5  # what clients get to end by themselves
_EVERY_SECONDS = 0.02
_NOT_FOR_THE_DAEMON = ("CUDA_", "JUPYTER_GPU_")
_MISSING = (
    f"{PROGRAM} is not on the PATH. It comes with NVIDIA's driver: Ubuntu has it in "
    "nvidia-compute-utils of the driver's version, Debian in nvidia-cuda-mps, Fedora and RHEL in "
    "nvidia-driver-cuda. A container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


@dataclass(frozen=True, slots=True)
class Client:
    """A program that goes through a daemon, with its command line where that can be seen."""

    pid: int
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon, or the place where one would be.

    ``runs`` is None where that cannot be told from here, ``clients`` where it does not say.
    ``own`` tells that its directory is this user's own.
    """

    directory: str
    runs: bool | None
    own: bool
    log: str
    pid: int | None = None
    user: str | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[Client, ...] | None = ()


def own_home() -> Path:
    """Return the folder of this user's own daemon, which no variable changes."""
    return Path("/tmp") / f"{OWN_PREFIX}{_uid()}"  # noqa: S108 - checked to be the user's own


def find_mps(environ: Mapping[str, str]) -> MPS:
    """Return where MPS clients of this environment look, and whether a daemon runs there.

    Nothing is connected to. A pipe left by a daemon of another pid namespace leaves it unknown.
    """
    return _look(environ.get(PIPE_DIRECTORY) or _DEFAULT_PIPES).mps


def find_daemon(environ: Mapping[str, str], *, home: Path | None = None) -> MPS:
    """Return the daemon that a share with this environment goes through, if any runs.

    That is the one that the environment names, else the user's own, else the one in NVIDIA's own
    directory, which is left out where another is named. A daemon of another user serves nobody
    else, but root's serves everybody. A simulated machine has only one that is named.

    ``home`` is the folder of the user's own daemon, where it is another than ``own_home()``. Where
    none runs, the answer has the directory that would come first.
    """
    home = home or own_home()
    named, own = environ.get(PIPE_DIRECTORY), str(home / OWN_PIPES)
    places = [named] if named else []
    if not is_simulated(environ):
        places += [own] if _is_own(home) else []
        places += [] if named else [_DEFAULT_PIPES]
    seen = [_look(place) for place in places]
    serving = [one.mps for one in seen if one.mps.daemon and one.uid in (0, _uid())]
    hidden = [one.mps for one in seen if one.mps.daemon is None]
    return next(iter((*serving, *hidden)), MPS(named or own, daemon=False))


def status(environ: Mapping[str, str], *, home: Path | None = None) -> Daemon:
    """Return the daemon that a share with this environment goes through, and who uses it."""
    home = home or own_home()
    found = find_daemon(environ, home=home)
    return _ask_about(found.directory, environ, home)


def start(
    environ: Mapping[str, str], *, home: Path | None = None, seconds: float = _PATIENCE_SECONDS
) -> tuple[Daemon, bool]:
    """Start this user's own daemon; called by ``jupyter gpu mps start``.

    What limits this environment's devices does not limit the daemon. Returns the daemon, and
    whether it was started now: one that runs already, in the directory that the environment names
    or in the user's own, stays as it is.

    Raises
    ------
    GPUError
        When it cannot be started, with what to do.
    """
    program, home = _program(environ), home or own_home()
    pipes = str(home / OWN_PIPES)
    control = _Control(program, pipes, environ, min(seconds, _ANSWER_SECONDS))

    def answers() -> bool:
        return bool(_look(pipes).mps.daemon) and control.pids("get_server_list") is not None

    with _alone_in(home):
        running = status(environ, home=home)
        if running.runs and (running.own or environ.get(PIPE_DIRECTORY)):
            return running, False
        trouble = _launch(program, environ, home)
        if trouble is None and not _within(seconds, answers):
            trouble = f"it does not answer within {seconds:g} s"
        if trouble is not None:
            log = f"{home / OWN_LOGS}/control.log"
            raise GPUError(f"{PROGRAM} -d does not start: {trouble}. Its log: {log}")
    return _ask_about(pipes, environ, home), True


def stop(
    environ: Mapping[str, str],
    *,
    force: bool = False,
    home: Path | None = None,
    seconds: float = _PATIENCE_SECONDS,
) -> tuple[Daemon, bool]:
    """Stop this user's own daemon; called by ``jupyter gpu mps stop``.

    With ``force`` also while programs use it, which lose their GPU. Returns the daemon as it is
    then, and whether it was stopped now.

    Raises
    ------
    GPUError
        When programs use it, or it does not end.
    """
    program, home = _program(environ), home or own_home()
    pipes = str(home / OWN_PIPES)
    daemon = _ask_about(pipes, environ, home)
    if daemon.runs is False:
        return daemon, False
    if daemon.pid is None or _look(pipes).uid != _uid():
        raise GPUError(
            f"What runs in {pipes} cannot be seen from here: stop it where it was started."
        )
    if not force:
        _refuse_while_used(daemon)
    reference = processes.reference(daemon.pid)
    command, patience = "quit", seconds
    if force:
        command, patience = f"quit -t {_FORCED_SECONDS}", seconds + _FORCED_SECONDS
    # Whether it has obeyed is told by its end, not by what it answers.
    _Control(program, pipes, environ, patience).say(command)
    if not _within(patience, lambda: processes.is_alive(reference) is False):
        raise GPUError(
            f"The daemon {daemon.pid} has not ended within {patience:g} s. It ends once the last "
            f"program that uses it has; its log: {home / OWN_LOGS}/control.log"
        )
    for name in ("control", f"{PROGRAM}.pid"):  # else a container takes it for a hidden daemon
        Path(pipes, name).unlink(missing_ok=True)
    return _ask_about(pipes, environ, home), True


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a directory shows of a daemon: whether it runs, its pid, and whose it is."""

    mps: MPS
    pid: int | None = None
    uid: int | None = None


def _look(directory: str) -> _Seen:
    if not os.path.lexists(os.path.join(directory, "control")):  # noqa: PTH118 - may not be a path
        return _Seen(MPS(directory, daemon=False))
    pid = _pid_in(Path(directory, f"{PROGRAM}.pid"))
    info = None if pid is None else processes.look(pid)
    if info is not None and PROGRAM in info.command and info.state not in "ZX":
        return _Seen(MPS(directory, daemon=True), pid, info.uid)
    hidden = pid is None or surroundings.has_foreign_pids()
    return _Seen(MPS(directory, daemon=None if hidden else False))


def _pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None


def _uid() -> int:
    return getattr(os, "geteuid", int)()  # Windows has neither users' numbers nor MPS


def _is_own(home: Path) -> bool:
    """Return whether a folder is this user's, and no link to anything else."""
    try:
        found = home.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _uid()


@contextlib.contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Make the folders of this user's own daemon; others who start it wait meanwhile."""
    import fcntl  # noqa: PLC0415 - not on Windows, which has no MPS

    _make(home)
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make(home: Path) -> None:
    """Make the folders, closed to others."""
    try:
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
        if not _is_own(home):
            found = home.lstat()
            whose = f"belongs to {processes.user_name(found.st_uid)}"
            what = whose if stat.S_ISDIR(found.st_mode) else "is not a directory"
            raise GPUError(f"{home} {what}, so nobody can trust it: have it removed first.")
        if stat.S_IMODE(home.lstat().st_mode) != 0o700:  # noqa: PLR2004 - the mode itself
            home.chmod(0o700)
        for name in (OWN_PIPES, OWN_LOGS):
            (home / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise GPUError(f"{home} cannot be made: {error.strerror}") from error


def _program(environ: Mapping[str, str]) -> str:
    if is_simulated(environ):
        raise GPUError("The GPUs of this machine are simulated: there is no MPS for them.")
    found = shutil.which(PROGRAM, path=environ.get("PATH", os.defpath))
    if found is None:
        raise GPUError(_MISSING)
    return found


def _launch(program: str, environ: Mapping[str, str], home: Path) -> str | None:
    """Run the program with ``-d``; returns what went wrong, None for nothing."""
    kept = {k: v for k, v in environ.items() if not k.startswith(_NOT_FOR_THE_DAEMON)}
    kept |= {PIPE_DIRECTORY: str(home / OWN_PIPES), LOG_DIRECTORY: str(home / OWN_LOGS)}
    # A file, because the daemon may keep what it gets: a pipe would never end. A session of its
    # own, so that it does not end with the terminal or the kernel that starts it.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [program, "-d"],
                check=False,
                cwd=os.sep,
                env=kept,
                start_new_session=True,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                timeout=_PATIENCE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return "it does not return"
        except OSError as error:
            return f"it cannot be run: {error.strerror}"
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if done.returncode == 0:
        return None
    return lines[-1].strip() if lines else f"it ended with status {done.returncode}"


@dataclass(frozen=True, slots=True)
class _Control:
    """NVIDIA's program, with the directory of the daemon that it is to speak to."""

    program: str
    directory: str
    environ: Mapping[str, str]
    seconds: float = _ANSWER_SECONDS

    def say(self, command: str) -> str | None:
        """Send a command to the daemon; returns its answer, None where there is none."""
        try:
            done = subprocess.run(
                [self.program],
                capture_output=True,
                check=False,
                cwd=os.sep,
                env={**self.environ, PIPE_DIRECTORY: self.directory},
                input=f"{command}\n".encode(),
                timeout=self.seconds,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if done.returncode else done.stdout.decode(errors="replace")

    def pids(self, command: str) -> tuple[int, ...] | None:
        """Return the pids that the daemon answers with, None where it answers otherwise."""
        answer = self.say(command)
        if answer is None or not re.fullmatch(r"[0-9\s]*", answer):
            return None
        return tuple(map(int, answer.split()))

    def clients(self, servers: tuple[int, ...]) -> tuple[Client, ...] | None:
        """Return the programs that go through its servers; None where it does not say."""
        found: list[Client] = []
        for server in servers:
            pids = self.pids(f"get_client_list {server}")
            if pids is None:
                return None
            found += [Client(pid, processes.command_line(pid)) for pid in pids]
        return tuple(found)


def _ask_about(directory: str, environ: Mapping[str, str], home: Path) -> Daemon:
    own = directory == str(home / OWN_PIPES)
    log = own_log_directory(directory) or environ.get(LOG_DIRECTORY) or _DEFAULT_LOGS
    seen = _look(directory)
    if seen.mps.daemon is False or (own and not _is_own(home)):
        return Daemon(directory, runs=False, own=own, log=log)
    program = shutil.which(PROGRAM, path=environ.get("PATH", os.defpath))
    control = None if program is None else _Control(program, directory, environ)
    servers = None if control is None else control.pids("get_server_list")
    return Daemon(
        directory,
        seen.mps.daemon,
        own=own,
        log=log,
        pid=seen.pid,
        user=None if seen.uid is None else processes.user_name(seen.uid),
        servers=servers or (),
        clients=None if control is None or servers is None else control.clients(servers),
    )


def _refuse_while_used(daemon: Daemon) -> None:
    if daemon.clients is None:
        raise GPUError(
            "Who uses the daemon cannot be told: it does not answer.  jupyter gpu mps stop --force"
            "  stops it all the same."
        )
    if daemon.clients:
        used = in_words(len(daemon.clients), "program")
        names = "\n".join(f"  {one.pid}  {one.command or '–'}" for one in daemon.clients)
        verb = "uses" if len(daemon.clients) == 1 else "use"
        raise GPUError(
            f"{used} {verb} the daemon, and would lose the GPU:\n{names}\nEnd them first, or take "
            "it from them:  jupyter gpu mps stop --force"
        )


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_EVERY_SECONDS)
    return True
