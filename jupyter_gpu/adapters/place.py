"""The lease directory: where it is, opening it safely, and how far it can be trusted.

Anything may stand where our files should be (symbolic links, pipes, devices, other users' files),
so everything is opened without following links and checked after opening.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import LAYOUT_VERSION

SYSTEM_DIRECTORY = Path("/run/jupyter-gpu")
SHARED_DIRECTORY = Path("/dev/shm/jupyter-gpu")  # noqa: S108 - the one place all users share
# By its full path, because sudo does not look where a virtual environment is.
SETUP_COMMAND = 'sudo "$(command -v jupyter-gpu)" setup'
LOCK_NAME, RECORDS_NAME, LAYOUT_NAME = "lock", "records", "layout"

# fmt: off
_NETWORK_FILESYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "gpfs",
    "glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.ceph-fuse", "ocfs2", "gfs2", "orangefs",
    "pvfs2", "fuse.s3fs",
))
# fmt: on

PlaceKind = Literal["system", "shared", "given", "simulated"]


@dataclass(frozen=True, slots=True)
class Place:
    """A lease directory and why it is the one."""

    directory: Path
    kind: PlaceKind

    @property
    def lock_path(self) -> Path:
        """The one lock file of this place."""
        return self.directory / LOCK_NAME


def find_place(environ: Mapping[str, str], *, simulated: bool) -> Place:
    """Return the place that every program with this environment uses."""
    given = environ.get("JUPYTER_GPU_LEASE_DIR")
    if given:
        return Place(Path(given), "given")
    if simulated:
        name = f"jupyter-gpu-simulated-{getattr(os, 'getuid', int)()}"
        return Place(_shared_memory() / name, "simulated")
    if SYSTEM_DIRECTORY.is_dir():
        return Place(SYSTEM_DIRECTORY, "system")
    return Place(SHARED_DIRECTORY, "shared")


def _shared_memory() -> Path:
    parent = SHARED_DIRECTORY.parent
    if parent.is_dir():
        return parent
    import tempfile  # noqa: PLC0415 - readers have to be quick, and rarely need it

    return Path(tempfile.gettempdir())


def filesystem_type(path: Path) -> str | None:
    """Return the type of the file system that a path is on, from /proc/self/mountinfo."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    try:
        device = os.stat(path).st_dev  # noqa: PTH116
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(lines):
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0]
    return None


def open_directory(place: Place, *, create: bool) -> int | None:
    """Open the lease directory, making it first if asked to; None when there is none.

    Raises
    ------
    StoreError
        When it cannot be used, with the reason and what to do.
    """
    if not place.directory.is_absolute():
        # Every program would mean another directory, and all would lease the same devices.
        raise _cannot(place.directory, "is not an absolute path: JUPYTER_GPU_LEASE_DIR needs one")
    if create and not os.path.lexists(place.directory):
        _make(place)
    try:
        fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        if create:
            raise _cannot(place.directory, "does not exist and could not be made") from None
        return None
    except NotADirectoryError:
        raise _cannot(place.directory, "is not a directory: remove it") from None
    except OSError as error:
        raise _cannot(place.directory, f"cannot be opened: {error.strerror}") from error
    if place.kind in ("shared", "simulated") and place.directory.is_symlink():
        os.close(fd)
        raise _cannot(place.directory, "is a symbolic link: remove it")
    return fd


