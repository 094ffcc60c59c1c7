"""The record files: written by rename, read with suspicion, swept when their lease is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import stat
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from jupyter_gpu.adapters.place import RECORDS_NAME, Place
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import Range, lease_byte, ticket_byte
from jupyter_gpu.core.leases import RECORD_SIZE_LIMIT, Record, clean

# More than twice the longest pause of a waiter (see turn.py), for a machine under load.
STALLED_SECONDS = 4.0
# The record of a lease or of a waiter, also while it is being written.
_RECORD_NAME = re.compile(
    r"\.?(?:([0-9a-f]{15})|waiting-([0-9]{1,13}))\.(?:json|notebook)(?:\.[0-9a-f]{8})?"
)
_RECENT_NOTEBOOKS = 100
_SWEPT_AT_ONCE = 64
# Records are there for others to read, to name the holder; notebooks' names perhaps not.
_FOR_ALL, _FOR_ONESELF = 0o644, 0o600


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record with what its file says: the owner's uid, and when it was last touched."""

    record: Record
    uid: int
    touched: float


@dataclass(frozen=True, slots=True)
class Swept:
    """A file that may be needed no more: the unit ``alive`` is locked while it is.

    ``lease_id`` is there where it is the record of a lease, ``touched`` when it was last written.
    """

    name: str
    alive: Range
    lease_id: str | None
    touched: float


