"""The allocator: a request, the inventory, the policy and the leases make a lease.

An acquisition is a small machine that is stepped: it never blocks, so that an asynchronous caller
can wait for it without a thread that cannot be cancelled, and a synchronous one can sleep.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from types import TracebackType

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.machine import Machine, find_machine, is_simulated
from jupyter_gpu.adapters.place import Place, find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.card import obstacle
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.environment import variables
from jupyter_gpu.core.errors import ImpossibleRequest, NoDeviceAvailable
from jupyter_gpu.core.layout import new_lease_id
from jupyter_gpu.core.leases import Holdings, Owner, Record
from jupyter_gpu.core.policy import (
    HAD_LAST_TIME,
    HELD_ALREADY,
    Candidate,
    Choice,
    choose,
    eligible,
    require_possible,
)
from jupyter_gpu.core.queue import keep_for_earlier
from jupyter_gpu.core.refusal import Asked, Reader, refusal
from jupyter_gpu.core.request import Request
from jupyter_gpu.lease import Grant, HeldLease
from jupyter_gpu.pool import Limit, Pool, find_pool
from jupyter_gpu.renewal import catch_up

# The driver goes on listing a process for 100 to 200 ms after its end (measured on H200); two
# seconds is the most that anyone is made to wait for that.
TIDYING_SECONDS = 2.0
HEAD_LOOKS_EVERY_SECONDS = 0.05
OTHERS_LOOK_EVERY_SECONDS = 0.25
_SIGN_OF_LIFE_SECONDS = 1.0
_TRIES = 4
# How long a lease to take over may be in the hands of its kernel, which changes it in moments.
_BUSY_SECONDS = 2.0
_NOT_EXCLUSIVE = "These GPUs are not exclusive here: this system has no suitable locks."
_NOT_CHOSEN = (
    "The kernel sees whatever there is. Nothing is exclusive here: this system has no\n"
    "suitable locks."
)


class Acquisition:
    """One request on its way to a lease. Use it in a ``with``; ``close`` gives up what is begun.

    Parameters
    ----------
    request, owner
        What is asked for, and by whom.
    environ
        The environment of the program that asks: the simulated machine, the lease directory and
        the lease above are found in it.
    limits
        Values of CUDA_VISIBLE_DEVICES that the pool is cut down to.
    takeover
        A lease of this process whose devices the new one may have (a notebook's kernel change).
    within
        Instead, a lease of this kernel's own that the new one will become a part of: it shares the
        devices, and what is begun is given up without a trace.
    asked
        How the person asked, for the words of a refusal; else as the owner's kind does.
    machine, place
        Where to look instead of where the environment says.
    """

    def __init__(
        self,
        request: Request,
        owner: Owner,
        environ: Mapping[str, str],
        *,
        limits: tuple[Limit, ...] = (),
        takeover: HeldLease | None = None,
        within: HeldLease | None = None,
        asked: Asked | None = None,
        machine: Machine | None = None,
        place: Place | None = None,
    ) -> None:
        self.request, self.owner = request, owner
        self._environ, self._limits = environ, limits
        self._takeover, self._within = takeover or within, within
        self._asked: Asked = asked or owner.kind
        self._machine = machine or find_machine(environ)
        self._place = place or find_place(environ, simulated=is_simulated(environ))
        self._store: LeaseStore | None = None
        self._claim: Claim | None = None
        self._guard = threading.Lock()
        self._closed = False
        self._began = time.monotonic()
        self._last_sign = 0.0
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.pause_seconds = HEAD_LOOKS_EVERY_SECONDS

    def __enter__(self) -> Acquisition:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up: the ticket and anything half taken go back, also under a running step."""
        with self._guard:
            self._closed = True
            self._give_up()

    def _give_up(self) -> None:
        if self._claim is not None and self._store is not None:
            self._withdraw(self._store, self._claim)
        if self._store is not None:
            self._store.close()
        self._claim = self._store = None
        self._machine.__exit__(None, None, None)

    def _withdraw(self, store: LeaseStore, claim: Claim) -> None:
        if self._within is None or not claim.shared:
            store.withdraw(claim)
            return
        # What is left of a lease is looked for where it ends; this one has never been one.
        with self._within.changing() as witness:
            if witness is not None:
                witness.remove_record(claim.id)
            claim.close()

    @property
    def lease_id(self) -> str | None:
        """The id of the lease in the making, None before there is one."""
        return None if self._claim is None else self._claim.id

    @property
    def waiting(self) -> bool:
        """Whether it has a ticket in the queue."""
        return self._claim is not None and self._claim.ticket is not None

    def step(self) -> HeldLease | None:
        """Try once; None means "look again in ``pause_seconds``".

        Raises
        ------
        NoDeviceAvailable
            When nothing could be had in the time the request waits.
        ImpossibleRequest
            When this machine can never meet the request.
        StoreError
            When the lease directory cannot be used.
        """
        with self._guard:
            if self._closed:
                return None
            try:
                lease = self._step()
            except BaseException:
                self._give_up()
                raise
            if lease is not None:
                self._claim = None
                self._give_up()
            return lease

    def _step(self) -> HeldLease | None:
        if self.request.gpus == 0:
            nothing = Inventory("none")
            environment = variables((), nothing, self.request.identifiers, self._environ)
            return HeldLease(Grant((), environment))
        if self._store is None and locks.possible():
            self._store = LeaseStore(self._place, write=True)
        inventory = self._machine.read(sensors=False)
        pool = find_pool(inventory, self._limits, self._environ, self._store)
        if self._store is None or not self._store.supported:
            return self._without_locks(inventory, pool)
        require_possible(self.request, inventory, pool.devices, pool.limited_by)
        if self._claim is not None and self._claim.ancestors != pool.ancestors:
            self._withdraw(self._store, self._claim)  # the lease above has ended meanwhile
            self._claim = None
        self._claim = self._claim or self._new_claim(inventory, pool)
        return None if self._claim is None else self._try(inventory, pool)

    def _try(self, inventory: Inventory, pool: Pool) -> HeldLease | None:
        """Choose and take, a few times over where others are quicker."""
        assert self._claim is not None
        for _ in range(_TRIES):
            candidates = self._candidates(inventory, pool)
            had = HAD_LAST_TIME if self._within is None else HELD_ALREADY
            choice = choose(self.request, candidates, self._preferred(), had)
            if choice is None:
                return self._later(candidates, pool)
            if self._claim.take(choice.uuids):
                # Read again under the lock: somebody may have begun since the first look.
                inventory = self._machine.read(sensors=False)
                if self._still_free(choice, inventory, pool):
                    return self._granted(choice, inventory, pool)
                self._claim.keep_only(self._inherited())
        return self._later(self._candidates(inventory, pool), pool)

    def _new_claim(self, inventory: Inventory, pool: Pool) -> Claim | None:
        """Return a claim to begin with; None while the lease to take over is being changed."""
        assert self._store is not None
        if self._takeover is not None:
            with self._takeover.changing() as witness:
                old = self._takeover.claim
                if witness is not None and old is not None:
                    catch_up(self._takeover, witness, lambda: inventory, self._environ)
                    same = old.ancestors == pool.ancestors
                    claim = old.share(new_lease_id()) if same else None
                    if claim is not None:
                        claim.adopt(old.uuids)
                        return claim
                elif not self._takeover.released and time.monotonic() < self._began + _BUSY_SECONDS:
                    return None
            self._takeover = None
        return self._store.new_claim(pool.ancestors)

    def _inherited(self) -> tuple[str, ...]:
        devices = () if self._takeover is None else self._takeover.devices
        return tuple(device.uuid for device in devices if device.uuid is not None)

    def _preferred(self) -> tuple[str, ...]:
        assert self._store is not None
        return self._inherited() or self._store.recent_devices(self.owner.notebook)

    def _candidates(self, inventory: Inventory, pool: Pool) -> tuple[Candidate, ...]:
        assert self._store is not None
        assert self._claim is not None
        inherited = self._inherited()
        candidates = []
        for device in pool.devices:
            if device.uuid in inherited:
                candidates.append(Candidate(device))
            elif device.uuid is not None and not self._store.is_free(pool.ancestors, device.uuid):
                candidates.append(Candidate(device, "leased"))
            else:
                current = inventory.find(device.uuid) if device.uuid else None
                candidates.append(self._on_card(current or device, pool))
        if self._claim.ticket is None and not self._store.anyone_waits():
            return tuple(candidates)
        if self._claim.ticket is not None and not self._claim.someone_before():
            return tuple(candidates)
        own = self._claim.ticket
        before = [
            waiter
            for waiter in self._store.holdings().waiters
            if waiter.record.ancestors == pool.ancestors
            and waiter.record.id != self._claim.id
            and (own is None or (waiter.record.ticket or 0) < own)
        ]
        # What is one's own already is nobody else's to take.
        theirs = tuple(
            Candidate(c.device, "leased") if c.device.uuid in inherited else c for c in candidates
        )
        pairs = zip(candidates, keep_for_earlier(theirs, before), strict=True)
        return tuple(own if own.device.uuid in inherited else kept for own, kept in pairs)

    def _on_card(self, device: Device, pool: Pool) -> Candidate:
        simulated = is_simulated(self._environ)
        infos = (
            processes.named_by_driver(process.pid, device.minor, simulated=simulated)
            for process in device.processes
        )
        known = {info.pid: info for info in infos if info is not None}
        found = obstacle(
            device,
            known,
            ours=pool.relatives,
            min_free_memory_bytes=self.request.min_free_memory_bytes,
        )
        if found is None:
            return Candidate(device)
        return Candidate(device, found.sentence, found.passing)

    def _still_free(self, choice: Choice, inventory: Inventory, pool: Pool) -> bool:
        inherited = self._inherited()
        current = (inventory.find(uuid) for uuid in choice.uuids if uuid not in inherited)
        return all(
            device is not None and self._on_card(device, pool).reason is None for device in current
        )

    def _later(self, candidates: tuple[Candidate, ...], pool: Pool) -> HeldLease | None:
        """Decide between waiting (None) and refusing (raises)."""
        assert self._store is not None
        assert self._claim is not None
        waited = time.monotonic() - self._began
        if waited < self.request.wait_seconds:
            self._stand_in_line(candidates, pool)
            return None
        if waited < TIDYING_SECONDS:
            tidied = tuple(Candidate(c.device) if c.passing else c for c in candidates)
            if choose(self.request, tidied) is not None:
                return None
        holdings = self._store.holdings([device.uuid or "" for device in pool.devices])
        own = None if self._takeover is None else self._takeover.id
        others = Holdings(
            # The lease above is what the pool is, and one's own is no obstacle.
            tuple(one for one in holdings.leases if one.record.id not in (*pool.ancestors, own)),
            tuple(w for w in holdings.waiters if w.record.id != self._claim.id),
            holdings.unclaimed,
        )
        notes = () if pool.limited_by is None else (f"The pool is limited by {pool.limited_by}.",)
        user = processes.user_name(os.getuid())
        reader = Reader(self._asked, user, datetime.now().astimezone(), self._inherited())
        raise NoDeviceAvailable(refusal(self.request, candidates, others, reader, notes))

    def _stand_in_line(self, candidates: tuple[Candidate, ...], pool: Pool) -> None:
        assert self._store is not None
        assert self._claim is not None
        now = time.monotonic()
        if self._claim.ticket is None:
            devices = eligible(self.request, tuple(c.device for c in candidates))
            record = Record(
                id=self._claim.id,
                owner=self.owner,
                since=self._since,
                request=self.request,
                ancestors=pool.ancestors,
                ticket=self._claim.line_up(),
                could_use=tuple(device.uuid for device in devices if device.uuid is not None),
            )
            self._store.publish(self._claim, record)
            self._last_sign = now
        elif now - self._last_sign >= _SIGN_OF_LIFE_SECONDS:
            self._store.show_life(self._claim)
            self._last_sign = now
        behind = self._claim.someone_before()
        self.pause_seconds = OTHERS_LOOK_EVERY_SECONDS if behind else HEAD_LOOKS_EVERY_SECONDS

    def _granted(self, choice: Choice, inventory: Inventory, pool: Pool) -> HeldLease:
        assert self._store is not None
        assert self._claim is not None
        self._claim.leave_queue()
        self._claim.keep_only(choice.uuids)
        record = Record(
            id=self._claim.id,
            owner=self.owner,
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            request=self.request,
            uuids=choice.uuids,
            indices=tuple(device.index for device in choice.devices),
            ancestors=pool.ancestors,
            because=choice.because,
        )
        self._store.publish(self._claim, record)
        self._store.remember_devices(self.owner.notebook, choice.uuids)
        # A grant leaves one record behind at most and a sweep takes many, so one grant in sixteen,
        # as its random id falls, keeps the directory clean and the others pay nothing.
        if self._claim.id.endswith("0"):
            self._store.sweep()
        environment = variables(choice.devices, inventory, self.request.identifiers, self._environ)
        limits = () if pool.limited_by is None else (pool.limited_by,)
        waited = time.monotonic() - self._began
        grant = Grant(choice.devices, environment, record, self._claim, limits, waited)
        return HeldLease(grant, self._place)

    def _without_locks(self, inventory: Inventory, pool: Pool) -> HeldLease:
        """Choose without leasing, where this system has no such locks: kernels still start."""
        choice = choose(self.request, tuple(self._on_card(d, pool) for d in pool.devices))
        if choice is not None:
            environment = variables(
                choice.devices, inventory, self.request.identifiers, self._environ
            )
            return HeldLease(Grant(choice.devices, environment, caution=_NOT_EXCLUSIVE))
        try:
            require_possible(self.request, inventory, pool.devices, pool.limited_by)
            why = f"{self.request.in_words()}: not free now."
        except ImpossibleRequest as error:
            why = str(error)
        return HeldLease(Grant((), {}, caution=f"No GPU was chosen. {why}\n{_NOT_CHOSEN}"))


def acquire_now(acquisition: Acquisition) -> HeldLease:
    """Step an acquisition to its end, sleeping between looks; for synchronous callers."""
    with acquisition:
        while True:
            lease = acquisition.step()
            if lease is not None:
                return lease
            time.sleep(acquisition.pause_seconds)
