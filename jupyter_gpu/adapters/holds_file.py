"""The file of holds: read with suspicion, changed under a lock and by rename.

The machine's own place keeps it in ``/var/lib/jupyter-gpu``, which outlives a restart of the
machine; any other lease directory keeps it inside.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.place import Place, open_directory
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.holds import HOLDS_SIZE_LIMIT, Holds

if sys.platform != "win32":
    import fcntl

HOLDS_DIRECTORY = Path("/var/lib/jupyter-gpu")
HOLDS_NAME, _LOCK_NAME = "holds.json", "holds.lock"
_PATIENCE_SECONDS = 5.0
_LOOKS_EVERY_SECONDS = 0.01


def holds_path(place: Place) -> Path:
    """Return where the holds of a place are kept."""
    return _directory(place) / HOLDS_NAME


def _directory(place: Place) -> Path:
    if place.kind != "system":
        return place.directory
    # Beside /run/jupyter-gpu, also where the machine's files begin elsewhere than at "/".
    return place.directory.parent.parent / HOLDS_DIRECTORY.relative_to("/")


def read_holds(place: Place) -> Holds:
    """Return the holds of a place; none, with the reason, where their file is not believed.

    Costs two or three system calls where there is no file, so it can be asked at every try. The
    file is believed if it is a plain and small one of root's or of who owns the lease directory.
    """
    path = holds_path(place)
    try:
        # Looked at first, because merely opening some devices does something.
        status = path.lstat()
        owners = {0, _owner(place)}
        why = _unbelievable(status, owners)
        if why is not None:
            return _problem(path, why)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        with os.fdopen(os.open(path, flags), "rb") as file:
            why = _unbelievable(os.fstat(file.fileno()), owners)
            if why is not None:
                return _problem(path, why)
            text = file.read(HOLDS_SIZE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):  # without a lease directory nothing is leased
        return Holds()
    except OSError as error:
        return _problem(path, f"cannot be read: {error.strerror}")
    try:
        return Holds.from_json(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return _problem(path, "is not what  jupyter gpu hold  has written")


def _owner(place: Place) -> int:
    return place.directory.stat().st_uid


def _unbelievable(status: os.stat_result, owners: set[int]) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if status.st_uid not in owners:
        return f"belongs to {processes.user_name(status.st_uid)}"
    return "is too large" if status.st_size > HOLDS_SIZE_LIMIT else None


def _problem(path: Path, why: str) -> Holds:
    return Holds(problem=f"Nothing is granted, because {path} {why}: mend or remove it.")


def change_holds(place: Place, change: Callable[[Holds], Holds]) -> Holds:
    """Change the holds of a place, and return those of before.

    Parameters
    ----------
    place
        The lease directory, made where it is missing.
    change
        Returns the new holds for those of now. Nobody else changes them meanwhile; what it raises
        leaves everything as it was.

    Raises
    ------
    StoreError
        When this user may not, when the file of now is not believed, when somebody else goes on
        changing it, and when it cannot be written.
    """
    _refuse_others(place)
    directory_fd = _open(place)
    try:
        with _locked(place, directory_fd):
            before = _believed(place)
            after = change(before)
            if after != before:
                _write(place, directory_fd, after.to_json())
            return before
    except StoreError:
        raise
    except OSError as error:
        raise _cannot(place, error) from error
    finally:
        os.close(directory_fd)


def _believed(place: Place) -> Holds:
    holds = read_holds(place)
    if holds.problem is not None:
        raise StoreError(holds.problem)
    return holds


def _refuse_others(place: Place) -> None:
    user = os.geteuid()
    if place.kind == "system" and user != 0:
        raise StoreError(
            "Only root may take devices of this machine out of service, and put them back: "
            "run it with  sudo"
        )
    if user == 0:
        return
    with contextlib.suppress(FileNotFoundError):  # who makes it owns it
        owner = _owner(place)
        if owner != user:
            others = "" if owner == 0 else " and root"
            raise StoreError(
                f"Only {processes.user_name(owner)}{others} may take devices out of service here, "
                f"and put them back: {place.directory} belongs to {processes.user_name(owner)}."
            )


def _open(place: Place) -> int:
    if place.kind != "system":
        fd = open_directory(place, create=True)
        assert fd is not None, "made where it was missing"
        return fd
    directory = _directory(place)
    try:
        if not os.path.lexists(directory):  # setup of an earlier release did not make it
            directory.mkdir(parents=True)
            directory.chmod(0o755)
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot(place, error) from error


def _cannot(place: Place, error: OSError) -> StoreError:
    return StoreError(f"{holds_path(place)} cannot be written: {error.strerror}.")


@contextlib.contextmanager
def _locked(place: Place, directory_fd: int) -> Iterator[None]:
    """Keep every other writer out. A file that only writers can open: others cannot lock it."""
    fd = _open_lock(directory_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StoreError(f"{_directory(place) / _LOCK_NAME} is not a plain file: remove it.")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"Somebody else goes on changing {holds_path(place)}: try again."
                    raise StoreError(message) from None
            time.sleep(_LOOKS_EVERY_SECONDS)
        yield
    finally:
        os.close(fd)


def _open_lock(directory_fd: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(_LOCK_NAME, flags, dir_fd=directory_fd)
    except FileNotFoundError:
        pass_on = os.fstat(directory_fd).st_uid
    try:
        fd = os.open(_LOCK_NAME, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory_fd)
    except FileExistsError:  # somebody was faster
        return os.open(_LOCK_NAME, flags, dir_fd=directory_fd)
    if pass_on != os.geteuid():
        os.fchown(fd, pass_on, -1)  # root's would keep the owner of the directory out
    return fd


def _write(place: Place, directory_fd: int, text: str) -> None:
    data = text.encode()
    if len(data) > HOLDS_SIZE_LIMIT:
        raise StoreError(f"{holds_path(place)} would be too large: unhold what is gone.")
    import secrets  # noqa: PLC0415 - readers never need it, and have to be quick

    temporary = f".{HOLDS_NAME}.{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o644, dir_fd=directory_fd)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # everybody reads it, whatever the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a hold survives a machine that stops
        os.rename(temporary, HOLDS_NAME, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        os.fsync(directory_fd)
    except OSError:
        with contextlib.suppress(OSError):  # it may have its name already
            os.unlink(temporary, dir_fd=directory_fd)
        raise
