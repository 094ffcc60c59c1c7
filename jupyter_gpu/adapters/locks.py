"""Open-file-description locks on ranges of a file: the primitive that a lease is made of.

Linux keeps such a lock (``F_OFD_SETLK``, since 3.15) exactly as long as some process has a copy
of the description, however that process got it and however it ends. Elsewhere, and in some
sandboxes, there are none: see ``supported``.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator

from jupyter_gpu.core.layout import Range

if sys.platform != "win32":
    import fcntl

# F_OFD_GETLK and F_OFD_SETLK of linux/fcntl.h; the standard library names them on Linux only.
_GETLK, _SETLK = 36, 37
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid and padding.
_FLOCK = struct.Struct("hhqqi4x")


def possible() -> bool:
    """Return whether a system of this kind can have such locks at all."""
    return sys.platform == "linux" and struct.calcsize("P") >= struct.calcsize("q")


def supported(fd: int) -> bool:
    """Return whether this system has such locks on the file behind ``fd``; takes none."""
    if not possible():
        return False
    try:
        first_lock(fd, Range(0, 1))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            return False
        raise
    return True


def try_lock(fd: int, where: Range, *, shared: bool = False) -> bool:
    """Lock a range at once or not at all; True when this description now has it."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, _SETLK, _FLOCK.pack(kind, os.SEEK_SET, where.start, where.length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, where: Range) -> None:
    """Give a range up, for every process that shares this description."""
    fcntl.fcntl(fd, _SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, where.start, where.length, 0))


def first_lock(fd: int, where: Range) -> Range | None:
    """Return some range within ``where`` that another description has locked, or None.

    Asks without taking; a read-only descriptor is enough.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, where.start, where.length, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, _GETLK, asked))
    return None if kind == fcntl.F_UNLCK else Range(start, length)


def locked_ranges(fd: int, where: Range) -> Iterator[Range]:
    """Yield every range within ``where`` that other descriptions have locked, in any order.

    The system tells one lock a question, so the rest left and right of it is asked again:
    2k + 1 questions for k locks, whatever the size of the range.
    """
    open_questions = [where]
    while open_questions:
        asked = open_questions.pop()
        found = first_lock(fd, asked)
        if found is None:
            continue
        end = asked.start + asked.length
        start = max(found.start, asked.start)
        # A length of zero means "to the end of time" (fcntl(2)); ours never are, a hostile one may.
        stop = min(found.start + found.length, end) if found.length else end
        yield Range(start, stop - start)
        if start > asked.start:
            open_questions.append(Range(asked.start, start - asked.start))
        if stop < end:
            open_questions.append(Range(stop, end - stop))
