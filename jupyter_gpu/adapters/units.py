"""The units of one device in the lock file: as many as a share needs, in several pieces if need be.

The operating system keeps the sum of shares: what one description has locked, no other can.
"""

from __future__ import annotations

from collections.abc import Collection

from jupyter_gpu.adapters import locks
from jupyter_gpu.core.layout import (
    NESTED,
    Range,
    first_units,
    lease_byte,
    nest_at,
    nested_byte,
    slot,
    total_units,
    without,
)

_TRIES = 4


def lock_units(
    fd: int, where: Range, units: int, *, held: bool = False
) -> tuple[Range, ...] | None:
    """Lock so many units of a device, all or none; returns what was locked for it, None if none.

    Parameters
    ----------
    fd
        The description that is to have them.
    where
        The units that there are.
    units
        How many of them it is to have, what it has already included.
    held
        Whether it may have some already.
    """
    for _ in range(_TRIES):
        own = locks.own_ranges(fd, where) if held else ()
        missing = units - total_units(own)
        if missing <= 0:
            return ()
        if units >= where.length:
            pieces = without(where, own)
        else:
            free = without(where, (*locks.locked_ranges(fd, where), *own))
            pieces = first_units(free, missing)
        if total_units(pieces) < missing:
            return None
        if _lock_all(fd, pieces):
            return pieces
        if units >= where.length:
            return None
    return None


def used_by_orphans(
    fd: int, parent: str | None, uuid: str, alive: Collection[str] = ()
) -> bool:
    """Return whether a lease uses this device that was nested in one which is gone.

    Such a lease has marked the device at the level below ``parent``, and each lease above it.
    Those that live are no matter: what is nested in them uses their part. ``alive`` are the ids of
    leases that stand on this very description, about which the system says nothing.
    """
    if locks.first_lock(fd, nested_byte(parent, uuid)) is None:
        return False
    for found in locks.locked_ranges(fd, NESTED):
        if found.length > 1:  # somebody's nonsense: nothing can be told
            return True
        above = nest_at(found.start)
        gone = above not in alive and locks.first_lock(fd, lease_byte(above)) is None
        if gone and locks.first_lock(fd, slot(above, uuid)) is not None:
            return True
    return False


def _lock_all(fd: int, pieces: tuple[Range, ...]) -> bool:
    for count, piece in enumerate(pieces):
        if not locks.try_lock(fd, piece):
            for locked in pieces[:count]:
                locks.unlock(fd, locked)
            return False
    return True


def keep_units(fd: int, where: Range, units: int) -> None:
    """Unlock what a description has of a device beyond so many units."""
    if units >= where.length:
        return
    own = locks.own_ranges(fd, where)
    kept = first_units(own, units)
    for piece in own:
        for surplus in without(piece, kept):
            locks.unlock(fd, surplus)
