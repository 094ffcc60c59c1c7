"""A lease in the hands of the program that holds it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.leases import Owner, ProcessRef, Record
from jupyter_gpu.core.variables import LEASE, LEASE_FD


@dataclass(frozen=True, slots=True)
class Grant:
    """What an allocator granted: the devices, the variables, and the words about it.

    ``limits`` are sentences about what the pool was cut down to, and why; ``caution`` one for the
    person where this system has no locks, so that nothing is leased. ``cpus`` are the numbers of
    the CPUs that a program on the devices is to run on, None for all.
    """

    devices: tuple[Device, ...]
    environment: dict[str, str]
    record: Record | None = None
    claim: Claim | None = None
    limits: tuple[str, ...] = ()
    waited_seconds: float = 0.0
    cpus: tuple[int, ...] | None = None
    caution: str | None = None


class HeldLease:
    """Devices held by this program, until ``release`` or until every copy of it is gone.

    Use it in a ``with``. ``devices`` is a tuple of Device in visible order; ``environment`` the
    variables that make exactly these visible to a process started with them.
    """

    def __init__(self, grant: Grant, place: Place | None = None) -> None:
        self._grant, self._place = grant, place
        self._guard = threading.RLock()
        self._witness: Witness | None = None
        if grant.claim is not None and place is not None:
            # A lease that is forgotten ends as one that is released; at exit the system ends it.
            weakref.finalize(self, _end, grant.claim, place).atexit = False

    def __repr__(self) -> str:
        shown = ", ".join(str(device.index) for device in self.devices)
        what = f"physical {shown}" if shown else "no device"
        if not self.exclusive:
            return f"<HeldLease {what}{' (not exclusive)' if shown else ''}>"
        return f"<HeldLease {what} ({'released' if self.released else 'leased'})>"

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices in visible order; empty for a request of none."""
        return self._grant.devices

    @property
    def environment(self) -> dict[str, str]:
        """The variables to set for a process that uses the devices, a fresh copy."""
        variables = dict(self._grant.environment)
        claim = self._grant.claim
        if claim is not None and not claim.closed:
            variables[LEASE_FD] = str(claim.fd)
            if self._grant.devices:
                variables[LEASE] = claim.id
        return variables

    @property
    def exclusive(self) -> bool:
        """Whether a lock stands behind it; false where this system has none, or for no devices."""
        return self._grant.claim is not None

    @property
    def id(self) -> str | None:
        """The lease id, or None where nothing is locked."""
        return None if self._grant.claim is None else self._grant.claim.id

    @property
    def claim(self) -> Claim | None:
        """The claim behind it, for handing it on; None where nothing is locked."""
        return self._grant.claim

    @property
    def record(self) -> Record | None:
        """What others can read about it."""
        return self._grant.record

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences about what the pool was cut down to."""
        return self._grant.limits

    @property
    def caution(self) -> str | None:
        """What the person must be told where this system has no locks; else None."""
        return self._grant.caution

    @property
    def waited_seconds(self) -> float:
        """How long it took to get it."""
        return self._grant.waited_seconds

    @property
    def cpus(self) -> tuple[int, ...] | None:
        """The CPUs near the devices, where that was asked for and is known; else None."""
        return self._grant.cpus

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """The descriptors that a process which uses the devices inherits."""
        claim = self._grant.claim
        return () if claim is None or claim.closed else (claim.fd,)

    @property
    def released(self) -> bool:
        """Whether this program has given its copy up."""
        return self._grant.claim is None or self._grant.claim.closed

    @contextlib.contextmanager
    def changing(self) -> Iterator[Witness | None]:
        """Hold the right to change the lease or hand it on; None while another process has it.

        A kernel and its server share one lease. Whoever does more to it than look does so here,
        and finds what it really holds with the witness.
        """
        with self._guard:
            claim = self._grant.claim
            if self._witness is not None or claim is None or claim.closed:
                yield self._witness
                return
            assert self._place is not None, "a claim stands in a place"
            with Witness(self._place) as witness:
                if not witness.try_change(claim.id):
                    yield None
                    return
                self._witness = witness
                try:
                    yield witness
                finally:
                    self._witness = None

    def became(
        self, devices: tuple[Device, ...], environment: dict[str, str], record: Record
    ) -> None:
        """Take note that the lease is on these devices by now; called while ``changing``."""
        self._grant = dataclasses.replace(
            self._grant, devices=devices, environment=environment, record=record, cpus=None
        )

    def describe(self, change: Callable[[Owner], Owner]) -> None:
        """Rewrite what the record says about the owner; what it says about devices stays.

        While the kernel changes the lease nothing is written: what is known for longer than a
        moment is described again.

        Raises
        ------
        StoreError
            When the record cannot be written; the lease is not touched by that.
        """
        with self._guard:
            record, claim = self._grant.record, self._grant.claim
            if record is None or claim is None or claim.closed:
                return
            owner = change(record.owner)
            if owner == record.owner:
                return
            with self.changing() as witness:
                if witness is not None:
                    written = witness.own_record(claim.id) or record
                    witness.publish(dataclasses.replace(written, owner=owner))
                    self._grant = dataclasses.replace(
                        self._grant, record=dataclasses.replace(record, owner=owner)
                    )

    def recorded_indices(self) -> tuple[int, ...]:
        """Return the physical indices that it is on by now, as its record says."""
        record, found = self._grant.record, None
        if record is None:
            return ()
        with contextlib.suppress(StoreError), self.changing() as witness:
            found = None if witness is None else witness.own_record(record.id)
        return (found or record).indices

    def kept_by_others(self) -> tuple[ProcessRef, ...]:
        """Return the other processes that can be seen to keep the lease: leftover workers.

        A look through /proc at every process one may look into: tens of milliseconds.
        """
        if self.id is None or self.released or self._place is None:
            return ()
        with LeaseStore(self._place) as store:
            return tuple(p for p in store.kept_by(self.id) if p.pid != os.getpid())

    def settle(self) -> None:
        """Give up what workers of the kernel before this one kept, once they have ended.

        Called now and then by who took devices over.
        """
        claim = self._grant.claim
        if claim is not None and claim.burdens and not claim.closed and self._place is not None:
            with _reopened(self._place) as store:
                store.settle(claim)

    def leave(self) -> None:
        """Leave the lease to this process: it ends with it, whatever becomes of this object."""
        with self._guard:
            if self._grant.claim is not None:
                self._grant.claim.leave()

    def release(self) -> None:
        """Give the devices up in this program; calling it twice does nothing more.

        They are free when every process that inherited the lease has ended too.
        """
        with self._guard:
            if self._grant.claim is not None and self._place is not None:
                _end(self._grant.claim, self._place)


def notice_of(limits: tuple[str, ...], caution: str | None) -> str | None:
    """Return what a kernel's notice says about its lease: what cut the pool down, and a caution."""
    words = [f"The pool of GPUs is limited by {limit}." for limit in limits]
    words += [] if caution is None else [caution]
    return "\n".join(words) or None


def _end(claim: Claim, place: Place) -> None:
    if claim.closed:
        return
    try:
        with _reopened(place) as store:
            lease_id = claim.id
            written = store.own_live_record(lease_id)
            # A kernel that has given all its devices up has noted the end itself.
            noted = bool(claim.ancestors) or (written is not None and not written.uuids)
            store.withdraw(claim)
            if not noted and not store.is_live(lease_id):  # workers may keep it
                GrantLog(place).ended(lease_id, exact=True)
    except StoreError:  # the directory is gone or spoilt: the lock can be given up alone
        claim.close()


def _reopened(place: Place) -> LeaseStore:
    # Where a lease was taken, the file system has been looked at.
    return LeaseStore(place, write=True, filesystem=lambda _: None)
