"""The log of grants on disk: one file for each user, so that its owner is the truth about who.

The machine's own place keeps it in ``/var/log/jupyter-gpu``, made by setup; any other lease
directory keeps it inside. Whatever is wrong with it keeps nobody from a lease.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.place import Place, open_directory
from jupyter_gpu.adapters.records import RecordDirectory
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.grants import (
    Ended,
    Granted,
    Log,
    UserLog,
    ended_line,
    granted_line,
    parse_entries,
    recent,
    unended,
)
from jupyter_gpu.core.leases import Record

if sys.platform != "win32":
    import fcntl

LOG_DIRECTORY = Path("/var/log/jupyter-gpu")
LOG_NAME = "log"
SIZE_LIMIT = 4 * 1024 * 1024
_NAME = re.compile(r"grants-(0|[1-9][0-9]{0,9})\.jsonl")


class GrantLog:
    """The log of one place. It keeps nothing open, and may be used from several threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        if place.kind == "system":
            # Beside /run/jupyter-gpu, also where the machine's files begin elsewhere than at "/".
            root = place.directory.parent.parent
            self.directory = root / LOG_DIRECTORY.relative_to("/")
        else:
            self.directory = place.directory / LOG_NAME

    def granted(self, record: Record, share: Fraction = Fraction(1)) -> None:
        """Note that a lease began, or went on on the devices that its record names now.

        Called by who grants, for leases that are not nested in another; it raises nothing.
        """
        now = datetime.now(timezone.utc)
        kind = record.owner.kind
        entry = Granted(record.id, now, record.uuids, record.indices, share, kind)
        self._append(granted_line(entry))

    def ended(self, lease_id: str, *, exact: bool, at: float | None = None) -> None:
        """Note that a lease has ended; it raises nothing.

        Parameters
        ----------
        lease_id
            Its id; one that was never noted does no harm.
        exact
            True by who releases it; False by who finds its record after its end.
        at
            When, in seconds since 1970, else now. Who finds a record afterwards gives the time at
            which its file was last touched: until then it was alive.
        """
        moment = datetime.now(timezone.utc)
        if at is not None:
            with contextlib.suppress(ValueError, OverflowError, OSError):  # no time of this world
                moment = min(moment, datetime.fromtimestamp(at, timezone.utc))
        self._append(ended_line(Ended(lease_id, moment, exact)))

    def _append(self, line: bytes) -> None:
        # No log, a full disk, another user's file of that name: a lease is worth more than a line.
        with contextlib.suppress(OSError):
            directory_fd = self._open_to_write()
            try:
                fd = _open_own(directory_fd)
                try:
                    os.write(fd, line)
                finally:
                    os.close(fd)
            finally:
                os.close(directory_fd)

    def _open_to_write(self) -> int:
        try:
            return self._open()
        except FileNotFoundError:
            if self._place.kind == "system":  # made by setup alone
                raise
        with contextlib.suppress(FileExistsError):  # somebody was faster
            self.directory.mkdir()
            self.directory.chmod(0o1777)  # the umask is the caller's
        return self._open()

    def _open(self) -> int:
        return os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def read(self, since: datetime | None = None) -> Log:
        """Return what every user's programs have written, less the leases that ended before.

        A file is believed for the user who owns it, if it bears that user's name.
        """
        try:
            directory_fd = self._open()
        except FileNotFoundError:
            return Log(str(self.directory), exists=False)
        except OSError as error:
            problem = f"{self.directory} cannot be read: {error.strerror}."
            return Log(str(self.directory), exists=False, problems=(problem,))
        users, problems = [], []
        try:
            for name in sorted(os.listdir(directory_fd)):  # noqa: PTH208 - a descriptor, not a path
                match = _NAME.fullmatch(name)
                if match is None:
                    continue
                uid = int(match[1])
                older, _ = _read(directory_fd, f"{name}.1", uid)
                data, why = _read(directory_fd, name, uid)
                if why is not None:
                    problems.append(f"{self.directory / name} does not count: it {why}.")
                entries = parse_entries(older + b"\n" + data)
                entries = entries if since is None else recent(entries, since)
                users.append(UserLog(uid, processes.user_name(uid), entries))
        finally:
            os.close(directory_fd)
        return Log(str(self.directory), exists=True, users=tuple(users), problems=tuple(problems))


def _open_own(directory_fd: int) -> int:
    """Open this user's file to append to it, a new one where it is missing or has grown large."""
    name = f"grants-{os.geteuid()}.jsonl"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    while True:
        try:
            fd = os.open(name, flags, dir_fd=directory_fd)
        except FileNotFoundError:
            # Only after a plain open: see fs.protected_regular in proc(5).
            with contextlib.suppress(FileExistsError):  # another process of ours was faster
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory_fd)
                os.fchmod(fd, 0o644)  # everybody may read it, whatever the umask
                return fd
            continue
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(fd)
            raise PermissionError(name)
        if status.st_size <= SIZE_LIMIT or not _put_aside(fd, name, directory_fd):
            return fd
        os.close(fd)


def _put_aside(fd: int, name: str, directory_fd: int) -> bool:
    """Rename a file that has grown large; False where it has to go on being written to.

    Two who find it large must not both rename, or the second would put the new file over the old.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if os.path.samestat(current, os.fstat(fd)):
            os.rename(name, f"{name}.1", src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except FileNotFoundError:  # renamed by another a moment ago
        return True
    except OSError:  # in another's hands, or the other name is: the line still finds its place
        return False
    return True


def _read(directory_fd: int, name: str, uid: int) -> tuple[bytes, str | None]:
    """Return the end of a file of this user's, or why it is not believed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        # Looked at first, because merely opening some devices does something.
        why = _unbelievable(os.stat(name, dir_fd=directory_fd, follow_symlinks=False), uid)
        if why is not None:
            return b"", why
        with os.fdopen(os.open(name, flags, dir_fd=directory_fd), "rb") as file:
            status = os.fstat(file.fileno())
            why = _unbelievable(status, uid)
            if why is not None:
                return b"", why
            file.seek(max(status.st_size - 2 * SIZE_LIMIT, 0))
            return file.read(2 * SIZE_LIMIT), None
    except FileNotFoundError:  # there is none, or it has just been renamed
        return b"", None
    except OSError as error:
        return b"", f"cannot be read: {error.strerror}"


def _unbelievable(status: os.stat_result, uid: int) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if status.st_uid == uid:
        return None
    return f"belongs to {processes.user_name(status.st_uid)}"


def still_alive(
    place: Place, users: Iterable[UserLog]
) -> tuple[frozenset[str], dict[str, datetime]]:
    """Return which leases without an end are alive, and when the others were seen alive last.

    Raises
    ------
    StoreError
        When the lease directory cannot be read.
    """
    live, seen = set(), {}
    directory_fd = open_directory(place, create=False)
    if directory_fd is None:
        return frozenset(), {}
    try:
        records = RecordDirectory(place, directory_fd)
    finally:
        os.close(directory_fd)
    with contextlib.closing(records), LeaseStore(place) as store:
        for uid, lease in unended(users):
            if store.is_live(lease):
                live.add(lease)
                continue
            # A record that has not been swept yet was last touched while its lease was alive.
            found = records.read(lease)
            if found is not None and found.uid == uid:
                with contextlib.suppress(ValueError, OverflowError, OSError):  # no real time
                    seen[lease] = datetime.fromtimestamp(found.touched, timezone.utc)
    return frozenset(live), seen
