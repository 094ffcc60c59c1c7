"""The lease store: one lock file and the records beside it, for every program of the machine.

Readers never lock. What is alive is found by asking the lock file, so dead records cost nothing;
what a live lease says about itself is read from its record and believed only as far as it goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.lease_reader import LeaseReader
from jupyter_gpu.adapters.place import Place, filesystem_type, open_directory, open_lock
from jupyter_gpu.adapters.records import RecordDirectory
from jupyter_gpu.adapters.units import used_by_orphans
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    DEVICE_UNITS,
    LEASE_IDS,
    QUEUE,
    WHOLE_FILE,
    Range,
    device_range,
    is_lease_id,
    lease_byte,
    new_lease_id,
    slot,
    total_units,
    without,
)
from jupyter_gpu.core.leases import Holdings, ProcessRef, Record, Waiter
from jupyter_gpu.core.rivals import with_conflicts

if TYPE_CHECKING:
    from jupyter_gpu.adapters.claim import Claim

# Records of dead waiters of other users that are stepped over, before it counts as an attack.
_SKIPPED = 10_000


class LeaseStore:
    """The leases of one place. Use it in a ``with``, or ``close`` it.

    Parameters
    ----------
    place
        The lease directory.
    write
        Whether leases will be taken: makes the directory where it is missing. A reader finds
        nothing there instead.
    filesystem
        Tells the type of the file system a path is on.

    Raises
    ------
    StoreError
        When the place cannot be used.
    """

    def __init__(
        self,
        place: Place,
        *,
        write: bool = False,
        filesystem: Callable[[Path], str | None] = filesystem_type,
    ) -> None:
        self.place = place
        self._directory_fd = open_directory(place, create=write)
        self._fd: int | None = None
        self._records: RecordDirectory | None = None
        if self._directory_fd is None:
            return
        try:
            self._fd = open_lock(place, self._directory_fd, write=write, filesystem=filesystem)
        except StoreError:
            self.close()
            raise
        if self._fd is not None:
            self._records = RecordDirectory(place, self._directory_fd)

    def __enter__(self) -> LeaseStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what the store opened; claims live on by themselves."""
        if self._records is not None:
            self._records.close()
        for fd in (self._fd, self._directory_fd):
            if fd is not None:
                os.close(fd)
        self._fd = self._directory_fd = self._records = None

    @property
    def supported(self) -> bool:
        """Whether this system has the locks that leases are made of, on this file."""
        if self._fd is not None:
            return locks.supported(self._fd)
        # Nothing is leased here yet: ask about a file that is always there.
        with open(os.devnull, "rb") as file:  # noqa: PTH123 - as above
            return locks.supported(file.fileno())

    def new_claim(self, ancestors: tuple[str, ...] = ()) -> Claim:
        """Return a claim with a lease id of its own and no devices yet.

        Raises
        ------
        StoreError
            When no lease id can be locked: somebody has locked the range of ids.
        """
        from jupyter_gpu.adapters.claim import Claim  # noqa: PLC0415 - readers have to be quick

        assert self._directory_fd is not None, "opened for writing"
        fd = open_lock(self.place, self._directory_fd, write=True, filesystem=lambda _: None)
        assert fd is not None, "made where it was missing"
        try:
            return Claim(fd, new_lease_id(), ancestors)
        except FileExistsError as error:
            message = (
                "GPUs cannot be leased: somebody has locked the lease ids of "
                f"{self.place.lock_path}.  sudo jupyter gpu doctor  names the process."
            )
            raise StoreError(message) from error

    def is_free(self, ancestors: tuple[str, ...], uuid: str) -> bool:
        """Return whether nobody holds this device, or part of it, below these ancestors."""
        return not self._locked(slot(ancestors[-1] if ancestors else None, uuid))

    def free_units(
        self, ancestors: tuple[str, ...], uuid: str, capacity: int = DEVICE_UNITS
    ) -> int:
        """Return how much of this device nobody holds below these ancestors, in units.

        ``capacity`` is how much of it there is: less than the whole below a lease on a share.
        """
        if self._fd is None or self.is_free(ancestors, uuid):
            return capacity
        parent = ancestors[-1] if ancestors else None
        where = Range(device_range(parent, uuid).start, capacity)
        left = total_units(without(where, locks.locked_ranges(self._fd, where)))
        # All of it unlocked, and yet in use: by a lease below one that is gone.
        in_use = left == capacity == DEVICE_UNITS or used_by_orphans(self._fd, parent, uuid)
        return 0 if in_use else left

    def is_live(self, lease_id: str) -> bool:
        """Return whether somebody keeps this lease alive."""
        return is_lease_id(lease_id) and self._locked(lease_byte(lease_id))

    def anyone_waits(self) -> bool:
        """Return whether there is any live ticket: one question, whatever the queue's length."""
        return self._locked(QUEUE)

    def waiters_before(
        self, ticket: int | None, known: dict[int, Waiter] | None = None
    ) -> Iterator[Waiter]:
        """Yield who waits, in their order, up to a ticket; None for all.

        Nothing is read of those who come after the last one that is looked at. ``known`` is what
        the caller has read before, by ticket: that is taken up again, and those who have stopped
        looking are left out without being read.
        """
        if self._fd is None or self._records is None:
            return
        where = QUEUE if ticket is None else Range(QUEUE.start, ticket)
        if not where.length:
            return
        reader = LeaseReader(self._fd, self._records)
        for found in locks.locked_ranges(self._fd, where):
            number = found.start - QUEUE.start
            if known is not None and not self._records.looks(number):
                continue
            waiter = None if known is None else known.get(number)
            waiter = waiter or reader.waiter(found)
            if waiter is not None:
                if known is not None:
                    known[number] = waiter
                yield waiter

    def _locked(self, where: Range) -> bool:
        return self._fd is not None and locks.first_lock(self._fd, where) is not None

    def own_live_record(self, lease_id: str) -> Record | None:
        """Return the record of a live lease of this user or root's; for root, of anybody's.

        None when it is not alive, says nothing, or is somebody else's, whose devices are not ours
        to part.
        """
        if self._records is None or not self.is_live(lease_id):
            return None
        found, uid = self._records.read(lease_id), os.getuid()
        if found is None or (found.uid not in (0, uid) and uid != 0):
            return None
        if uid not in (found.uid, 0):
            # Root's leases are parted by what root has started under them (JupyterHub, say); the
            # id alone, which anyone can read, opens nothing.
            above = processes.ancestors_of(os.getpid())
            holders = [p for p in found.record.owner.processes if p.pid in above - {1}]
            if not any(map(processes.is_alive, holders)):
                return None
        return found.record

    def holdings(self, known_uuids: Collection[str] = ()) -> Holdings:
        """Return every live lease and waiter, and which of these devices nobody claims."""
        if self._fd is None or self._records is None or not self._locked(WHOLE_FILE):
            return Holdings()
        leases = self.leases().leases
        claimed = {uuid for lease in leases for uuid in lease.record.uuids}
        unclaimed = tuple(u for u in known_uuids if u not in claimed and not self.is_free((), u))
        return Holdings(leases, tuple(self.waiters_before(None)), unclaimed)

    def leases(self) -> Holdings:
        """Return every live lease, and nobody who waits."""
        if self._fd is None or self._records is None:
            return Holdings()
        reader = LeaseReader(self._fd, self._records)
        leases = [
            lease
            for where in locks.locked_ranges(self._fd, LEASE_IDS)
            if (lease := reader.lease(where)) is not None
        ]
        leases.sort(key=lambda lease: (lease.record.indices, lease.record.since))
        return Holdings(with_conflicts(tuple(leases)))

    def publish(self, claim: Claim, record: Record) -> None:
        """Write the record of a claim.

        Raises
        ------
        StoreError
            When it cannot be written.
        """
        if self._records is not None and not claim.closed:
            self._records.write(record)

    def line_up(self, claim: Claim) -> int:
        """Take the next ticket whose record can be written, behind everybody who waits now.

        A waiter that was killed leaves its record until its user, or root, sweeps it.

        Raises
        ------
        StoreError
            When somebody has locked the queue.
        """
        ticket, skip = claim.line_up(), 0
        while self._records is not None and self._records.is_anothers(ticket) and skip < _SKIPPED:
            claim.leave_queue()
            skip += 1
            ticket = claim.line_up(skip)
        return ticket

    def leave_queue(self, claim: Claim) -> None:
        """Give a claim's ticket back, if it has one, and the record that says what it waits for."""
        if claim.ticket is not None and self._records is not None:
            self._records.remove_waiter(claim.ticket)
        claim.leave_queue()

    def withdraw(self, claim: Claim) -> None:
        """End a claim in this process: its record goes first, so that none outlives its lease.

        The record comes back where processes of this user, forked workers say, keep the lease. A
        fork's copy of a claim is only closed: the record is its parent's.
        """
        if self._records is None or claim.closed or claim.inherited:
            claim.close()
            return
        self.leave_queue(claim)
        found = self._records.read(claim.id)
        left = self._left_of(claim.id, claim.sharing) if claim.shared else ()
        if found is not None and left:
            # Forked workers of a kernel whose devices were handed on: what it had stays locked.
            self._leave_to(left, found.record)
            claim.close(keep_locks=True)
            return
        self._records.remove(claim.id)
        claim.close()
        if found is not None and self.is_live(claim.id):
            self._leave_to_keepers(found.record)

    def settle(self, claim: Claim) -> None:
        """Give up what workers of a lease before this one kept, once they have ended."""
        for burden in tuple(claim.burdens):
            if not self._left_of(burden[0], claim.sharing | {claim.id}):
                claim.drop_burden(burden)
                if self._records is not None:
                    self._records.remove(burden[0])

    def _left_of(self, lease_id: str, takers: frozenset[str]) -> tuple[processes.ProcessInfo, ...]:
        """Return the processes that a lease which ended has left on a description it shared.

        They are those that hold it, less this process and the kernels that took over with what
        they have started: a kernel leads a session of its own.
        """
        records = (self._records.read(taker) for taker in takers) if self._records else ()
        known = {p.pid for found in records if found for p in found.record.owner.processes}
        return tuple(
            info
            for info in self._keepers(lease_id)
            if info.pid != os.getpid() and not known & {info.pid, info.session}
        )

    def _keepers(self, lease_id: str) -> tuple[processes.ProcessInfo, ...]:
        infos = (processes.look(process.pid) for process in self.kept_by(lease_id))
        return tuple(info for info in infos if info is not None)

    def _leave_to_keepers(self, record: Record) -> None:
        # Whoever locks the byte of a lease that ended is not believed: only processes that can be
        # seen to hold the lock and are this user's own count.
        left = tuple(info for info in self._keepers(record.id) if info.uid == os.getuid())
        if left:
            self._leave_to(left, record)

    def _leave_to(self, left: tuple[processes.ProcessInfo, ...], record: Record) -> None:
        workers = tuple(processes.reference(info.pid) for info in left)
        owner = dataclasses.replace(record.owner, keeper=None, workers=workers)
        assert self._records is not None
        with contextlib.suppress(StoreError):  # the lock is the truth, the record a hint
            self._records.write(dataclasses.replace(record, owner=owner, ticket=None))

    def show_life(self, claim: Claim) -> None:
        """Show that a waiter still looks."""
        if self._records is not None and claim.ticket is not None:
            self._records.touch_waiter(claim.ticket)

    def sweep(self) -> None:
        """Remove some records of ours whose lease is gone, and note in the log that it is."""
        from jupyter_gpu.adapters.grant_log import GrantLog  # noqa: PLC0415 - readers are quick

        if self._records is None:
            return
        for one in self._records.dead_candidates():
            # Locked while it is removed, so that nobody writes a new one of that name meanwhile.
            if self._fd is None or not locks.try_lock(self._fd, one.alive):
                continue
            try:
                self._records.remove_file(one.name)
            finally:
                locks.unlock(self._fd, one.alive)
            if one.lease_id is not None:
                GrantLog(self.place).ended(one.lease_id, exact=False, at=one.touched)

    def recent_devices(self, notebook: str | None) -> tuple[str, ...]:
        """Return the UUIDs that this user's notebook had last time."""
        if self._records is None or notebook is None:
            return ()
        return self._records.recent_devices(notebook)

    def remember_devices(self, notebook: str | None, uuids: tuple[str, ...]) -> None:
        """Remember what a notebook had."""
        if self._records is not None and notebook is not None:
            self._records.remember_devices(notebook, uuids)

    def kept_by(self, lease_id: str) -> tuple[ProcessRef, ...]:
        """Return the processes that can be seen to keep a lease alive."""
        if self._fd is None:
            return ()
        pids = processes.holders_of(os.fstat(self._fd), lease_byte(lease_id))
        return tuple(processes.reference(pid) for pid in pids)
