"""The candidates for a request at one moment: every device of the pool, and what stands against it.

The locks say what is leased, the card what is used without a lease, the site what this user may
not have, and the queue what is kept for those who came earlier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.locks import first_lock
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.card import obstacle
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.layout import Range, slot
from jupyter_gpu.core.leases import Lease, Waiter
from jupyter_gpu.core.policy import Candidate, choose, count_wanted, devices_asked, eligible
from jupyter_gpu.core.queue import Opening, keep_for
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.pool import Pool
from jupyter_gpu.site import Site


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a request meets: the store, the rules, how devices are joined, and MPS for shares."""

    store: LeaseStore
    site: Site
    simulated: bool
    topology: Callable[[], Topology]
    mps: MPS | None = None
    # What was read before of those who wait, by ticket: it does not change.
    known: dict[int, Waiter] = field(default_factory=dict)

    def topology_for(self, request: Request) -> Topology | None:
        """Return how devices are joined, read only for a request that wants to know."""
        return None if request.topology == "any" else self.topology()


class Candidates:
    """What of a pool can be had for a request; ``inherited`` is held already, in units."""

    def __init__(
        self, request: Request, around: Surroundings, pool: Pool, inherited: Mapping[str, int]
    ) -> None:
        self._request, self._around, self._pool = request, around, pool
        self._inherited = inherited
        # For the small looks of who waits, which are many: what does not change between them.
        self._slots: tuple[tuple[Device, str, Range], ...] | None = None
        self._serving: frozenset[str | None] = frozenset()
        self._wanted = 0

    def all(self, inventory: Inventory, claim: Claim) -> tuple[Candidate, ...]:
        """Return every device of the pool with what stands against it, the queue included."""
        found = tuple(self._one(device, inventory) for device in self._pool.devices)
        topology = self._around.topology_for(self._request)
        if choose(self._request, found, topology=topology) is None:
            return found
        if not self._someone_before(claim):
            return found
        # What is one's own already is nobody else's to take.
        kept = tuple(
            Candidate(c.device, "leased") if c.device.uuid in self._inherited else c for c in found
        )
        both = found
        for waiter in self._before(claim):
            before = kept
            kept = keep_for(kept, waiter, self._around.topology_for(waiter.record.request))
            if kept is before:
                continue
            both = tuple(
                mine if mine.device.uuid in self._inherited else left
                for mine, left in zip(found, kept, strict=True)
            )
            if choose(self._request, both, topology=topology) is None:
                break
        return both

    @property
    def inherits(self) -> bool:
        """Whether some of it is held already, which is kept for nobody else."""
        return bool(self._inherited)

    def still_free(self, uuids: tuple[str, ...], inventory: Inventory) -> bool:
        """Return whether nothing on the card stands against devices that have just been locked."""
        current = (inventory.find(uuid) for uuid in uuids if uuid not in self._inherited)
        return all(
            device is not None and self.on_card(device).reason is None for device in current
        )

    def opening(self, claim: Claim) -> Opening | None:
        """Return what the locks leave open to the request, None where that is too little.

        A few questions to the lock file, and none to the driver: enough to go on waiting.
        """
        request, pool = self._request, self._pool
        if self._slots is None:
            above = pool.ancestors[-1] if pool.ancestors else None
            named = tuple((d, d.uuid) for d in pool.devices if d.uuid is not None)
            self._slots = tuple((device, uuid, slot(above, uuid)) for device, uuid in named)
            serving = eligible(request, pool.devices)
            self._serving = frozenset(device.uuid for device in serving)
            self._wanted = count_wanted(request, serving)
        room = {}
        for device, uuid, where in self._slots:
            if uuid in self._inherited or first_lock(claim.fd, where) is None:
                room[uuid] = pool.capacity // request.units
            elif request.share is not None:
                room[uuid] = self._free_units(device) // request.units
        serving_room = {uuid: times for uuid, times in room.items() if uuid in self._serving}
        if not self._wanted or sum(serving_room.values()) < self._wanted:
            return None
        beside = frozenset(room.keys() - serving_room)
        return Opening(request, pool.ancestors, self._wanted, serving_room, beside)

    def on_card(self, device: Device) -> Candidate:
        """Return what stands against a device beside the locks."""
        against = self._around.site.obstacle(device)
        if against is not None:
            return Candidate(device, against, out=True)
        sharers = self._sharers(device) if self._request.share is not None else ()
        mps = self._around.mps
        return on_card(
            device,
            self._request,
            simulated=self._around.simulated,
            ours=self._pool.relatives,
            sharers=sharers,
            through_mps=mps is not None and mps.daemon is True,
        )

    def _one(self, device: Device, inventory: Inventory) -> Candidate:
        if device.uuid is None:
            return self.on_card(device)
        free = self._free_units(device)
        if device.uuid in self._inherited:
            # A share that grows needs room beside it; whole devices are held already.
            return Candidate(device, free_units=free + self._inherited[device.uuid])
        if not free or (self._request.share is None and free < self._pool.capacity):
            return Candidate(device, "leased", free_units=free)
        found = self.on_card(inventory.find(device.uuid) or device)
        return dataclasses.replace(found, device=device, free_units=free)

    def _free_units(self, device: Device) -> int:
        pool = self._pool
        if device.uuid is None:
            return 0
        return self._around.store.free_units(pool.ancestors, device.uuid, pool.capacity)

    def _sharers(self, device: Device) -> tuple[Lease, ...]:
        """Return the leases on parts of a device that nobody has whole, but those above."""
        above = self._pool.ancestors
        # Below a share that nobody has parted yet, others may have the rest of the device.
        untouched = not above and self._free_units(device) == self._pool.capacity
        if device.uuid is None or untouched:
            return ()
        leases = self._around.store.leases().leases
        return tuple(
            lease
            for lease in leases
            if device.uuid in lease.record.uuids and lease.record.id not in above
        )

    def _someone_before(self, claim: Claim) -> bool:
        if claim.ticket is None:
            return self._around.store.anyone_waits()
        return claim.someone_before()

    def _before(self, claim: Claim) -> Iterator[Waiter]:
        """Yield the waiters who come first, less those whom only their own limit holds back."""
        site, holdings = self._around.site, None
        for waiter in self._around.store.waiters_before(claim.ticket, self._around.known):
            record = waiter.record
            if record.id == claim.id or record.ancestors != self._pool.ancestors:
                continue
            if site.rules.limits_anyone:
                holdings = holdings or self._around.store.leases()
                could_use = tuple(d for d in self._pool.devices if d.uuid in record.could_use)
                wanted = devices_asked(record.request, could_use)
                if site.limit_of(waiter.user, holdings, wanted) is not None:
                    continue
            yield waiter