def _make(place: Place) -> None:
    # Made complete under another name, then renamed: whoever finds it finds all of it.
    import tempfile  # noqa: PLC0415 - readers have to be quick, and never need it

    try:
        place.directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".jupyter-gpu-", dir=place.directory.parent))
    except OSError as error:
        raise _cannot(place.directory, f"cannot be made: {error.strerror}") from error
    try:
        made.chmod(0o755)
        furnish(made)
        made.rename(place.directory)
    except OSError as error:
        for name in (LOCK_NAME, LAYOUT_NAME):
            (made / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it may not have got as far
            (made / RECORDS_NAME).rmdir()
        with contextlib.suppress(OSError):  # nothing worse than an empty directory is left
            made.rmdir()
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # not just a faster neighbour
            raise _cannot(place.directory, f"cannot be made: {error.strerror}") from error


def furnish(directory: Path) -> None:
    """Put into a directory what a lease directory needs and it does not have yet.

    Called for a new directory before anyone sees it, by ``setup``, and for a directory that the
    environment names. Modes are set by hand because the umask is the caller's. The lock file is
    made last and the layout in one step: whoever finds a lock file finds the rest.
    """
    lock, records, layout = (directory / name for name in (LOCK_NAME, RECORDS_NAME, LAYOUT_NAME))
    if not os.path.lexists(layout):
        import tempfile  # noqa: PLC0415 - readers have to be quick, and never need it

        fd, name = tempfile.mkstemp(prefix=".layout-", dir=directory)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(f"{LAYOUT_VERSION}\n".encode())
            Path(name).rename(layout)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    with contextlib.suppress(FileExistsError):  # made by somebody else meanwhile
        records.mkdir()
        records.chmod(0o1777)
    with contextlib.suppress(FileExistsError):
        fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.fchmod(fd, 0o666)
        finally:
            os.close(fd)


def open_lock(
    place: Place,
    directory_fd: int,
    *,
    write: bool,
    filesystem: Callable[[Path], str | None] = filesystem_type,
) -> int | None:
    """Open the lock file of a lease directory; None when there is none.

    Opening for writing makes one where it is missing; ``filesystem`` tells a path's type.

    Raises
    ------
    StoreError
        When what stands there is not a plain file, is on a network file system, has another
        layout, or may not be opened.
    """
    fd = _open_regular(place, LOCK_NAME, directory_fd, os.O_RDWR if write else os.O_RDONLY)
    if fd is None and write:
        try:
            furnish(place.directory)
        except OSError as error:
            raise _cannot(place.lock_path, f"cannot be made: {error.strerror}") from error
        fd = _open_regular(place, LOCK_NAME, directory_fd, os.O_RDWR)
    if fd is not None:
        try:
            _check_filesystem(place, filesystem(place.directory))
            _check_layout(place, directory_fd)
        except StoreError:
            os.close(fd)
            raise
    return fd


def _open_regular(place: Place, name: str, directory_fd: int, mode: int) -> int | None:
    path = place.directory / name
    flags = mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        # Looked at first, because merely opening some devices does something.
        if not stat.S_ISREG(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode):
            raise _cannot(path, "is not a plain file: remove it")
        fd = os.open(name, flags, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    except StoreError:
        raise
    except OSError as error:
        raise _cannot(path, f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _cannot(path, "is not a plain file: remove it")
    return fd


def _check_filesystem(place: Place, kind: str | None) -> None:
    if kind in _NETWORK_FILESYSTEMS:
        raise _cannot(
            place.directory,
            f"is on a network file system ({kind}), where locks of this machine do not hold: "
            "name a local directory in JUPYTER_GPU_LEASE_DIR",
        )


def _check_layout(place: Place, directory_fd: int) -> None:
    fd = _open_regular(place, LAYOUT_NAME, directory_fd, os.O_RDONLY)
    if fd is None:
        return
    with os.fdopen(fd, "rb") as file:
        found = file.read(64).strip()
    if found != str(LAYOUT_VERSION).encode():
        shown = found.decode("ascii", "replace")[:20]
        raise _cannot(
            place.directory,
            f"has layout {shown!r}, and this release knows layout {LAYOUT_VERSION}: "
            "use one version of jupyter-gpu on this machine",
        )


def safety(place: Place) -> str | None:
    """Return a sentence when other users could tamper with this place, else None.

    Whoever owns a directory or a file in it can replace it: only root's are safe. A simulated
    machine has nothing to protect.
    """
    if place.kind == "simulated":
        return None
    try:
        lock, directory = place.lock_path.lstat(), place.directory.lstat()
        above = [parent.stat() for parent in place.directory.parents]
    except OSError:
        return _UNSAFE
    owners = {status.st_uid for status in (lock, directory, *above)}
    # In a sticky directory others may add names, but not touch root's.
    open_above = any(_others_write(s) and not s.st_mode & stat.S_ISVTX for s in above)
    return _UNSAFE if owners != {0} or _others_write(directory) or open_above else None


def _others_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


_UNSAFE = (
    "Leases here are not safe against other users, who could replace the lease directory: "
    f"run  {SETUP_COMMAND}"
)


def _cannot(path: Path, why: str) -> StoreError:
    return StoreError(f"GPUs cannot be leased: {path} {why}.")