class RecordDirectory:
    """The directory of record files of one place; ``close`` it, or use it in a ``with``."""

    def __init__(self, place: Place, directory_fd: int) -> None:
        self.path = place.directory / RECORDS_NAME
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd: int | None = os.open(RECORDS_NAME, flags, dir_fd=directory_fd)
        except OSError:
            self._fd = None  # readers do without; writing says what is wrong

    def close(self) -> None:
        """Close the directory; calling it twice does nothing more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, lease_id: str) -> FoundRecord | None:
        """Return a lease's record, or None when there is none that can be believed to be one."""
        return self._found(lease_id, lease_id)

    def read_waiter(self, ticket: int) -> FoundRecord | None:
        """Return the record of who waits with this ticket, as ``read`` does."""
        found = self._found(_waiting_stem(ticket))
        return found if found is not None and found.record.ticket == ticket else None

    def looks(self, ticket: int) -> bool:
        """Return whether the one who waits with this ticket has looked of late."""
        return _touched_lately(f"{_waiting_stem(ticket)}.json", self._fd)

    def _found(self, stem: str, lease_id: str | None = None) -> FoundRecord | None:
        found = self._read(f"{stem}.json")
        if found is None:
            return None
        text, status = found
        try:
            record = Record.from_json(text, lease_id)
        except (ValueError, RecursionError):
            return None
        if record.notebooks == "own":
            private = self._read(f"{stem}.notebook")
            if private is not None and private[1].st_uid == status.st_uid:
                owner = dataclasses.replace(record.owner, notebook=clean(private[0]))
                record = dataclasses.replace(record, owner=owner)
        return FoundRecord(_without_future(record), status.st_uid, status.st_mtime)

    def _read(self, name: str) -> tuple[str, os.stat_result] | None:
        if self._fd is None:
            return None
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_size > RECORD_SIZE_LIMIT:
                return None
            # Named here, because Windows lacks them and has to be able to import this.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
            with os.fdopen(os.open(name, flags, dir_fd=self._fd), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                return file.read(RECORD_SIZE_LIMIT).decode("utf-8"), status
        except (OSError, ValueError):
            return None

    def write(self, record: Record) -> None:
        """Write the record of a lease, or of a waiter if it has a ticket, in one step.

        Raises
        ------
        StoreError
            When it cannot be written: full, read-only, or another user's file of that name.
        """
        stem = record.id if record.ticket is None else _waiting_stem(record.ticket)
        notebook = record.owner.notebook
        try:
            if record.notebooks == "own" and notebook is not None:
                self._write(f"{stem}.notebook", notebook, _FOR_ONESELF)
            self._write(f"{stem}.json", record.to_json())
        except OSError as error:
            message = f"GPUs cannot be leased: a record cannot be written to {self.path}: "
            raise StoreError(f"{message}{error.strerror}.") from error

    def _write(self, name: str, text: str, mode: int = _FOR_ALL) -> None:
        if self._fd is None:
            raise FileNotFoundError(2, "it is missing or is not a directory", str(self.path))
        import secrets  # noqa: PLC0415 - readers never need it, and have to be quick

        temporary = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, mode, dir_fd=self._fd), "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(text.encode())
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            with contextlib.suppress(OSError):  # it may never have been made
                os.unlink(temporary, dir_fd=self._fd)
            raise

    def touch_waiter(self, ticket: int) -> None:
        """Show that the one who waits with this ticket still looks."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # only a sign of life; the next one may work
                os.utime(f"{_waiting_stem(ticket)}.json", dir_fd=self._fd, follow_symlinks=False)

    def remove(self, lease_id: str) -> None:
        """Remove a lease's record, if it is there and ours to remove."""
        self._remove_both(lease_id)

    def is_anothers(self, ticket: int) -> bool:
        """Return whether another user's file stands where this ticket's record would be."""
        try:
            name = f"{_waiting_stem(ticket)}.json"
            owner = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_uid
        except OSError:
            return False
        return os.getuid() not in (0, owner)

    def remove_waiter(self, ticket: int) -> None:
        """Remove the record of who waits with this ticket, if it is there and ours to remove."""
        self._remove_both(_waiting_stem(ticket))

    def _remove_both(self, stem: str) -> None:
        self.remove_file(f"{stem}.json")
        self.remove_file(f"{stem}.notebook")

    def remove_file(self, name: str) -> None:
        """Remove a file of this directory, if it is there and ours to remove."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # gone already, or not ours
                os.unlink(name, dir_fd=self._fd)

    def dead_candidates(self) -> tuple[Swept, ...]:
        """Return some files that may be needed no more.

        Any few of this user's, or of everybody's for root.

        Drawn at random, so that in time every one has its turn; what a writer that was killed has
        left half made is among them.
        """
        if self._fd is None:
            return ()
        try:
            names = os.listdir(self._fd)  # noqa: PTH208 - a descriptor, not a path
        except OSError:
            return ()
        drawn = random.sample(names, min(len(names), _SWEPT_AT_ONCE))
        found = ((name, _RECORD_NAME.fullmatch(name)) for name in drawn)
        named = (self._swept(name, match) for name, match in found if match)
        return tuple(one for one in named if one is not None)

    def _swept(self, name: str, match: re.Match[str]) -> Swept | None:
        """Return what a file of this name is for, None where it is not ours to remove."""
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return None
        if os.getuid() not in (0, status.st_uid):
            return None
        alive = lease_byte(match[1]) if match[1] else ticket_byte(int(match[2]))
        is_lease = name == f"{match[1]}.json"
        return Swept(name, alive, match[1] if is_lease else None, status.st_mtime)

    def recent_devices(self, notebook: str) -> tuple[str, ...]:
        """Return the UUIDs that this user's notebook had last time, empty when not known."""
        return self._recent().get(notebook, ())

    def remember_devices(self, notebook: str, uuids: tuple[str, ...]) -> None:
        """Remember what a notebook had, for its next start; only a preference hangs on it."""
        recent = self._recent()
        recent.pop(notebook, None)
        recent[notebook] = uuids
        newest = dict(list(recent.items())[-_RECENT_NOTEBOOKS:])
        with contextlib.suppress(OSError):  # a hint that cannot be kept is no reason to fail
            self._write(self._recent_name(), json.dumps(newest), _FOR_ONESELF)

    @staticmethod
    def _recent_name() -> str:
        return f"recent-{os.getuid()}.json"

    def _recent(self) -> dict[str, tuple[str, ...]]:
        found = self._read(self._recent_name())
        if found is None or found[1].st_uid != os.getuid():
            return {}
        try:
            data = json.loads(found[0])
        except (ValueError, RecursionError):
            return {}
        return {
            notebook: tuple(clean(uuid) for uuid in uuids if isinstance(uuid, str))
            for notebook, uuids in (data.items() if isinstance(data, dict) else ())
            if isinstance(uuids, list)
        }


def _without_future(record: Record) -> Record:
    """Return the record without a time that has not come yet."""
    idle_since = record.owner.idle_since
    if idle_since is None or datetime.fromisoformat(idle_since) <= datetime.now(timezone.utc):
        return record
    return dataclasses.replace(record, owner=dataclasses.replace(record.owner, idle_since=None))


def _waiting_stem(ticket: int) -> str:
    return f"waiting-{ticket}"


def _touched_lately(
    name: str, directory_fd: int | None = None, within: float = STALLED_SECONDS
) -> bool:
    try:
        touched = os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime
    except OSError:
        return False
    return time.time() - touched <= within


def looks(place: Place, ticket: int, within: float = STALLED_SECONDS) -> bool:
    """Return whether the one who waits with this ticket has looked in the last seconds, as a hint.

    For who needs no more than this, and so no open directory.
    """
    name = f"{place.directory}/{RECORDS_NAME}/{_waiting_stem(ticket)}.json"
    return _touched_lately(name, within=within)


def records_path(place: Place) -> Path:
    """Return where the records of a place are."""
    return place.directory / RECORDS_NAME
