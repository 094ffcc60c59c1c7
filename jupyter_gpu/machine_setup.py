"""Makes the lease directory of the whole machine: now, and at every start through tmpfiles.d.

Beside it the directories of what outlives a start: the holds, and the log of grants.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from datetime import datetime
from pathlib import Path

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.grant_log import LOG_DIRECTORY
from jupyter_gpu.adapters.holds_file import HOLDS_DIRECTORY
from jupyter_gpu.adapters.place import (
    LAYOUT_NAME,
    LOCK_NAME,
    RECORDS_NAME,
    SETUP_COMMAND,
    SHARED_DIRECTORY,
    SYSTEM_DIRECTORY,
    Place,
    furnish,
)
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import LAYOUT_VERSION, WHOLE_FILE
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.standing import holder_words

TMPFILES = Path("/etc/tmpfiles.d/jupyter-gpu.conf")
_TMPFILES_TEXT = f"""\
# Made by  jupyter gpu setup: the lease directory of jupyter-gpu, see tmpfiles.d(5).
d {SYSTEM_DIRECTORY} 0755 root root -
f {SYSTEM_DIRECTORY / LAYOUT_NAME} 0644 root root - {LAYOUT_VERSION}
d {SYSTEM_DIRECTORY / RECORDS_NAME} 1777 root root -
f {SYSTEM_DIRECTORY / LOCK_NAME} 0666 root root -
d {HOLDS_DIRECTORY} 0755 root root -
d {LOG_DIRECTORY} 1777 root root -
"""
_MODES = ((".", 0o755), (LAYOUT_NAME, 0o644), (RECORDS_NAME, 0o1777), (LOCK_NAME, 0o666))
_BESIDE = ((HOLDS_DIRECTORY, 0o755), (LOG_DIRECTORY, 0o1777))


def set_up(root: Path = Path("/")) -> tuple[str, ...]:
    """Make what is missing, mend what is not as it should be, and return what was done.

    Parameters
    ----------
    root
        Where the machine's files begin; another one than ``/`` is for tests and images.

    Raises
    ------
    StoreError
        Without root; while leases live in the place that was used before; and when something
        stands in the way.
    """
    if sys.platform != "linux":
        raise StoreError("There are no leases on this system, so there is nothing to set up.")
    if root == Path("/") and os.geteuid() != 0:
        raise StoreError(
            f"Only root can make {SYSTEM_DIRECTORY}, which is what makes it safe:  "
            f"{SETUP_COMMAND}"
        )
    before = Place(_under(root, SHARED_DIRECTORY), "shared")
    directory = _under(root, SYSTEM_DIRECTORY)
    is_new = not os.path.lexists(directory)
    if is_new:
        _refuse_while_used(before)
    try:
        done = [*_make(directory), *_write_tmpfiles(_under(root, TMPFILES))]
        if is_new:
            try:
                _refuse_while_used(before)  # somebody may have been faster
            except StoreError:
                _unmake(directory)
                raise
        for path, mode in _BESIDE:
            done += _make_directory(_under(root, path), mode)
    except StoreError:  # one of these, and a sentence already
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}.") from error
    return tuple(done)


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _refuse_while_used(place: Place) -> None:
    with LeaseStore(place) as store:
        holdings = store.holdings()
        now = datetime.now().astimezone()
        lines = [
            f"  {holder_words(lease)} since {since_in_words(lease.record.since, now)}"
            for lease in holdings.leases
        ]
    lines += [f"  {waiter.user or 'somebody'} waits" for waiter in holdings.waiters]
    if lines or _is_locked(place.lock_path):
        holders = "\n".join(lines) or "  a process that left no record"
        raise StoreError(
            f"Leases still live in {place.directory}, and two places would give a GPU out twice:\n"
            f"{holders}\nEnd them, then run it again."
        )


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return locks.supported(fd) and locks.first_lock(fd, WHOLE_FILE) is not None
    finally:
        os.close(fd)


def _make_directory(directory: Path, mode: int) -> list[str]:
    done = []
    if not os.path.lexists(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o755)
        directory.chmod(mode)  # the umask is the caller's
        done.append(f"Made {directory}.")
    if not stat.S_ISDIR(directory.lstat().st_mode):
        raise StoreError(f"{directory} is not a directory: remove it, then run this again.")
    return [*done, *_mend(directory, mode)]


def _make(directory: Path) -> list[str]:
    # The directory first: once it is root's own, nobody else can put anything else in its place.
    done = _make_directory(directory, 0o755)
    furnish(directory)
    for name, mode in _MODES[1:]:
        path = directory / name
        kind = path.lstat().st_mode
        if not (stat.S_ISDIR(kind) if name == RECORDS_NAME else stat.S_ISREG(kind)):
            raise StoreError(f"{path} is not what should be there: remove it, then run this again.")
        done += _mend(path, mode)
    lock = directory / LOCK_NAME
    if lock.lstat().st_size:
        os.truncate(lock, 0)
        done.append(f"Emptied {lock}.")
    return done


def _mend(path: Path, mode: int) -> list[str]:
    """Give a path its owner and mode; returns what was done."""
    status = path.lstat()
    done = []
    if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0):
        os.chown(path, 0, 0, follow_symlinks=False)
        done.append(f"Gave {path} to root.")
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)
        done.append(f"Set the mode of {path} to {mode:04o}.")
    return done


def _write_tmpfiles(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == _TMPFILES_TEXT:
            return []
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(_TMPFILES_TEXT, encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)
    return [f"Wrote {path}, which makes it again at every start of the machine."]


def _unmake(directory: Path) -> None:
    for name in (LOCK_NAME, LAYOUT_NAME):
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody has begun to use it: it stays
        (directory / RECORDS_NAME).rmdir()
        directory.rmdir()
