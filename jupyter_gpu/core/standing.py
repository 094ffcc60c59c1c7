"""How a device stands: held by whom, used without a lease, free, or out of use. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from jupyter_gpu.core.card import obstacle
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.leases import Lease, Owner
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.policy import leasable
from jupyter_gpu.core.refusal import idle_in_words, short_holder

HOLDER_LENGTH = 40
FREE = "free"


@dataclass(frozen=True, slots=True)
class Standing:
    """One device with the leases on it, or the words for it where there are none."""

    device: Device
    leases: tuple[Lease, ...] = ()
    words: str = ""


def standing(device: Device, overview: Overview) -> Standing:
    """Return how a device stands."""
    leases = innermost(overview.holdings.on(device.uuid))
    if leases:
        return Standing(device, leases)
    if device.problem is not None:
        return Standing(device, words="in MIG mode" if device.mig_mode else "out of use")
    if device.uuid in overview.holdings.unclaimed:
        return Standing(device, words="held by a process that left no record")
    lease, process = overview.lease, overview.process
    ours = () if lease is None else lease.pids
    own = () if process is None else (process.pid,)
    found = obstacle(device, overview.known, ours=(*ours, *own))
    if found is not None:
        return Standing(device, words=found.sentence)
    free = FREE if overview.leasing.exclusive else "no use of it known"
    return Standing(device, words=free if leasable(device) else "a MIG device")


def innermost(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Return the leases without those that others of them are nested in."""
    found = tuple(leases)
    outer = {above for lease in found for above in lease.record.ancestors}
    return tuple(lease for lease in found if lease.record.id not in outer)


def holder_words(lease: Lease, now: datetime | None = None) -> str:
    """Return who holds a lease: ``"alice (exp7.ipynb)"``, with what is odd about it.

    With the present, for how long its kernel has been idle is told too.
    """
    parts = [holder_name(lease)]
    if lease.state == "draining":
        parts.append("draining")
    elif lease.state == "idle" and now is not None:
        parts.append(idle_in_words(lease.record.owner.idle_since, now))
    return f"{lease.user or 'unknown user'} ({', '.join(parts)})"


def standing_words(device: Device, overview: Overview, now: datetime | None = None) -> str:
    """Return who has a device, or how it stands where nobody has it."""
    found = standing(device, overview)
    return " and ".join(holder_words(lease, now) for lease in found.leases) or found.words


def holder_name(lease: Lease) -> str:
    """Return the notebook's file name, or the command, or the kernel, shortened."""
    return owner_name(lease.record.owner)


def owner_name(owner: Owner) -> str:
    """Return the same of whoever holds or waits."""
    name = short_holder(owner)
    return name if len(name) <= HOLDER_LENGTH else f"{name[: HOLDER_LENGTH - 1]}…"
