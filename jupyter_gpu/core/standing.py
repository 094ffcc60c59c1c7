"""How a device stands: held by whom, used without a lease, free, or out of use. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from jupyter_gpu.core.card import obstacle
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Lease, Owner
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.refusal import idle_in_words, short_holder, units_words

HOLDER_LENGTH = 40
FREE = "free"
# What stands on a device after the lease that it was taken from has ended.
_LEFT_BELOW = "in use below a lease that has ended"


@dataclass(frozen=True, slots=True)
class Standing:
    """One device with the leases on it, and the words for it, or for what of it nobody has.

    ``free_units`` is how much of it can be leased, as far as leases and the card tell.
    """

    device: Device
    leases: tuple[Lease, ...] = ()
    words: str = ""
    free_units: int = 0


def standing(device: Device, overview: Overview) -> Standing:
    """Return how a device stands."""
    everybody = overview.holdings.on(device.uuid)
    leases = innermost(everybody)
    hold = overview.holds.holding(device)
    if leases:
        held = sum(lease.record.units for lease in everybody if not lease.record.ancestors)
        left = max(DEVICE_UNITS - held, 0)
        if hold is not None:
            return Standing(device, leases, hold.words)
        if any(outlives_its_outer(lease, everybody) for lease in everybody):
            return Standing(device, leases, _LEFT_BELOW)
        return Standing(device, leases, f"{units_words(left)} {FREE}" if left else "", left)
    why = _why_not(device, overview) if hold is None else hold.words
    if why is not None:
        return Standing(device, words=why)
    free = FREE if overview.leasing.exclusive else "no use of it known"
    return Standing(device, words=free, free_units=DEVICE_UNITS)


def _why_not(device: Device, overview: Overview) -> str | None:
    """Return what keeps a device from being leased that nobody has leased, or None."""
    if device.problem is not None:
        return "in MIG mode" if device.mig_mode else "out of use"
    if device.uuid in overview.holdings.unclaimed:
        return "held by a process that left no record"
    lease, process = overview.lease, overview.process
    ours = () if lease is None else lease.pids
    own = () if process is None else (process.pid,)
    found = obstacle(device, overview.known, ours=(*ours, *own))
    return None if found is None else found.sentence


def innermost(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Return the leases without those that others of them are nested in."""
    found = tuple(leases)
    outer = {above for lease in found for above in lease.record.ancestors}
    return tuple(lease for lease in found if lease.record.id not in outer)


def outlives_its_outer(lease: Lease, on_device: Iterable[Lease]) -> bool:
    """Tell whether a lease is nested in others, none of which is among those on its device."""
    alive = {other.record.id for other in on_device}
    return bool(lease.record.ancestors) and not alive & {*lease.record.ancestors}


def holder_words(lease: Lease, now: datetime | None = None) -> str:
    """Return who holds a lease: ``"alice (exp7.ipynb)"``, with what is odd about it.

    With the present, for how long its kernel has been idle is told too.
    """
    parts = [part for part in (holder_name(lease), lease.record.share_words) if part]
    if lease.state == "draining":
        parts.append("draining")
    elif lease.state == "idle" and now is not None:
        parts.append(idle_in_words(lease.record.owner.idle_since, now))
    return f"{lease.user or 'unknown user'} ({', '.join(parts)})"


def standing_words(device: Device, overview: Overview, now: datetime | None = None) -> str:
    """Return who has a device, or how it stands where nobody has it."""
    found = standing(device, overview)
    holders = " and ".join(holder_words(lease, now) for lease in found.leases)
    return ", ".join(filter(None, [holders, found.words]))


def holder_name(lease: Lease) -> str:
    """Return the notebook's file name, or the command, or the kernel, shortened."""
    return owner_name(lease.record.owner)


def owner_name(owner: Owner) -> str:
    """Return the same of whoever holds or waits."""
    name = short_holder(owner)
    return name if len(name) <= HOLDER_LENGTH else f"{name[: HOLDER_LENGTH - 1]}…"
