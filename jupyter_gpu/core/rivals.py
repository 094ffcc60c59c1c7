"""Leases that claim the same device: which of the claims cannot all be true. Pure."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Lease, ProcessRef

NOT_HELD = "this record claims a device it does not hold"
CONFLICT = "another lease claims the same device; both cannot be true"


def with_conflicts(leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
    """Mark leases that claim a device which another claims too, at the same level.

    A claim that is known to be false casts no doubt on others.
    """
    holders: dict[tuple[tuple[str, ...], str], list[Lease]] = {}
    for lease in leases:
        for uuid in lease.record.uuids if lease.note != NOT_HELD else ():
            holders.setdefault((lease.record.ancestors, uuid), []).append(lease)
    doubtful: set[str] = set()
    for rivals in holders.values():
        # What workers have kept may stand on a description that the next kernel has by now.
        own = [lease for lease in rivals if not lease.record.owner.workers]
        if _too_much(own, _hand) or _too_much(rivals, lambda lease: lease.user):
            doubtful.update(lease.record.id for lease in rivals)
    return tuple(
        Lease(lease.record, lease.user, lease.state, lease.pids, CONFLICT)
        if lease.record.id in doubtful and lease.note is None
        else lease
        for lease in leases
    )


def _too_much(leases: list[Lease], hand: Callable[[Lease], object]) -> bool:
    """Return whether several hands claim more of a device together than there is."""
    most: dict[object, int] = {}
    for lease in leases:
        key = hand(lease)
        most[key] = max(most.get(key, 0), lease.record.units)
    return sum(most.values()) > DEVICE_UNITS


def _hand(lease: Lease) -> tuple[str | None, ProcessRef | str]:
    # A kernel change hands devices over inside one server: for a moment both records are true.
    return lease.user, lease.record.owner.keeper or lease.record.id
