"""A change of the lease that this kernel runs on: the locks and the record, in an order that holds.

A kernel may be killed between any two lines. At every moment each device that its record names is
locked, and a lease id beside its own on the description says that a change is not finished.
"""

from __future__ import annotations

import dataclasses
import os
from types import TracebackType

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.request import Request
from jupyter_gpu.lease import Grant, HeldLease
from jupyter_gpu.own_lease import OwnLease

_NOT_ALONE = (
    "This kernel's GPUs cannot be changed now: its notebook is changing to another kernel, or "
    "processes of the kernel before still hold GPUs together with it."
)
_USED_BELOW = (
    "This kernel's GPU cannot be made a smaller share now: a program that runs under this kernel "
    "has leased of it. End that first."
)
_ENDED_ABOVE = "The lease that this kernel runs under has ended. Restart the kernel."
_REPLACED = "This kernel's lease cannot be changed: the lease directory has been replaced."


class LeaseChange:
    """A second handle on a kernel's own lease. Use it in a ``with``; leaving it changes nothing."""

    def __init__(self, own: OwnLease, inventory: Inventory) -> None:
        self._own, record = own, own.record
        with Witness(own.place) as witness:
            on_machine = (device.uuid for device in inventory.devices)
            known = (*record.uuids, *(uuid for uuid in on_machine if uuid is not None))
            held = witness.devices_on(own.fd, record.ancestors, known)
        found = {device.uuid: device for device in inventory.devices}
        self.devices: tuple[Device, ...] = tuple(found[u] for u in held if u in found)
        self._claim = Claim(os.dup(own.fd), record.id, record.ancestors)
        self._claim.correct(held)
        self._had = held
        self.lease = HeldLease(Grant(self.devices, {}, record, self._claim), own.place)

    def __enter__(self) -> LeaseChange:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Only this handle: the kernel has its own descriptor, and goes on holding the locks.
        self._claim.close(keep_locks=True)

    @property
    def lease_id(self) -> str:
        """The id of the kernel's lease, which a change keeps."""
        return self._own.record.id

    @property
    def owner(self) -> Owner:
        """Who the lease is for."""
        return self._own.record.owner

    def require_alone(self, witness: Witness, begun: str | None = None) -> None:
        """Check that nobody else's lease stands on the description but one that was begun here.

        Raises
        ------
        GPUError
            When there is one: what the kernel unlocked would be unlocked for that one too.
        """
        if not witness.knows(self._claim.fd):
            raise GPUError(_REPLACED)
        if set(witness.leases_on(self._claim.fd)) - {self.lease_id, begun}:
            raise GPUError(_NOT_ALONE)

    def join(self, witness: Witness, part: HeldLease, *, keep: bool) -> None:
        """Make a lease that was granted within this one a part of it, and give up the rest.

        Parameters
        ----------
        witness
            The witness of ``lease.changing``.
        part
            What was granted; its id ends here.
        keep
            False to give up what is new instead: it was only asked whether it could be had.

        Raises
        ------
        GPUError
            When what would be given up is in use by forked processes; nothing has changed then.
        """
        new, record = part.claim, part.record
        assert new is not None, "locks are supported where there is a lease"
        assert record is not None, "granted"
        if not new.shared:
            part.release()
            raise GPUError(_ENDED_ABOVE)
        try:
            if keep:
                self._require_no_workers(record.uuids, record.units)
                self._require_none_below(record.uuids, record.units)
                self._publish(witness, record)
                self._claim.adopt(new.holding)
                self._claim.keep_only(record.uuids, record.units)
                if not record.ancestors:
                    granted = dataclasses.replace(record, id=self.lease_id)
                    GrantLog(self._own.place).granted(granted, granted.share)
        finally:
            witness.remove_record(record.id)
            new.close()

    def give_up(self, witness: Witness) -> None:
        """Give every device up and keep the lease, so that its server can go on with it.

        Raises
        ------
        GPUError
            As ``join`` does.
        """
        self._require_no_workers((), DEVICE_UNITS)
        self._publish(witness, Record(self.lease_id, self.owner, "", Request(gpus=0)))
        self._claim.keep_only(())
        if not self._own.record.ancestors:
            GrantLog(self._own.place).ended(self.lease_id, exact=True)

    def _publish(self, witness: Witness, granted: Record) -> None:
        written = witness.own_record(self.lease_id) or self._own.record
        witness.publish(
            dataclasses.replace(
                written,
                since=granted.since or written.since,
                request=granted.request,
                uuids=granted.uuids,
                indices=granted.indices,
                units=granted.units,
                because=granted.because,
                origin=granted.origin,
                caps=granted.caps,
            )
        )

    def _require_none_below(self, kept: tuple[str, ...], units: int) -> None:
        """Check that no program below this kernel has a part of a device that gets smaller."""
        smaller = [uuid for uuid in kept if self._had.get(uuid, 0) > units]
        with LeaseStore(self._own.place) as store:
            below = (*self._own.record.ancestors, self.lease_id)
            if not all(store.is_free(below, uuid) for uuid in smaller):
                raise GPUError(_USED_BELOW)

    def _require_no_workers(self, kept: tuple[str, ...], units: int) -> None:
        given_up = [
            device
            for device in self.devices
            if device.uuid not in kept or self._had.get(device.uuid or "", 0) > units
        ]
        if not given_up:
            return
        with LeaseStore(self._own.place) as store:
            keepers = {process.pid for process in store.kept_by(self.lease_id)}
        keeper = self.owner.keeper
        expected = {None if keeper is None else keeper.pid, *processes.ancestors_of(os.getpid())}
        infos = [info for pid in sorted(keepers - expected) if (info := processes.look(pid))]
        if infos:
            physical = ", ".join(str(device.index) for device in given_up)
            named = ", ".join(f"{info.pid} ({info.command})" for info in infos[:3])
            raise GPUError(
                f"Physical {physical} cannot be given back now: processes that this kernel has "
                f"forked may use it: {named}. End them first, or restart the kernel."
            )
