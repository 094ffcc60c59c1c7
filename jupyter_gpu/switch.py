"""``%gpu use``: other devices for the kernel that runs, while CUDA has not read its variable yet.

The kernel's descriptor is a copy of its server's: devices that are locked or unlocked through it
are so for both. The new ones are taken first, and the old ones go after.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.machine import Machine, find_machine
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.environment import merged, variables
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.variables import LEASE, LEASE_FD, NOTICE
from jupyter_gpu.granting import Caller
from jupyter_gpu.lease import HeldLease, notice_of
from jupyter_gpu.lease_change import LeaseChange
from jupyter_gpu.own_lease import OwnLease, above, find_own_lease
from jupyter_gpu.pool import Limit

_PATIENCE_SECONDS = 2.0
_BUSY = "The lease of this kernel is being changed by its server. Ask again in a moment."


@dataclass(frozen=True, slots=True)
class Switched:
    """What a change has come to: the variables to set, and the devices now and before."""

    environment: dict[str, str]
    devices: tuple[Device, ...] = ()
    before: tuple[Device, ...] = ()
    limits: tuple[str, ...] = ()
    caution: str | None = None


class Switch:
    """One wish for other devices, in the kernel that has it.

    Parameters
    ----------
    request
        What is asked for.
    owner
        Who asks, for a kernel that nobody has leased for.
    environ
        The environment of this process.
    limits
        What its pool was cut down to when it started.
    machine
        A machine to look at instead of the one that the environment means: a fake's.
    """

    def __init__(
        self,
        request: Request,
        owner: Owner,
        environ: Mapping[str, str],
        limits: tuple[Limit, ...] = (),
        machine: Machine | None = None,
    ) -> None:
        self.request = request
        self._owner, self._limits = owner, limits
        self._machine = machine
        self.own: OwnLease | None = find_own_lease(environ)
        self._environ = above(environ, self.own)
        self._dropped = set(environ) - set(self._environ)

    def now(self) -> Switched:
        """Change the devices at once, or nothing; ``put`` then sets the variables.

        Raises
        ------
        NoDeviceAvailable, RequestError
            When the devices cannot be had.
        GPUError
            When the lease cannot be changed at this moment.
        """
        if self.own is None:
            return self._leased_anew()
        with LeaseChange(self.own, self._inventory()) as change:
            if self.request.gpus != 0:
                return self._stepped(change)
            before = change.devices
            if self.own.has_keeper:
                self._give_up(change)
        if not self.own.has_keeper:
            # Nobody restarts this kernel with it: the lease ends, as it does with the process.
            with LeaseStore(self.own.place, write=True) as store:
                record = self.own.record
                store.withdraw(Claim(self.own.fd, record.id, record.ancestors))
            if not record.ancestors:
                GrantLog(self.own.place).ended(record.id, exact=True)
        nothing = Inventory("none")
        return Switched(variables((), nothing, "auto", self._environ), (), before)

    def try_out(self) -> None:
        """Find out whether the devices could be had now, and take none.

        Raises
        ------
        NoDeviceAvailable, RequestError
            When they could not.
        GPUError
            As ``now`` does.
        """
        if self.own is not None and self.request.gpus != 0:
            with LeaseChange(self.own, self._inventory()) as change:
                self._stepped(change, keep=False)

    def put(self, switched: Switched, environ: MutableMapping[str, str]) -> None:
        """Set the variables of a change, and drop what the lease before had set."""
        notice = notice_of(switched.limits, switched.caution)
        fresh = merged(self._environ, switched.environment, notice)
        # Programs would inherit the number, but not the descriptor.
        fresh.pop(LEASE_FD, None)
        for name in {LEASE, LEASE_FD, NOTICE, *self._dropped}:
            if name not in fresh:
                environ.pop(name, None)
        for name, value in fresh.items():
            if environ.get(name) != value:
                environ[name] = value

    def _inventory(self) -> Inventory:
        if self._machine is not None:
            return self._machine.read(sensors=False)
        with find_machine(self._environ) as machine:
            return machine.read(sensors=False)

    def _acquisition(self, owner: Owner, within: HeldLease | None = None) -> Acquisition:
        return Acquisition(
            self.request,
            owner,
            self._environ,
            limits=self._limits,
            within=within,
            caller=Caller("magic"),
            machine=self._machine,
        )

    def _leased_anew(self) -> Switched:
        lease = acquire_now(self._acquisition(self._owner))
        environment = lease.environment
        lease.leave()
        return Switched(environment, lease.devices, (), lease.limits, lease.caution)

    def _stepped(self, change: LeaseChange, *, keep: bool = True) -> Switched:
        """Step to the end; the right to change the lease is held while a step is made."""
        last = time.monotonic()
        with self._acquisition(change.owner, change.lease) as acquisition:
            while True:
                with change.lease.changing() as witness:
                    if witness is not None:
                        change.require_alone(witness, acquisition.lease_id)
                        part = acquisition.step()
                        if part is not None:
                            change.join(witness, part, keep=keep)
                            environment = {**part.environment, LEASE: change.lease_id}
                            return Switched(
                                environment, part.devices, change.devices, part.limits
                            )
                        last = time.monotonic()
                if time.monotonic() - last > _PATIENCE_SECONDS:
                    raise GPUError(_BUSY)
                time.sleep(acquisition.pause_seconds)

    @staticmethod
    def _give_up(change: LeaseChange) -> None:
        with change.lease.changing() as witness:
            if witness is None:
                raise GPUError(_BUSY)
            change.require_alone(witness)
            change.give_up(witness)
