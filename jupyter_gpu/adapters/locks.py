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

from jupyter_gpu.core.layout import Range, without

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
    """Yield every range within ``where`` that other descriptions have locked, in their order.

    The system tells one lock a question, so the rest left and right of it is asked again:
    2k + 1 questions for k locks, whatever the size of the range; fewer for who stops early.
    """
    left = [(where, False)]
    while left:
        asked, answered = left.pop()
        if answered:
            yield asked
            continue
        found = first_lock(fd, asked)
        if found is None:
            continue
        end = asked.start + asked.length
        start = max(found.start, asked.start)
        # A length of zero means "to the end of time" (fcntl(2)); ours never are, a hostile one may.
        stop = min(found.start + found.length, end) if found.length else end
        if stop < end:
            left.append((Range(stop, end - stop), False))
        left.append((Range(start, stop - start), True))
        if start > asked.start:
            left.append((Range(asked.start, start - asked.start), False))


def last_lock(fd: int, where: Range) -> int | None:
    """Return the last position within ``where`` that another description has locked, or None.

    Questions are asked at distances that double, then halve: a few for short queues, some twenty
    for a thousand locks.
    """
    found = first_lock(fd, where)
    if found is None:
        return None
    end = where.start + where.length
    last, distance, growing = _end_of(found, end), 1, True
    while last < end - 1 and distance:
        start = min(last + distance, end - 1)
        found = first_lock(fd, Range(start, end - start))
        if found is not None:
            last = _end_of(found, end)
        elif distance > 1:
            growing = False
        else:
            break
        distance = distance * 2 if growing else distance // 2
    return last


def _end_of(found: Range, end: int) -> int:
    # A length of zero means "to the end of time".
    return (min(found.start + found.length, end) if found.length else end) - 1


def own_ranges(fd: int, where: Range) -> tuple[Range, ...]:
    """Return what the description behind ``fd`` itself has locked within ``where``.

    The system tells a description only what others have. So the file is opened anew, which makes
    another description, and what is locked for that one and not for the first is the first's.
    """
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return held_by(fd, other, where)
    finally:
        os.close(other)


def held_by(fd: int, witness: int, where: Range) -> tuple[Range, ...]:
    """Return what the description behind ``fd`` has locked, seen from another one that has nothing.

    What both are told of is a third one's.
    """
    theirs = tuple(locked_ranges(fd, where))
    seen = locked_ranges(witness, where)
    return tuple(piece for found in seen for piece in without(found, theirs))
