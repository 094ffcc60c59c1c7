"""One open file description of the lock file: a ticket, a lease in the making, a lease.

The description holds the locks; a claim is this process's handle on it. Copies of the descriptor
(in the kernel, in forked workers, in the next provisioner of a notebook) keep the locks alive, so
a claim only ever unlocks what nobody else who shares the description needs, and otherwise closes.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.units import keep_units, lock_units, used_by_orphans
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    DEVICE_UNITS,
    QUEUE,
    Range,
    device_range,
    lease_byte,
    nested_byte,
    nested_in,
    ticket_byte,
    user_byte,
)

# How many places of the queue count as near: those wait without a longer pause.
CROWD = 8

class Claim:
    """A descriptor with a lease id of its own and the devices locked through it.

    Parameters
    ----------
    fd
        A read-write descriptor of the lock file; the claim owns it from here on.
    lease_id
        The id whose byte is locked at once.
    ancestors
        Ids of the leases this one is nested in, outermost first.
    """

    def __init__(
        self,
        fd: int,
        lease_id: str,
        ancestors: tuple[str, ...] = (),
        sharers: weakref.WeakSet[Claim] | None = None,
    ) -> None:
        self.id, self.ancestors = lease_id, ancestors
        # The units that this claim needs of each device, in visible order.
        self.holding: dict[str, int] = {}
        self.ticket: int | None = None
        self._fd: int | None = fd
        self._pid = os.getpid()
        self._guard = threading.RLock()
        # Every claim of this process on the same description, this one included.
        self._sharers: weakref.WeakSet[Claim] = weakref.WeakSet() if sharers is None else sharers
        self._sharers.add(self)
        self._taker: weakref.ref[Claim] | None = None
        # Ids and devices of leases that ended on this description while workers of theirs live.
        self.burdens: list[tuple[str, dict[str, int]]] = []
        self._finalizer = weakref.finalize(self, _close_quietly, fd)
        if not locks.try_lock(fd, lease_byte(lease_id)):
            self.close()
            raise FileExistsError(f"the lease id {lease_id} is in use")

    @property
    def fd(self) -> int:
        """The descriptor to pass on.

        Raises
        ------
        ValueError
            When the claim is closed.
        """
        if self._fd is None:
            message = "this lease has ended"
            raise ValueError(message)
        return self._fd

    @property
    def uuids(self) -> tuple[str, ...]:
        """The devices that this claim has, or has a share of, in visible order."""
        return tuple(self.holding)

    @property
    def closed(self) -> bool:
        """Whether this process has given its copy up."""
        return self._fd is None

    @property
    def inherited(self) -> bool:
        """Whether this is a fork's copy of another process's claim: closing is all it may do."""
        return self._pid != os.getpid()

    def _parent(self) -> str | None:
        return self.ancestors[-1] if self.ancestors else None

    def take(
        self, uuids: tuple[str, ...], units: int = DEVICE_UNITS, capacity: int = DEVICE_UNITS
    ) -> bool:
        """Lock devices, or a share of one, all or none; True when all of it is now held.

        Tried in the order of UUIDs, so that two who want the same devices meet at the first. What
        a lease that was nested in one that is gone still uses counts as taken.

        Parameters
        ----------
        uuids
            The devices.
        units
            How much of each: ``DEVICE_UNITS`` for the whole, less for a share.
        capacity
            How much of each there is: less than the whole below a lease on a share.
        """
        with self._guard:
            new = [uuid for uuid in sorted(set(uuids)) if self.holding.get(uuid, 0) < units]
            got: list[tuple[str, tuple[Range, ...]]] = []
            for uuid in new:
                pieces = self._lock_units(uuid, units, capacity)
                if pieces is None:
                    break
                got.append((uuid, pieces))
                if self._used_by_nested(uuid, units) or not self._mark_nested(uuid):
                    break
            else:
                if self._ancestors_live():
                    self.holding = {
                        **{uuid: max(units, self.holding.get(uuid, 0)) for uuid in uuids},
                        **{u: n for u, n in self.holding.items() if u not in uuids},
                    }
                    return True
            for uuid, pieces in got:
                for piece in pieces:
                    locks.unlock(self.fd, piece)
                if not self._needed(uuid, self.holding.get(uuid, 0)):
                    self._unlock_device(uuid)
            return False

    def _lock_units(self, uuid: str, units: int, capacity: int) -> tuple[Range, ...] | None:
        """Lock what the description lacks to so many units; returns that, None if it cannot be."""
        where = Range(device_range(self._parent(), uuid).start, capacity)
        # Nobody on this description has any of most devices that are taken: nothing to ask then.
        held = self._needed(uuid, self.holding.get(uuid, 0)) > 0
        return lock_units(self.fd, where, units, held=held)

    def _used_by_nested(self, uuid: str, units: int) -> bool:
        """Return whether a nested lease, whose lease above is gone, still uses this device.

        Whoever has the whole device finds any mark. Beside a share, others with leases nested in
        theirs are as it should be while those live.
        """
        parent = self._parent()
        if units == DEVICE_UNITS:
            return locks.first_lock(self.fd, nested_byte(parent, uuid)) is not None
        return used_by_orphans(self.fd, parent, uuid, {self.id, *self.sharing})

    def _mark_nested(self, uuid: str) -> bool:
        """Lock, shared, the nested byte of this device at every level above, and of those leases.

        Done before the ancestors are verified to live: whoever finds an ancestor gone and its
        device free then sees this mark.
        """
        above = (None, *self.ancestors)[: len(self.ancestors)]
        marks = (*(nested_byte(up, uuid) for up in above), *map(nested_in, self.ancestors))
        return all(locks.try_lock(self.fd, mark, shared=True) for mark in marks)

    def _ancestors_live(self) -> bool:
        return all(locks.first_lock(self.fd, lease_byte(up)) for up in self.ancestors)

    def _unlock_device(self, uuid: str) -> None:
        locks.unlock(self.fd, device_range(self._parent(), uuid))
        for up in (None, *self.ancestors)[: len(self.ancestors)]:
            locks.unlock(self.fd, nested_byte(up, uuid))

    def _needed(self, uuid: str, own: int) -> int:
        """Return the units of a device that somebody on this description needs; ``own`` of us."""
        others = (sharer.holding.get(uuid, 0) for sharer in self._sharers if sharer is not self)
        burdens = (
            kept.get(uuid, 0) for sharer in self._sharers for _, kept in sharer.burdens
        )
        return max(own, *others, *burdens, 0)

    def _trim(self, uuid: str, needed: int) -> None:
        """Unlock of a device what is more than so many units."""
        if not needed:
            self._unlock_device(uuid)
        else:
            keep_units(self.fd, device_range(self._parent(), uuid), needed)

    def keep_only(self, uuids: tuple[str, ...], units: int = DEVICE_UNITS) -> None:
        """Give up every device that is neither in ``uuids`` nor needed by who shares with us.

        Of those that are kept, what is more than ``units`` goes too.
        """
        self.put_back({uuid: min(units, self.holding.get(uuid, units)) for uuid in uuids})

    def put_back(self, holding: Mapping[str, int]) -> None:
        """Go back to what was held before something was taken."""
        with self._guard:
            for uuid, had in self.holding.items():
                if had > holding.get(uuid, 0):
                    self._trim(uuid, self._needed(uuid, holding.get(uuid, 0)))
            self.holding = dict(holding)

    def line_up(self, skip: int = 0) -> int:
        """Take the next ticket of the queue, or one further on, behind everybody who waits now.

        Raises
        ------
        StoreError
            When the last ticket is taken: somebody has locked the queue.
        """
        with self._guard:
            while self.ticket is None:
                last = locks.last_lock(self.fd, QUEUE)
                ticket = skip + (0 if last is None else last + 1 - QUEUE.start)
                if ticket >= QUEUE.length:
                    raise StoreError(
                        "GPUs cannot be waited for: somebody has locked the queue.  "
                        "sudo jupyter gpu doctor  names the process."
                    )
                if locks.try_lock(self.fd, ticket_byte(ticket)):
                    self.ticket = ticket
            return self.ticket

    def leave_queue(self) -> None:
        """Give the ticket back, if there is one."""
        with self._guard:
            if self.ticket is not None:
                locks.unlock(self.fd, ticket_byte(self.ticket))
                self.ticket = None

    def someone_before(self) -> bool:
        """Return whether an earlier ticket is alive: one question, whatever the queue's length."""
        with self._guard:
            if not self.ticket:
                return False
            return locks.first_lock(self.fd, Range(QUEUE.start, self.ticket)) is not None

    def earliest_before(self, first: int = 0) -> Range | None:
        """Return the earliest living tickets before this one, from ``first`` on, or None.

        They are one, where nobody has locked more of the queue than a ticket.
        """
        with self._guard:
            if self.ticket is None or first >= self.ticket:
                return None
            where = Range(QUEUE.start + first, self.ticket - first)
            found = next(locks.locked_ranges(self.fd, where), None)
            return None if found is None else Range(found.start - QUEUE.start, found.length)

    def crowd_before(self, known: int | None = None, first: int = 0) -> int:
        """Return how far the queue goes before this ticket, about: ``CROWD`` times a power of two.

        Nobody waits earlier than so many places before, those before ``first`` left aside.
        ``known`` is what it was when it was asked before: it only becomes less, so that one or two
        questions are enough.
        """
        with self._guard:
            if self.ticket is None:
                return CROWD
            span = CROWD if known is None else known
            while known is None and span < self.ticket and self._someone_at(span, first):
                span *= 2
            while span > CROWD and not self._someone_at(span // 2, first):
                span //= 2
            return span

    def _someone_at(self, distance: int, first: int) -> bool:
        """Return whether somebody waits at least so many places before this ticket."""
        length = (self.ticket or 0) - distance - first
        where = Range(QUEUE.start + first, length)
        return length > 0 and locks.first_lock(self.fd, where) is not None

    def try_user(self, uid: int) -> bool:
        """Take the right to count a user's leases and add one; False while another has it."""
        with self._guard:
            return locks.try_lock(self.fd, user_byte(uid))

    def leave_user(self, uid: int) -> None:
        """Give that right back."""
        with self._guard:
            if self._fd is not None:
                locks.unlock(self._fd, user_byte(uid))

    @property
    def shared(self) -> bool:
        """Whether another claim of this process stands on the same description."""
        return len(self._sharers) > 1

    @property
    def sharing(self) -> frozenset[str]:
        """The ids of the other claims of this process on the same description."""
        return frozenset(claim.id for claim in self._sharers if claim is not self)

    @property
    def handed_on(self) -> bool:
        """Whether another claim has taken over from this one, and lives."""
        taker = None if self._taker is None else self._taker()
        return taker is not None and not taker.closed

    def share(self, lease_id: str) -> Claim | None:
        """Return a claim that takes over from this one: its own id, no devices yet.

        Both stand on the same description. None when there is a taker already: devices are handed
        on once, or two would have them.
        """
        with self._guard:
            if self.handed_on:
                return None
            taker = Claim(os.dup(self.fd), lease_id, self.ancestors, self._sharers)
            self._taker = weakref.ref(taker)
            return taker

    def drop_burden(self, burden: tuple[str, dict[str, int]]) -> None:
        """Unlock what a lease that ended on this description had, and nobody needs any more."""
        with self._guard:
            lease_id, kept = burden
            self.burdens.remove(burden)
            for uuid in kept:
                self._trim(uuid, self._needed(uuid, self.holding.get(uuid, 0)))
            locks.unlock(self.fd, lease_byte(lease_id))

    def adopt(self, holding: Mapping[str, int]) -> None:
        """Count devices, with their units, as this claim's that the description holds already."""
        with self._guard:
            more = {u: max(units, self.holding.get(u, 0)) for u, units in holding.items()}
            self.holding = {**self.holding, **more}

    def correct(self, holding: Mapping[str, int]) -> None:
        """Take note of what the description really holds, where another process has changed it."""
        with self._guard:
            self.holding = dict(holding)

    def clear(
        self, lease_ids: tuple[str, ...], tickets: tuple[Range, ...], uuids: Iterable[str]
    ) -> None:
        """Unlock what a process that is gone had begun on this description.

        What somebody needs of a device who shares the description stays locked.
        """
        with self._guard:
            for uuid in uuids:
                self._trim(uuid, self._needed(uuid, self.holding.get(uuid, 0)))
            for where in (*map(lease_byte, lease_ids), *tickets):
                locks.unlock(self.fd, where)

    def leave(self) -> None:
        """Leave the descriptor open until this process ends, whatever becomes of this object."""
        with self._guard:
            self._sharers.discard(self)
            self._finalizer.detach()
            self.holding, self._fd = {}, None

    def close(self, *, keep_locks: bool = False) -> None:
        """Give this process's copy up; the locks end with the last copy anywhere.

        Where other claims share the description, what only this one needed is unlocked, because
        their copies would keep it locked; not so in a forked child, which would unlock it for its
        parent too, nor with ``keep_locks``, where another process still needs it. Calling it twice
        does nothing more.
        """
        with self._guard:
            if self._fd is None:
                return
            fd = self._fd
            if self.shared and not self.inherited and not keep_locks:
                self.leave_queue()
                self.keep_only(())
                locks.unlock(fd, lease_byte(self.id))
            self._sharers.discard(self)
            heir = next(iter(self._sharers), None)
            if heir is not None:
                heir.burdens.extend(self.burdens)
                heir.burdens.extend([(self.id, self.holding)] * keep_locks)
            self.holding, self._fd = {}, None
            self._finalizer.detach()
            os.close(fd)


def _close_quietly(fd: int) -> None:
    os.close(fd)
