"""One open file description of the lock file: a ticket, a lease in the making, a lease.

The description holds the locks; a claim is this process's handle on it. Copies of the descriptor
(in the kernel, in forked workers, in the next provisioner of a notebook) keep the locks alive, so
a claim only ever unlocks what nobody else who shares the description needs, and otherwise closes.
"""

from __future__ import annotations

import os
import threading
import weakref

from jupyter_gpu.adapters import locks
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    QUEUE,
    Range,
    device_range,
    lease_byte,
    nested_byte,
    ticket_byte,
)


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
        self.uuids: tuple[str, ...] = ()
        self.ticket: int | None = None
        self._fd: int | None = fd
        self._pid = os.getpid()
        self._guard = threading.RLock()
        # Every claim of this process on the same description, this one included.
        self._sharers: weakref.WeakSet[Claim] = weakref.WeakSet() if sharers is None else sharers
        self._sharers.add(self)
        self._taker: weakref.ref[Claim] | None = None
        # Ids and devices of leases that ended on this description while workers of theirs live.
        self.burdens: list[tuple[str, tuple[str, ...]]] = []
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
    def closed(self) -> bool:
        """Whether this process has given its copy up."""
        return self._fd is None

    @property
    def inherited(self) -> bool:
        """Whether this is a fork's copy of another process's claim: closing is all it may do."""
        return self._pid != os.getpid()

    def _parent(self) -> str | None:
        return self.ancestors[-1] if self.ancestors else None

    def take(self, uuids: tuple[str, ...]) -> bool:
        """Lock whole devices, all or none; True when all of them are now held.

        Tried in the order of UUIDs, so that two who want the same devices meet at the first. A
        device whose range is free may still be used by a lease that was nested in one that is
        gone: such devices count as taken.
        """
        with self._guard:
            new = sorted(set(uuids) - set(self.uuids))
            got: list[str] = []
            for uuid in new:
                if not locks.try_lock(self.fd, device_range(self._parent(), uuid)):
                    break
                got.append(uuid)
                if locks.first_lock(self.fd, nested_byte(self._parent(), uuid)) is not None:
                    break
                if not self._mark_nested(uuid):
                    break
            else:
                if self._ancestors_live():
                    self.uuids = tuple(dict.fromkeys((*uuids, *self.uuids)))
                    return True
            for uuid in got:
                self._unlock_device(uuid)
            return False

    def _mark_nested(self, uuid: str) -> bool:
        """Lock, shared, the nested byte of this device at every level above.

        Done before the ancestors are verified to live: whoever finds an ancestor gone and its
        device free then sees this mark.
        """
        above = (None, *self.ancestors)[: len(self.ancestors)]
        return all(locks.try_lock(self.fd, nested_byte(up, uuid), shared=True) for up in above)

    def _ancestors_live(self) -> bool:
        return all(locks.first_lock(self.fd, lease_byte(up)) for up in self.ancestors)

    def _unlock_device(self, uuid: str) -> None:
        locks.unlock(self.fd, device_range(self._parent(), uuid))
        for up in (None, *self.ancestors)[: len(self.ancestors)]:
            locks.unlock(self.fd, nested_byte(up, uuid))

    def keep_only(self, uuids: tuple[str, ...]) -> None:
        """Give up every device that is neither in ``uuids`` nor needed by who shares with us."""
        with self._guard:
            needed = set(uuids)
            for sharer in self._sharers:
                needed.update(() if sharer is self else sharer.uuids)
            for uuid in set(self.uuids) - needed:
                self._unlock_device(uuid)
            self.uuids = uuids

    def line_up(self) -> int:
        """Take the next ticket of the queue, behind everybody who waits now.

        Raises
        ------
        StoreError
            When the last ticket is taken: somebody has locked the queue.
        """
        with self._guard:
            while self.ticket is None:
                ends = (r.start + r.length for r in locks.locked_ranges(self.fd, QUEUE))
                ticket = max(ends, default=QUEUE.start) - QUEUE.start
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

    def drop_burden(self, burden: tuple[str, tuple[str, ...]]) -> None:
        """Unlock what a lease that ended on this description had, and nobody needs any more."""
        with self._guard:
            lease_id, uuids = burden
            self.burdens.remove(burden)
            needed = {uuid for sharer in self._sharers for uuid in sharer.uuids}
            for uuid in set(uuids) - needed:
                self._unlock_device(uuid)
            locks.unlock(self.fd, lease_byte(lease_id))

    def adopt(self, uuids: tuple[str, ...]) -> None:
        """Count devices as this claim's that the shared description holds already."""
        with self._guard:
            self.uuids = tuple(dict.fromkeys((*self.uuids, *uuids)))

    def correct(self, uuids: tuple[str, ...]) -> None:
        """Take note of what the description really holds, where another process has changed it."""
        with self._guard:
            self.uuids = uuids

    def clear(
        self, lease_ids: tuple[str, ...], tickets: tuple[Range, ...], uuids: tuple[str, ...]
    ) -> None:
        """Unlock what a process that is gone had begun on this description.

        Devices that somebody needs who shares the description stay locked.
        """
        with self._guard:
            needed = {uuid for sharer in self._sharers for uuid in sharer.uuids}
            needed.update(uuid for _, kept in self.burdens for uuid in kept)
            for uuid in set(uuids) - needed:
                self._unlock_device(uuid)
            for where in (*map(lease_byte, lease_ids), *tickets):
                locks.unlock(self.fd, where)

    def leave(self) -> None:
        """Leave the descriptor open until this process ends, whatever becomes of this object."""
        with self._guard:
            self._sharers.discard(self)
            self._finalizer.detach()
            self.uuids, self._fd = (), None

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
                heir.burdens.extend([(self.id, self.uuids)] * keep_locks)
            self.uuids, self._fd = (), None
            self._finalizer.detach()
            os.close(fd)


def _close_quietly(fd: int) -> None:
    os.close(fd)
