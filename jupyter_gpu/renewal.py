"""What a server makes of a lease that its kernel may have changed: it looks at the locks again.

``%gpu use`` takes and gives up devices through the kernel's copy of the lease, and a kernel may be
killed in the middle of that. The record is only a hint: what counts is what the description holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Record
from jupyter_gpu.core.request import Identifiers
from jupyter_gpu.lease import HeldLease
from jupyter_gpu.outfit import daemon_for, outfit


def renew(
    lease: HeldLease,
    environ: Mapping[str, str],
    identifiers: Identifiers,
    program: str | None = None,
) -> None:
    """Bring a lease up to date whose kernel has ended, and undo what it had only begun.

    Called before a restart, in a thread: it may read the machine.

    Raises
    ------
    StoreError
        When the lease directory cannot be used any more.
    """

    def read() -> Inventory:
        with find_machine(environ) as machine:
            return machine.read(sensors=False)

    with lease.changing() as witness:
        if witness is not None:
            clear_remains(lease, witness, read)
            catch_up(lease, witness, read, environ, identifiers, program)
            return
    # Somebody holds the right to change it, and the kernel is gone: nobody of ours can.
    raise StoreError("The lease cannot be looked at: a program has locked its right to change.")


def catch_up(
    lease: HeldLease,
    witness: Witness,
    read: Callable[[], Inventory],
    environ: Mapping[str, str],
    identifiers: Identifiers = "auto",
    program: str | None = None,
) -> None:
    """Make a lease say what its description really holds; called while it is ``changing``.

    Parameters
    ----------
    lease, witness
        The lease, and the witness that its ``changing`` gave.
    read
        Reads the machine; called only where something is not as it was.
    environ
        What a kernel would have without us.
    identifiers
        How devices are named in the kernel's variables.
    program
        What runs on the devices, as for an acquisition.
    """
    claim, record = _claim_of(lease), lease.record
    if record is None or not witness.knows(claim.fd):
        return
    written = witness.own_record(claim.id)
    remembered = tuple(device.uuid for device in lease.devices if device.uuid is not None)
    believed = None if written is None or written.ancestors != claim.ancestors else written
    held = witness.devices_on(claim.fd, claim.ancestors, remembered)
    known = believed is not None and believed.uuids == remembered and _same(believed, record)
    if known and believed is not None and _has(held, believed):
        return
    inventory = read()
    held = _held(claim, witness, inventory, believed)
    if believed is not None and _has(held, believed):
        current = believed.uuids
        claim.correct(dict.fromkeys(current, believed.units))
    else:
        own = tuple(uuid for uuid in claim.uuids if uuid in held)
        current = own or (() if claim.sharing else tuple(held))
        claim.correct({uuid: held[uuid] for uuid in current})
    # A kernel that was killed after it had written down what it gave up has not unlocked it.
    claim.clear((), (), held)
    found = {device.uuid: device for device in inventory.devices}
    devices = tuple(found[uuid] for uuid in current if uuid in found)
    became = _record(believed or record, lease, devices)
    request = dataclasses.replace(became.request, identifiers=identifiers)
    mps = daemon_for(request, environ)
    fitted = outfit(devices, request, inventory, environ, program=program, mps=mps)
    lease.became(devices, fitted.environment, dataclasses.replace(became, caps=fitted.caps))


def clear_remains(lease: HeldLease, witness: Witness, read: Callable[[], Inventory]) -> None:
    """Give up what a kernel that was killed in the middle of a change had taken beside its lease.

    Such a kernel leaves another lease id on the description: it is locked before any new device is
    and unlocked after every old one.
    """
    claim = _claim_of(lease)
    if not witness.knows(claim.fd):
        return
    known = {claim.id, *claim.sharing, *(lease_id for lease_id, _ in claim.burdens)}
    strays = tuple(one for one in witness.leases_on(claim.fd) if one not in known)
    if not strays:
        return
    written = witness.own_record(claim.id)
    held = _held(claim, witness, read(), written)
    kept = claim.uuids
    if written is not None and set(written.uuids) <= set(held):
        kept = written.uuids
    units = DEVICE_UNITS if written is None else written.units
    claim.correct({uuid: min(units, held[uuid]) for uuid in kept if uuid in held})
    tickets = () if claim.sharing else witness.tickets_on(claim.fd)
    claim.clear(strays, tickets, held)
    for stray in strays:
        witness.remove_record(stray)


def _held(
    claim: Claim, witness: Witness, inventory: Inventory, record: Record | None
) -> dict[str, int]:
    on_machine = tuple(device.uuid for device in inventory.devices if device.uuid is not None)
    written = () if record is None else record.uuids
    asked = (*on_machine, *written, *claim.uuids)
    return witness.devices_on(claim.fd, claim.ancestors, asked)


def _has(held: Mapping[str, int], record: Record) -> bool:
    """Return whether what is held is all that a record says."""
    return all(held.get(uuid, 0) >= record.units for uuid in record.uuids)


def _same(one: Record, other: Record) -> bool:
    """Return whether two records are of as much of each device, asked for in the same way."""
    return one.units == other.units and one.request.as_options() == other.request.as_options()


def _record(written: Record, lease: HeldLease, devices: tuple[Device, ...]) -> Record:
    assert lease.record is not None
    return dataclasses.replace(
        written,
        owner=lease.record.owner,
        uuids=tuple(device.uuid for device in devices if device.uuid is not None),
        indices=tuple(device.index for device in devices),
    )


def _claim_of(lease: HeldLease) -> Claim:
    claim = lease.claim
    assert claim is not None, "only what is locked is changed"
    return claim
