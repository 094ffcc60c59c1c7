"""The log of grants: its lines, and what they add up to for each user. Pure.

A line is believed for the user who owns the file it stands in, and for nobody else; what is torn
or of another form is no line.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fractions import Fraction

from jupyter_gpu.core.layout import DEVICE_UNITS, is_lease_id
from jupyter_gpu.core.leases import KINDS, LeaseKind, clean

ROOT = 0
_ITEMS_LIMIT = 1024
_START = b'{"schema"'


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease began at this time on these devices, or went on on others than before."""

    lease: str
    time: datetime
    uuids: tuple[str, ...]
    indices: tuple[int, ...]
    share: Fraction = Fraction(1)
    kind: LeaseKind = "api"


@dataclass(frozen=True, slots=True)
class Ended:
    """A lease ended; unless ``exact``, the time is the last at which it was known to live."""

    lease: str
    time: datetime
    exact: bool = True


Entry = Granted | Ended


@dataclass(frozen=True, slots=True)
class UserLog:
    """What one user's programs have written, in the order of writing."""

    uid: int
    user: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """Every user's log, where it is kept, and what of it could not be believed.

    ``exists`` is false where there is no directory for it.
    """

    directory: str
    exists: bool
    users: tuple[UserLog, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """What one user has had in a period: leases, device-hours, and what goes on.

    A share counts as the part that it is. ``estimated`` leases have ended without saying when:
    they count up to the last time at which they were known to live.
    """

    uid: int
    user: str
    leases: int
    device_hours: float
    open: int
    open_device_hours: float
    estimated: int
    last_grant: datetime


def granted_line(entry: Granted) -> bytes:
    """Return the line of a grant."""
    return _line(
        {
            "schema": 1,
            "event": "granted",
            "lease": entry.lease,
            "time": entry.time.isoformat(timespec="milliseconds"),
            "uuids": entry.uuids,
            "indices": entry.indices,
            "share": float(entry.share),
            "kind": entry.kind,
        }
    )


def ended_line(entry: Ended) -> bytes:
    """Return the line of an end."""
    return _line(
        {
            "schema": 1,
            "event": "ended",
            "lease": entry.lease,
            "time": entry.time.isoformat(timespec="milliseconds"),
            "exact": entry.exact,
        }
    )


def _line(data: Mapping[str, object]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def parse_entries(data: bytes) -> tuple[Entry, ...]:
    """Return the entries of a log, without what is not one.

    A line that a full disk has cut short runs into the next, which is found all the same.
    """
    found = (_entry(line[max(line.rfind(_START), 0) :]) for line in data.split(b"\n"))
    return tuple(entry for entry in found if entry is not None)


def _entry(line: bytes) -> Entry | None:
    if not line.startswith(_START):
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("schema") != 1:
        return None
    lease, time = data.get("lease"), _time(data.get("time"))
    if time is None or not isinstance(lease, str) or not is_lease_id(lease):
        return None
    if data.get("event") == "ended":
        return Ended(lease, time, data.get("exact") is True)
    return _granted(data, lease, time) if data.get("event") == "granted" else None


def _granted(data: Mapping[str, object], lease: str, time: datetime) -> Granted | None:
    uuids, indices = _items(data.get("uuids")), _items(data.get("indices"))
    share, kind = data.get("share"), next((one for one in KINDS if one == data.get("kind")), None)
    if kind is None or not uuids or not isinstance(share, (int, float)) or not 0 < share <= 1:
        return None
    return Granted(
        lease,
        time,
        tuple(dict.fromkeys(clean(uuid) for uuid in uuids if isinstance(uuid, str))),
        tuple(index for index in indices if type(index) is int),
        Fraction(share).limit_denominator(DEVICE_UNITS),
        kind,
    )


def _items(value: object) -> list[object]:
    return value[:_ITEMS_LIMIT] if isinstance(value, list) else []


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return None if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def recent(entries: Iterable[Entry], since: datetime) -> tuple[Entry, ...]:
    """Return the entries without those of leases that had ended before a time."""
    entries = tuple(entries)
    gone = {lease for lease, end in _ends(entries).items() if end.time < since}
    return tuple(entry for entry in entries if entry.lease not in gone)


def unended(users: Iterable[UserLog]) -> tuple[tuple[int, str], ...]:
    """Return the leases, each with its user's id, that nothing in the logs says the end of."""
    users = tuple(users)
    by_root = _ends_by_root(users)
    found: dict[tuple[int, str], None] = {}
    for log in users:
        ends = {**by_root, **_ends(log.entries)}
        for entry in log.entries:
            if isinstance(entry, Granted) and entry.lease not in ends:
                found[log.uid, entry.lease] = None
    return tuple(found)


def usage(
    users: Iterable[UserLog],
    since: datetime,
    until: datetime,
    *,
    live: Collection[str] = (),
    seen: Mapping[str, datetime] | None = None,
) -> tuple[Use, ...]:
    """Add up what every user has had in a period, who had most first.

    Parameters
    ----------
    users
        The logs. Root may tell the end of anybody's lease.
    since, until
        The period; ``until`` is the present.
    live
        Ids of leases without an end that are alive.
    seen
        Of those that are not, the last time at which they were known to be alive.
    """
    users = tuple(users)
    by_root = _ends_by_root(users)
    uses = []
    for log in users:
        ends = {**by_root, **_ends(log.entries)}
        terms = (_term(parts, ends, live, seen or {}, until) for parts in _leases(log.entries))
        within = [term for term in terms if term.end >= since and term.parts[0].time <= until]
        if within:
            uses.append(_use(log, within, since, until))
    return tuple(sorted(uses, key=lambda use: (-use.device_hours, use.user)))


@dataclass(frozen=True, slots=True)
class _Term:
    """One lease from its first grant to its end, or to the present where it goes on."""

    parts: tuple[Granted, ...]
    end: datetime
    goes_on: bool
    estimated: bool

    def device_hours(self, since: datetime, until: datetime) -> float:
        """Return how much of a period it takes; a grant on other devices ends the one before."""
        total = 0.0
        ends = (*(part.time for part in self.parts[1:]), self.end)
        for part, end in zip(self.parts, ends, strict=True):
            taken = min(end, until) - max(part.time, since)
            hours = max(taken, timedelta(0)) / timedelta(hours=1)
            total += hours * len(part.uuids) * float(part.share)
        return total


def _use(log: UserLog, terms: list[_Term], since: datetime, until: datetime) -> Use:
    hours = [term.device_hours(since, until) for term in terms]
    return Use(
        log.uid,
        log.user,
        len(terms),
        sum(hours),
        sum(term.goes_on for term in terms),
        sum(some for some, term in zip(hours, terms, strict=True) if term.goes_on),
        sum(term.estimated for term in terms),
        max(part.time for term in terms for part in term.parts if part.time <= until),
    )


def _leases(entries: Iterable[Entry]) -> tuple[tuple[Granted, ...], ...]:
    """Return the grants lease by lease, each in the order of time."""
    grants: dict[str, list[Granted]] = {}
    for entry in entries:
        if isinstance(entry, Granted):
            grants.setdefault(entry.lease, []).append(entry)
    return tuple(tuple(sorted(parts, key=lambda part: part.time)) for parts in grants.values())


def _term(
    parts: tuple[Granted, ...],
    ends: Mapping[str, Ended],
    live: Collection[str],
    seen: Mapping[str, datetime],
    until: datetime,
) -> _Term:
    lease, last = parts[-1].lease, parts[-1].time
    told = ends.get(lease)
    if told is not None:
        return _Term(parts, max(told.time, last), goes_on=False, estimated=not told.exact)
    if lease in live:
        return _Term(parts, max(until, last), goes_on=True, estimated=False)
    return _Term(parts, max(seen.get(lease, last), last), goes_on=False, estimated=True)


def _ends_by_root(users: tuple[UserLog, ...]) -> dict[str, Ended]:
    return _ends(entry for log in users if log.uid == ROOT for entry in log.entries)


def _ends(entries: Iterable[Entry]) -> dict[str, Ended]:
    """Return what is told about ends; the exact time counts more than one found out later."""
    ends: dict[str, Ended] = {}
    for entry in entries:
        if isinstance(entry, Ended) and (entry.exact or entry.lease not in ends):
            ends[entry.lease] = entry
    return ends
