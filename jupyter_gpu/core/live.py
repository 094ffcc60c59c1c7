"""What the monitor knows: one moment of the machine, and the last minutes of its devices. Pure.

The feed fills it, the monitor's views are made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.readings import Reading


@dataclass(frozen=True, slots=True)
class Point:
    """One device at one moment of the past; ``at`` in seconds of the Unix epoch.

    ``memory_here_bytes`` is this kernel's own part of what is used; ``ordinal`` is where the device
    stood then, None where it was not visible.
    """

    at: float
    memory_used_bytes: int | None = None
    memory_here_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class CellSpan:
    """A cell while which the devices were watched; ``ended`` is None while it runs.

    ``number`` is the one in its prompt, None where it has none; times as in ``Point``.
    """

    number: int | None
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The last minutes: points by UUID, oldest first, and the cells that ran."""

    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    cells: tuple[CellSpan, ...] = ()

    def of(self, uuid: str | None) -> Sequence[Point]:
        """Return a device's points, none for one that was never read."""
        return self.points.get(uuid or "", ())


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that a monitor shows at one moment.

    ``overview`` may be some seconds older than ``readings``, which are those of the watched devices
    by UUID, the visible ones unless others are named; ``at`` is the present in the reader's time
    zone; ``running`` tells whether a cell runs.
    ``problem`` is a sentence about what could not be read at all. ``gone`` are devices that were
    visible while they were watched and, since one of them was lost, are not any more; they are
    read on.
    """

    at: datetime
    overview: Overview
    readings: Mapping[str, Reading] = field(default_factory=dict)
    past: Past = field(default_factory=Past)
    running: bool = False
    problem: str | None = None
    gone: tuple[InForce, ...] = ()

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes that count as this kernel: itself, and what else keeps its lease."""
        process, lease = self.overview.process, self.overview.lease
        own = () if process is None else (process.pid,)
        return frozenset((*own, *(() if lease is None else lease.pids)))


def memory_here(reading: Reading, own_pids: Iterable[int], known: Iterable[int]) -> int | None:
    """Return the bytes that this kernel has on a device; None where nobody can tell.

    ``known`` are the pids that mean a process here: in a container another one may bear ours.
    """
    if reading.processes is None:
        return None
    mine = frozenset(own_pids)
    found = [process for process in reading.processes if process.pid in mine]
    certain = frozenset(known)
    if any(one.memory_bytes is None or one.pid not in certain for one in found):
        return None
    return sum(one.memory_bytes or 0 for one in found)
