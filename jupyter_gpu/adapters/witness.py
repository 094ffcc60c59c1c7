"""A witness: a description of the lock file of one's own, to ask what another one really holds.

A kernel and its server have copies of one description, and either may change what it holds; what
the other remembers is then out of date. The system tells a description only what others have
locked. So what is locked for the witness and not for the description asked about is that one's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.place import Place, open_directory, open_lock
from jupyter_gpu.adapters.records import RecordDirectory
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    LEASE_IDS,
    QUEUE,
    Range,
    change_byte,
    device_range,
    lease_id_at,
    total_units,
)
from jupyter_gpu.core.leases import Record


class Witness:
    """Looks at one place's lock file and records. Use it in a ``with``, or ``close`` it.

    Parameters
    ----------
    place
        The lease directory, which exists.

    Raises
    ------
    StoreError
        When it cannot be used any more.
    """

    def __init__(self, place: Place) -> None:
        directory_fd = open_directory(place, create=False)
        if directory_fd is None:
            raise StoreError(f"The lease directory {place.directory} is gone.")
        try:
            fd = open_lock(place, directory_fd, write=True, filesystem=lambda _: None)
            assert fd is not None, "made where it was missing"
            self._fd = fd
            self._records = RecordDirectory(place, directory_fd)
        finally:
            os.close(directory_fd)

    def __enter__(self) -> Witness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened, and give up the right to change a lease."""
        self._records.close()
        os.close(self._fd)

    def try_change(self, lease_id: str) -> bool:
        """Take the right to change a lease's devices; False while another process has it."""
        return locks.try_lock(self._fd, change_byte(lease_id))

    def knows(self, fd: int) -> bool:
        """Return whether a descriptor is one of the lock file that is there now."""
        mine, asked = os.fstat(self._fd), os.fstat(fd)
        return (mine.st_dev, mine.st_ino) == (asked.st_dev, asked.st_ino)

    def devices_on(
        self, fd: int, ancestors: tuple[str, ...], uuids: Iterable[str]
    ) -> dict[str, int]:
        """Return what the description holds of the devices, in units, below these ancestors."""
        parent = ancestors[-1] if ancestors else None
        found = {
            uuid: total_units(locks.held_by(fd, self._fd, device_range(parent, uuid)))
            for uuid in dict.fromkeys(uuids)
        }
        return {uuid: units for uuid, units in found.items() if units}

    def leases_on(self, fd: int) -> tuple[str, ...]:
        """Return the ids of every lease that the description keeps alive."""
        found = locks.locked_ranges(self._fd, LEASE_IDS)
        return tuple(
            lease_id_at(where.start)
            for where in found
            if where.length == 1 and locks.first_lock(fd, where) is None
        )

    def tickets_on(self, fd: int) -> tuple[Range, ...]:
        """Return the places in the queue that the description has."""
        found = locks.locked_ranges(self._fd, QUEUE)
        return tuple(where for where in found if locks.first_lock(fd, where) is None)

    def own_record(self, lease_id: str) -> Record | None:
        """Return a lease's record if this user has written it, else None."""
        found = self._records.read(lease_id)
        return found.record if found is not None and found.uid == os.geteuid() else None

    def publish(self, record: Record) -> None:
        """Write a lease's record.

        Raises
        ------
        StoreError
            When it cannot be written.
        """
        self._records.write(record)

    def remove_record(self, lease_id: str) -> None:
        """Remove a lease's record, if it is there and ours to remove."""
        self._records.remove(lease_id)
