"""The record files: written by rename, read with suspicion, swept when their lease is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import stat
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from jupyter_gpu.adapters.place import RECORDS_NAME, Place
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.leases import RECORD_SIZE_LIMIT, Record, clean

# The record of a lease, also while it is being written.
_RECORD_NAME = re.compile(r"\.?([0-9a-f]{15})\.json(?:\.[0-9a-f]{8})?")
_RECENT_NOTEBOOKS = 100
_SWEPT_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record with what its file says: the owner's uid, and when it was last touched."""

    record: Record
    uid: int
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
        found = self._read(f"{lease_id}.json")
        if found is None:
            return None
        text, status = found
        try:
            record = Record.from_json(text, lease_id)
        except (ValueError, RecursionError):
            return None
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
        """Write a lease's record in one step.

        Raises
        ------
        StoreError
            When it cannot be written: full, read-only, or another user's file of that name.
        """
        try:
            self._write(f"{record.id}.json", record.to_json())
        except OSError as error:
            message = f"GPUs cannot be leased: a record cannot be written to {self.path}: "
            raise StoreError(f"{message}{error.strerror}.") from error

    def _write(self, name: str, text: str) -> None:
        if self._fd is None:
            raise FileNotFoundError(2, "it is missing or is not a directory", str(self.path))
        import secrets  # noqa: PLC0415 - readers never need it, and have to be quick

        temporary = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=self._fd), "wb") as file:
                os.fchmod(file.fileno(), 0o644)  # others read it to name the holder
                file.write(text.encode())
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            with contextlib.suppress(OSError):  # it may never have been made
                os.unlink(temporary, dir_fd=self._fd)
            raise

    def touch(self, lease_id: str) -> None:
        """Show that the one who waits under this id still looks."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # only a sign of life; the next one may work
                os.utime(f"{lease_id}.json", dir_fd=self._fd, follow_symlinks=False)

    def remove(self, lease_id: str) -> None:
        """Remove a lease's record, if it is there and ours to remove."""
        self.remove_file(f"{lease_id}.json")

    def remove_file(self, name: str) -> None:
        """Remove a file of this directory, if it is there and ours to remove."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # gone already, or not ours
                os.unlink(name, dir_fd=self._fd)

    def dead_candidates(self) -> tuple[tuple[str, str], ...]:
        """Return some files with the ids of their leases: any few of this user's, or root's all.

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
        return tuple((name, match[1]) for name, match in found if match and self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        uid = os.getuid()
        try:
            return uid == 0 or os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_uid == uid
        except OSError:
            return False

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
            self._write(self._recent_name(), json.dumps(newest))

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


def records_path(place: Place) -> Path:
    """Return where the records of a place are."""
    return place.directory / RECORDS_NAME
