"""The allocator: a request, the inventory, the policy and the leases make a lease.

An acquisition is stepped and never blocks: an asynchronous caller can wait for it without a thread
that cannot be cancelled, a synchronous one can sleep.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.machine import Machine, find_machine, is_simulated
from jupyter_gpu.adapters.place import Place, find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Candidates, Look, Surroundings
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.layout import new_lease_id
from jupyter_gpu.core.leases import Owner, Waiter
from jupyter_gpu.core.policy import (
    HAD_LAST_TIME,
    HELD_ALREADY,
    Candidate,
    Choice,
    choose,
    devices_asked,
    eligible,
)
from jupyter_gpu.core.refusal import Reader
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.granting import Caller, record_of, write_down
from jupyter_gpu.lease import Grant, HeldLease
from jupyter_gpu.outfit import daemon_for, outfit
from jupyter_gpu.pool import Limit, Pool, find_pool
from jupyter_gpu.refusing import LIMIT_BUSY, refused, require_allowed, without_locks
from jupyter_gpu.renewal import catch_up
from jupyter_gpu.site import Site
from jupyter_gpu.turn import Turn

# The driver goes on listing a process for 100 to 200 ms after its end (measured on H200); two
# seconds is the most that anyone is made to wait for that.
TIDYING_SECONDS = 2.0
_TRIES = 4
# After so long it is looked whether the rules have changed that hold a request back.
_RULES_SECONDS = 15.0
# How long a lease to take over may be in the hands of its kernel, which changes it in moments.
_BUSY_SECONDS = 2.0


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
    caller
        Where the request came from, and what will run on the devices.
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
        caller: Caller | None = None,
        machine: Machine | None = None,
        place: Place | None = None,
    ) -> None:
        self.request, self.owner = request, owner
        self._environ, self._limits = environ, limits
        self._takeover, self._within = takeover or within, within
        self._caller = caller or Caller()
        self._machine = machine or find_machine(environ)
        self._place = place or find_place(environ, simulated=is_simulated(environ))
        self._store: LeaseStore | None = None
        self._claim: Claim | None = None
        self._guard = threading.Lock()
        self._closed = False
        self._turn = Turn(request, owner)
        self._looked = 0.0
        self._look: Look | None = None
        self._known_topology: Topology | None = None
        self._waiters: dict[int, Waiter] = {}
        self._groups: tuple[str, ...] | None = None
        self._counted: tuple[str, ...] = ()

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
        store.leave_queue(claim)
        # What is left of a lease is looked for where it ends; this one has never been one.
        with self._within.changing() as witness:
            if witness is not None:
                witness.remove_record(claim.id)
            claim.close()

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next step."""
        return self._turn.pause_seconds

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
        StoreError, RulesError
            When the lease directory, or the file of rules, cannot be used.
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
            nothing = outfit((), self.request, Inventory("none"), self._environ)
            return HeldLease(Grant((), nothing.environment))
        if self._store is None and locks.possible():
            self._store = LeaseStore(self._place, write=True)
        if self._goes_on_waiting():
            return None
        inventory = self._machine.read(sensors=False)
        pool = find_pool(inventory, self._limits, self._environ, self._store)
        if self._store is None or not self._store.supported:
            return without_locks(self.request, inventory, pool, self._environ, self._caller.program)
        around = self._surroundings(self._store)
        if around is None:
            return None
        pool = require_allowed(self.request, inventory, pool, around)
        if self._claim is not None and self._claim.ancestors != pool.ancestors:
            self._withdraw(self._store, self._claim)  # the lease above has ended meanwhile
            self._claim = None
        self._claim = self._claim or self._new_claim(inventory, pool)
        if self._claim is None:
            return None
        self._look = Look(Candidates(self.request, around, pool, self._inherited()), pool, around)
        self._looked = time.monotonic()
        return self._try(inventory, self._look)

    def _surroundings(self, store: LeaseStore) -> Surroundings | None:
        """Return what the request meets; None while who waits already waits for sound rules."""
        try:
            site = Site(self._place, self._environ, self._groups)
            site.require_sound()
        except GPUError:
            if self._look is None or self._claim is None or not self.waiting or self._turn.over:
                raise
            self._turn.wait(store, self._claim, self._look)
            return None
        self._groups = site.groups
        return Surroundings(
            store,
            site,
            is_simulated(self._environ),
            self._topology,
            daemon_for(self.request, self._environ),
            self._waiters,
        )

    def _topology(self) -> Topology:
        if self._known_topology is None:
            self._known_topology = self._machine.topology()
        return self._known_topology

    def _goes_on_waiting(self) -> bool:
        """Return whether a look at the locks is enough to know that nothing can be had yet.

        The machine and the records are read when something is unlocked, and now and then.
        """
        look, claim = self._look, self._claim
        if look is None or claim is None or claim.ticket is None or self._store is None:
            return False
        if (turn := self._turn).over:
            return False
        if self._counted:
            # Held back by its own limit until one of these leases ends, or the rules change.
            alive = all(map(self._store.is_live, self._counted))
            if not alive or time.monotonic() - self._looked > _RULES_SECONDS:
                return False
        elif turn.is_for_all(self._looked) or turn.may_have_come(self._store, claim, look):
            return False
        self._turn.wait(self._store, claim, look)
        return True

    def _try(self, inventory: Inventory, look: Look) -> HeldLease | None:
        """Choose and take, a few times over where others are quicker."""
        assert self._claim is not None
        limit = self._over_limit(look)
        if limit is not None and not self._turn.over:
            return self._later((), look, limit)
        candidates = look.candidates.all(inventory, self._claim)
        had = HAD_LAST_TIME if self._within is None else HELD_ALREADY
        for _ in range(_TRIES if limit is None else 0):
            preferred, near = self._preferred(), self._topology_if_asked()
            choice = choose(self.request, candidates, preferred, had, near)
            if choice is None:
                break
            # One at a time for the same user, whose leases are counted.
            uid, counted = os.getuid(), look.around.site.limited
            if counted and not self._claim.try_user(uid):
                return self._later(candidates, look, LIMIT_BUSY)
            try:
                limit = self._over_limit(look) if counted else None
                lease = self._taken(choice, look) if limit is None else None
            finally:
                if counted and self._claim is not None:
                    self._claim.leave_user(uid)
            if lease is not None or limit is not None:
                return lease or self._later(candidates, look, limit)
            candidates = look.candidates.all(inventory, self._claim)
        return self._later(candidates, look, limit)

    def _taken(self, choice: Choice, look: Look) -> HeldLease | None:
        """Take what was chosen, None where others were quicker."""
        assert self._claim is not None
        if not self._claim.take(choice.uuids, self.request.units, look.pool.capacity):
            return None
        # Read again under the lock: somebody may have begun since the first look.
        inventory = self._machine.read(sensors=False)
        if look.candidates.still_free(choice.uuids, inventory):
            return self._granted(choice, inventory, look)
        self._claim.put_back(self._inherited())
        return None

    def _over_limit(self, look: Look) -> str | None:
        assert self._store is not None
        site = look.around.site
        if not site.limited:
            return None
        wanted = devices_asked(self.request, eligible(self.request, look.pool.devices))
        own = () if self._takeover is None else (self._takeover.id,)
        leases = self._store.leases()
        limit = site.over_limit(leases, wanted, (*look.pool.ancestors, *own))
        mine = (one.record.id for one in leases.leases if one.user == site.user)
        self._counted = () if limit is None else tuple(mine)
        return limit

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
                        claim.adopt(old.holding)
                        return claim
                elif not self._takeover.released and self._turn.waited_seconds < _BUSY_SECONDS:
                    return None
            self._takeover = None
        return self._store.new_claim(pool.ancestors)

    def _inherited(self) -> dict[str, int]:
        """Return what the lease to take over holds already, in units."""
        claim = None if self._takeover is None else self._takeover.claim
        return {} if claim is None else dict(claim.holding)

    def _preferred(self) -> tuple[str, ...]:
        assert self._store is not None
        return tuple(self._inherited()) or self._store.recent_devices(self.owner.notebook)

    def _later(
        self, candidates: tuple[Candidate, ...], look: Look, limit: str | None = None
    ) -> HeldLease | None:
        """Decide between waiting (None) and refusing (raises)."""
        assert self._store is not None
        assert self._claim is not None
        waited = self._turn.waited_seconds
        if limit is LIMIT_BUSY and waited < self.request.wait_seconds + _BUSY_SECONDS:
            return None
        if waited < self.request.wait_seconds:
            self._turn.wait(self._store, self._claim, look)
            return None
        if waited < TIDYING_SECONDS and limit is None:
            tidied = tuple(Candidate(c.device) if c.passing else c for c in candidates)
            if choose(self.request, tidied, topology=self._topology_if_asked()) is not None:
                return None
        old = "" if self._takeover is None else self._takeover.id or ""
        own = {*look.pool.ancestors, self._claim.id, old}
        reader = Reader(
            "magic" if self._caller.origin == "magic" else self.owner.kind,
            look.around.site.user,
            datetime.now().astimezone(),
            tuple(self._inherited()),
        )
        raise refused(self.request, candidates, look, own, reader, limit)

    def _topology_if_asked(self) -> Topology | None:
        return None if self.request.topology == "any" else self._topology()

    def _granted(self, choice: Choice, inventory: Inventory, look: Look) -> HeldLease:
        assert self._store is not None
        assert self._claim is not None
        request, limited_by = self.request, look.pool.limited_by
        self._store.leave_queue(self._claim)
        self._claim.keep_only(choice.uuids, request.units)
        fitted = outfit(
            choice.devices,
            request,
            inventory,
            self._environ,
            program=self._caller.program,
            mps=look.around.mps,
            topology=self._topology() if request.cpu_affinity == "closest" else None,
        )
        origin = self._caller.origin
        record = record_of(self._claim, request, self.owner, choice, look, fitted, origin)
        write_down(self._store, self._claim, record, logged=self._within is None)
        limits = () if limited_by is None else (limited_by,)
        waited = self._turn.waited_seconds
        grant = Grant(
            choice.devices, fitted.environment, record, self._claim, limits, waited, fitted.cpus
        )
        return HeldLease(grant, self._place)


def acquire_now(acquisition: Acquisition) -> HeldLease:
    """Step an acquisition to its end, sleeping between looks; for synchronous callers."""
    with acquisition:
        while True:
            lease = acquisition.step()
            if lease is not None:
                return lease
            time.sleep(acquisition.pause_seconds)
