"""Where things stand in the lock file: pure arithmetic from names to ranges of bytes.

Offsets run to 2**63. A device's slot is 2**15 units at a place derived from its UUID (and from
the leases above it, for a nested one): 27,720 units are the device, so that thirds, fifths,
sevenths and eighths come out whole, and the next unit is where nested leases meet. A lease id has
a unit of its own, one more that whoever changes its devices holds meanwhile, and one that the
leases nested in it share; so has every ticket of the queue, and every user whose leases are
counted. The file itself stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

LAYOUT_VERSION = 1

DEVICE_UNITS = 27_720
_SLOT_BITS = 15
_LEASE_IDS_START = 1 << 61
_QUEUE_START = 1 << 62
_QUEUE_LENGTH = 1 << 40
_ID_DIGITS = 15
_CHANGES_START = _LEASE_IDS_START + (1 << (4 * _ID_DIGITS))
_NESTED_START = _QUEUE_START + (1 << 61)
_USERS_START = _NESTED_START + (1 << (4 * _ID_DIGITS))
_ID = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Range:
    """A range of the lock file, in bytes."""

    start: int
    length: int


WHOLE_FILE = Range(0, (1 << 63) - 1)
LEASE_IDS = Range(_LEASE_IDS_START, 1 << (4 * _ID_DIGITS))
QUEUE = Range(_QUEUE_START, _QUEUE_LENGTH)
NESTED = Range(_NESTED_START, 1 << (4 * _ID_DIGITS))


def new_lease_id() -> str:
    """Return a fresh random lease id, 60 bits as 15 hexadecimal digits."""
    import secrets  # noqa: PLC0415 - readers never need it, and have to be quick

    return secrets.token_hex(8)[:_ID_DIGITS]


def is_lease_id(text: str) -> bool:
    """Return whether the text has the form of a lease id."""
    return _ID.fullmatch(text) is not None


def lease_byte(lease_id: str) -> Range:
    """Return the unit whose lock says that this lease is alive."""
    return Range(_LEASE_IDS_START + int(lease_id, 16), 1)


def lease_id_at(position: int) -> str:
    """Return the lease id whose unit stands at this position; the inverse of lease_byte."""
    return f"{position - _LEASE_IDS_START:0{_ID_DIGITS}x}"


def change_byte(lease_id: str) -> Range:
    """Return the unit that is locked while a lease's devices are changed or handed on."""
    return Range(_CHANGES_START + int(lease_id, 16), 1)


def nested_in(lease_id: str) -> Range:
    """Return the unit that the leases nested in this one lock together (shared)."""
    return Range(_NESTED_START + int(lease_id, 16), 1)


def nest_at(position: int) -> str:
    """Return the lease id whose nested leases stand at this position; the inverse of nested_in."""
    return f"{position - _NESTED_START:0{_ID_DIGITS}x}"


def user_byte(uid: int) -> Range:
    """Return the unit that is locked while a user's leases are counted and one more is taken."""
    return Range(_USERS_START + (uid & 0xFFFFFFFF), 1)


def share_units(share: Fraction) -> int:
    """Return the units of a share, rounded down: n shares of 1/n always fit on one device."""
    return int(share * DEVICE_UNITS)


def ticket_byte(ticket: int) -> Range:
    """Return the unit of a ticket in the queue."""
    return Range(_QUEUE_START + ticket, 1)


def _slot(ancestor: str | None, uuid: str) -> int:
    import hashlib  # noqa: PLC0415 - readers have to be quick, and on an idle machine need none

    digest = hashlib.sha256(f"{ancestor or ''}\n{uuid}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 18) << _SLOT_BITS  # 46 bits of slot


def device_range(ancestor: str | None, uuid: str) -> Range:
    """Return the units that are the whole device, for leases directly below ``ancestor``."""
    return Range(_slot(ancestor, uuid), DEVICE_UNITS)


def slot(ancestor: str | None, uuid: str) -> Range:
    """Return the device's units and the nested unit behind them, for one question about both."""
    return Range(_slot(ancestor, uuid), DEVICE_UNITS + 1)


def nested_byte(ancestor: str | None, uuid: str) -> Range:
    """Return the unit that nested leases on this device lock together (shared).

    Whoever leases the device directly below ``ancestor`` looks at it: while it is locked, a lease
    below a lease that is gone still uses the device.
    """
    return Range(_slot(ancestor, uuid) + DEVICE_UNITS, 1)


def without(where: Range, taken: Iterable[Range]) -> tuple[Range, ...]:
    """Return what is left of a range when others are taken out of it, in order."""
    left, start = [], where.start
    end = where.start + where.length
    for one in sorted(taken, key=lambda one: one.start):
        if min(one.start, end) > start:
            left.append(Range(start, min(one.start, end) - start))
        start = max(start, one.start + one.length)
    if end > start:
        left.append(Range(start, end - start))
    return tuple(left)


def first_units(pieces: Iterable[Range], units: int) -> tuple[Range, ...]:
    """Return so many units out of these pieces: one piece if it is enough, the smallest such.

    Fewer where they do not hold as many.
    """
    found = tuple(pieces)
    enough = [piece for piece in found if piece.length >= units]
    if enough:
        return (Range(min(enough, key=lambda piece: piece.length).start, units),)[: units > 0]
    taken = []
    for piece in found:
        length = min(piece.length, units)
        if length:
            taken.append(Range(piece.start, length))
        units -= length
    return tuple(taken)


def total_units(pieces: Iterable[Range]) -> int:
    """Return how many units these ranges have together."""
    return sum(piece.length for piece in pieces)
