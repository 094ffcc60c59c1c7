"""Leases as readers see them, and the record that a holder leaves about itself.

The lock is the truth and the record a hint: everything here is read with suspicion. A record
that is not of the right form is no record; text in it is shortened and freed of control
characters, because it ends up on other people's screens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.layout import DEVICE_UNITS, QUEUE, is_lease_id
from jupyter_gpu.core.quantities import fraction_words
from jupyter_gpu.core.request import Request

if TYPE_CHECKING:
    from fractions import Fraction

LeaseKind = Literal["kernel", "command", "api"]
# Where a request came from: a kernelspec, the notebook's own metadata, the server's configuration,
# a command line, a program, or ``%gpu use``.
Origin = Literal["kernelspec", "notebook", "server", "command", "api", "magic"]
ORIGINS: tuple[Origin, ...] = ("kernelspec", "notebook", "server", "command", "api", "magic")
State = Literal["active", "idle", "draining"]
KINDS: tuple[LeaseKind, ...] = ("kernel", "command", "api")

# Who may read whose notebook names: everybody, each their own, nobody.
Notebooks = Literal["all", "own", "none"]
NOTEBOOKS: tuple[Notebooks, ...] = ("all", "own", "none")

RECORD_SIZE_LIMIT = 64 * 1024
_TEXT_LIMIT = 1024
_ITEMS_LIMIT = 1024
_TIME_LIMIT = 64


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process that cannot be mistaken for a later one with the same pid.

    ``start`` is its start time in clock ticks since boot (field 22 of ``/proc/<pid>/stat``),
    ``namespace`` the inode of its pid namespace: a pid means nothing in another one.
    """

    pid: int
    start: int | None = None
    namespace: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: the part of a record that the holder knows about itself.

    ``processes`` are the ones that use the devices; ``keeper`` is the server that would restart
    them and holds the lease meanwhile; ``workers`` are what is left of them when all else is gone.
    ``idle_since`` is the time (ISO 8601, UTC) since which a kernel has run nothing, its devices
    doing nothing; None while it works, where that is not known, or where no server watches it.
    """

    kind: LeaseKind
    kernel_id: str | None = None
    notebook: str | None = None
    command: str | None = None
    processes: tuple[ProcessRef, ...] = ()
    keeper: ProcessRef | None = None
    workers: tuple[ProcessRef, ...] = ()
    idle_since: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What a holder wrote about its lease.

    ``units`` are how much it has of each device, out of ``DEVICE_UNITS``. ``ancestors`` are the
    ids of the leases it is nested in, outermost first. While it waits, ``ticket`` is its place in
    the queue and ``could_use`` the UUIDs that would serve it. ``caps`` are sentences about how hard
    what it may use is limited. ``notebooks`` says who may read the notebook's name, which stands in
    a file of its own where only its owner may.
    """

    id: str
    owner: Owner
    since: str
    request: Request = field(default_factory=Request)
    uuids: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    units: int = DEVICE_UNITS
    ancestors: tuple[str, ...] = ()
    ticket: int | None = None
    could_use: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    origin: Origin | None = None
    caps: tuple[str, ...] = ()
    notebooks: Notebooks = "all"

    @property
    def share(self) -> Fraction:
        """The part of each device that it has: 1 for whole devices."""
        from fractions import Fraction  # noqa: PLC0415 - readers have to be quick

        return Fraction(self.units, DEVICE_UNITS)

    @property
    def share_words(self) -> str:
        """``"¼ GPU"`` for a share, an empty text for whole devices."""
        if self.units == DEVICE_UNITS:
            return ""
        asked = self.request.share
        # What was asked for, as it was written: it is rounded down to whole units.
        exact = asked is None or self.request.units != self.units
        return f"{fraction_words(self.share if exact or asked is None else asked)} GPU"

    def to_json(self) -> str:
        """Return the record as the text of its file."""
        owner = self.owner
        return json.dumps(
            {
                "schema": 1,
                "id": self.id,
                "kind": owner.kind,
                "kernel_id": owner.kernel_id,
                "notebook": owner.notebook if self.notebooks == "all" else None,
                "command": owner.command,
                "processes": [_process_to_json(process) for process in owner.processes],
                "keeper": None if owner.keeper is None else _process_to_json(owner.keeper),
                "workers": [_process_to_json(process) for process in owner.workers],
                "idle_since": owner.idle_since,
                "since": self.since,
                "request": self.request.as_options(),
                "uuids": list(self.uuids),
                "indices": list(self.indices),
                "units": self.units,
                "ancestors": list(self.ancestors),
                "ticket": self.ticket,
                "could_use": list(self.could_use),
                "because": list(self.because),
                "origin": self.origin,
                "caps": list(self.caps),
                "notebooks": self.notebooks,
            }
        )

    @classmethod
    def from_json(cls, text: str, lease_id: str | None = None) -> Record:
        """Read the text of a record's file; ``lease_id`` is whose it has to be, None for anybody's.

        Raises
        ------
        ValueError
            When it is not a record, or is the record of another lease (a file linked or copied
            under this name).
        """
        data = json.loads(text)
        found = data.get("id") if isinstance(data, dict) and data.get("schema") == 1 else None
        if not isinstance(found, str) or not is_lease_id(found) or lease_id not in (None, found):
            message = "not the record of this lease"
            raise ValueError(message)
        kind = data.get("kind")
        if kind not in KINDS:
            message = "unknown kind of lease"
            raise ValueError(message)
        return cls(
            id=found,
            owner=Owner(
                kind=kind,
                kernel_id=_text(data.get("kernel_id")),
                notebook=_text(data.get("notebook")),
                command=_text(data.get("command")),
                processes=_processes(data.get("processes")),
                keeper=_process(data.get("keeper")),
                workers=_processes(data.get("workers")),
                idle_since=_time(data.get("idle_since")),
            ),
            since=_text(data.get("since")) or "",
            request=_request(data.get("request")),
            uuids=_texts(data.get("uuids")),
            indices=_integers(data.get("indices")),
            ancestors=tuple(name for name in _texts(data.get("ancestors")) if is_lease_id(name)),
            ticket=_ticket(data.get("ticket")),
            could_use=_texts(data.get("could_use")),
            because=_texts(data.get("because")),
            units=_units(data.get("units", DEVICE_UNITS)),
            origin=next((one for one in ORIGINS if one == data.get("origin")), None),
            caps=_texts(data.get("caps")),
            notebooks=next((one for one in NOTEBOOKS if one == data.get("notebooks")), "all"),
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that is alive at this moment, with what could be found out about it.

    ``user`` is the owner of the record's file, never what the record says. ``note`` is a sentence
    about a claim that cannot be true, a record that is missing, or processes that keep it alive.
    An active lease whose record says that its kernel runs nothing is idle.
    """

    record: Record
    user: str | None
    state: State
    pids: tuple[int, ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        if self.state == "active" and self.record.owner.idle_since is not None:
            object.__setattr__(self, "state", "idle")

    @property
    def share(self) -> Fraction:
        """The part of each of its devices that it has: 1 for whole devices."""
        return self.record.share

    def as_json(self) -> dict[str, object]:
        """Return the Lease of interface.md."""
        record = self.record
        return {
            "id": record.id,
            "uuids": list(record.uuids),
            "indices": list(record.indices),
            "share": record.units / DEVICE_UNITS,
            "user": self.user,
            "kind": record.owner.kind,
            "kernel_id": record.owner.kernel_id,
            "notebook": record.owner.notebook,
            "command": record.owner.command,
            "pids": list(self.pids),
            "since": record.since or None,
            "state": self.state,
            "idle_since": record.owner.idle_since if self.state == "idle" else None,
            "because": list(record.because),
            "request": record.request.as_options(),
            "origin": record.origin,
            "caps": list(record.caps),
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Waiter:
    """A live ticket: ``stalled`` when its process has not looked for a while (stopped, say)."""

    record: Record
    user: str | None
    stalled: bool = False

    def as_json(self, position: int) -> dict[str, object]:
        """Return one row of the queue of interface.md."""
        return {
            "position": position,
            "user": self.user,
            "request": self.record.request.as_options(),
            "since": self.record.since or None,
            "notebook": self.record.owner.notebook,
            "command": self.record.owner.command,
            "stalled": self.stalled,
        }


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that holds or waits at one moment.

    ``unclaimed`` are UUIDs whose range is locked though no record claims them.
    """

    leases: tuple[Lease, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    unclaimed: tuple[str, ...] = ()

    def on(self, uuid: str | None) -> tuple[Lease, ...]:
        """Return the leases that claim this device."""
        return tuple(lease for lease in self.leases if uuid in lease.record.uuids)


def clean(text: str) -> str:
    """Return text that is safe on one line of a terminal: no control characters, not endless."""
    if text.isprintable() and len(text) <= _TEXT_LIMIT:
        return text
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _TEXT_LIMIT else printable[: _TEXT_LIMIT - 1] + "…"


def _text(value: object) -> str | None:
    return clean(value) if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(clean(item) for item in _items(value) if isinstance(item, str))


def _items(value: object) -> list[object]:
    return value[:_ITEMS_LIMIT] if isinstance(value, list) else []


def _time(value: object) -> str | None:
    """Return a moment in UTC; None for what is none, or one of an unknown time zone."""
    if not isinstance(value, str) or len(value) > _TIME_LIMIT:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            return None
        return moment.astimezone(timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None


def _integer(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 1 << 63 else None


def _integers(value: object) -> tuple[int, ...]:
    return tuple(number for number in map(_integer, _items(value)) if number is not None)


def _ticket(value: object) -> int | None:
    number = _integer(value)
    return number if number is not None and 0 <= number < QUEUE.length else None


def _units(value: object) -> int:
    number = _integer(value)
    return number if number is not None and 0 < number <= DEVICE_UNITS else DEVICE_UNITS


def _process(value: object) -> ProcessRef | None:
    if not isinstance(value, Mapping):
        return None
    pid = _integer(value.get("pid"))
    if pid is None or pid <= 0:
        return None
    return ProcessRef(pid, _integer(value.get("start")), _integer(value.get("namespace")))


def _processes(value: object) -> tuple[ProcessRef, ...]:
    return tuple(process for process in map(_process, _items(value)) if process is not None)


def _process_to_json(process: ProcessRef) -> dict[str, object]:
    return {"pid": process.pid, "start": process.start, "namespace": process.namespace}


def _request(value: object) -> Request:
    if not isinstance(value, Mapping):
        return Request()
    options = {
        name: _texts(v) if isinstance(v, list) else _text(v) or v for name, v in value.items()
    }
    try:
        return Request.parse(options)
    except RequestError:
        return Request()
