"""Processes as /proc shows them: who they are, and which of them keep a lease alive.

Every question may fail at any moment, because processes end and other users' are closed to us;
"cannot be seen" is None or an empty answer, never an error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from jupyter_gpu.core.layout import Range
from jupyter_gpu.core.leases import ProcessRef, clean

if sys.platform != "win32":
    import pwd

_COMMAND_LENGTH = 200
# PROC_PID_INIT_INO of linux/proc_ns.h: the inode of the first pid namespace, always.
_HOST_PID_NAMESPACE = 0xEFFFFFFC


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What /proc tells about one process to anybody."""

    pid: int
    uid: int
    start: int
    session: int
    parent: int
    state: str
    command: str

    @property
    def user(self) -> str:
        """The user's name, or the number where it has none here."""
        return user_name(self.uid)


def user_name(uid: int) -> str:
    """Return the name of a user id, or the number as text where it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def pid_namespace() -> int | None:
    """Return the inode of this process's pid namespace, or None where there is no /proc."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a hot path on a plain string
    except OSError:
        return None


def look(pid: int) -> ProcessInfo | None:
    """Return what /proc tells about a process, or None when there is none by that pid here."""
    found = _read_stat(pid)
    if found is None:
        return None
    uid, name, fields = found
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as below
            words = file.read(4096).split(b"\0")
    except OSError:
        return None
    command = b" ".join(map(_first_line, words)).strip() or b"[" + name + b"]"
    return ProcessInfo(
        pid=pid,
        uid=uid,
        start=int(fields[19]),
        session=int(fields[3]),
        parent=int(fields[1]),
        state=fields[0].decode(),
        command=clean(command.decode(errors="replace"))[:_COMMAND_LENGTH],
    )


def _first_line(word: bytes) -> bytes:
    """Return a word of a command as a person wants to see it: of a whole program, its beginning."""
    first, *more = word.strip(b"\n").split(b"\n")
    return first + "…".encode() if more else first


def _read_stat(pid: int) -> tuple[int, bytes, list[bytes]] | None:
    """Return a process's uid, its name, and the fields of its ``stat`` from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a hot path on plain strings
            text = file.read()
            uid = os.fstat(file.fileno()).st_uid
    except OSError:
        return None
    # The second field is the name in parentheses and may contain both blanks and parentheses.
    end = text.rfind(b")")
    return uid, text[text.find(b"(") + 1 : end], text[end + 2 :].split()


def named_by_driver(pid: int, minor: int | None, *, simulated: bool = False) -> ProcessInfo | None:
    """Return the process that the driver library means by a pid, or None when it is not here.

    The driver library tells the host's pids. In another pid namespace (a container) such a number
    may belong to an unrelated process: there it counts only if it has the device open.
    """
    info = look(pid)
    if info is None or simulated or pid_namespace() in (None, _HOST_PID_NAMESPACE):
        return info
    return info if _has_open(pid, f"/dev/nvidia{minor}") else None


def _has_open(pid: int, path: str) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # not ours to look into, or gone
        for descriptor in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(f"{folder}/{descriptor}") == path:  # noqa: PTH115
                    return True
    return False


def reference(pid: int) -> ProcessRef:
    """Return a reference to a living process that a later one with its pid does not match."""
    info = look(pid)
    return ProcessRef(pid, None if info is None else info.start, pid_namespace())


def command_line(pid: int) -> str | None:
    """Return how a living process was started, or None when it cannot be seen."""
    info = look(pid)
    return None if info is None else info.command


def is_alive(process: ProcessRef) -> bool | None:
    """Return whether the process lives; None where that cannot be told (another namespace)."""
    if process.namespace != pid_namespace():
        return None
    found = _read_stat(process.pid)
    if found is None:
        return False
    state, start = found[2][0], int(found[2][19])
    # A zombie has given back its memory and its descriptors: it uses nothing.
    return state not in (b"Z", b"X") and process.start in (None, start)


def all_pids() -> Iterator[int]:
    """Yield the pids that /proc lists now."""
    with contextlib.suppress(OSError):  # no /proc: no processes can be seen
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def ancestors_of(pid: int) -> frozenset[int]:
    """Return the pids from which a process descends, itself included."""
    found: set[int] = set()
    while pid not in found and (info := look(pid)) is not None:
        found.add(pid)
        pid = info.parent
    return frozenset(found)


def holders_of(lock_file: os.stat_result, where: Range) -> tuple[int, ...]:
    """Return the processes whose descriptors hold a lock that touches ``where``.

    Only one's own processes can be looked into, or everybody's by root.
    """
    return tuple(pid for pid in all_pids() if _holds(pid, lock_file, where))


def _holds(pid: int, lock_file: os.stat_result, where: Range) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - as above
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile, or not ours to see
            status = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116
            if (status.st_dev, status.st_ino) != (lock_file.st_dev, lock_file.st_ino):
                continue
            with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:  # noqa: PTH123
                if any(_touches(line, where) for line in file if line.startswith("lock:")):
                    return True
    return False


def _touches(line: str, where: Range) -> bool:
    # "lock:  1: OFDLCK ADVISORY  WRITE -1 fe:00:2146347 START END", END inclusive or EOF
    fields = line.split()
    start = int(fields[-2])
    end = (1 << 63) - 1 if fields[-1] == "EOF" else int(fields[-1])
    return start < where.start + where.length and where.start <= end