@dataclass(frozen=True, slots=True)
class Look:
    """One look at what can be had: the candidates, of which pool, and what the request meets."""

    candidates: Candidates
    pool: Pool
    around: Surroundings


def on_card(
    device: Device,
    request: Request,
    *,
    simulated: bool,
    ours: Collection[int] = (),
    sharers: tuple[Lease, ...] = (),
    through_mps: bool = False,
) -> Candidate:
    """Return what stands on the card itself against leasing a device now.

    Parameters
    ----------
    device, request, simulated
        The device as it was just read, what is asked for, and whether the machine is simulated.
    ours
        Pids of the lease above.
    sharers
        The leases on parts of it, beside which the new one is to be.
    through_mps
        Whether what uses a share goes through an MPS server.
    """
    infos = (
        processes.named_by_driver(process.pid, device.minor, simulated=simulated)
        for process in device.processes
    )
    known = {info.pid: info for info in infos if info is not None}
    found = obstacle(
        device,
        known,
        ours={*ours, *_pids_of(sharers, known)},
        min_free_memory_bytes=request.min_free_memory_bytes,
        shared=bool(sharers),
        through_mps=through_mps,
    )
    if found is None:
        return Candidate(device)
    return Candidate(device, found.sentence, found.passing, out=device.problem is not None)


def _pids_of(
    leases: tuple[Lease, ...], known: Mapping[int, processes.ProcessInfo]
) -> Iterator[int]:
    """Yield the processes that belong to these leases: their own, and what those have started.

    A record is believed about processes of its own user only.
    """
    for lease in leases:
        own = {*lease.pids, *(process.pid for process in lease.record.owner.processes)}
        for pid, info in known.items():
            related = pid in own or info.session in own or own & processes.ancestors_of(pid)
            if related and info.user == lease.user:
                yield pid

