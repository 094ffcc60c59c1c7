"""Keeps the last minutes of devices within bounds, however long they are watched. Pure.

What is old is kept more coarsely: its points are merged by time. Nobody who reads waits or copies:
a list only grows until it is replaced, so a reader that knows its length has it for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import overload

from jupyter_gpu.core.live import CellSpan, Past, Point

MOST_POINTS = 1800
EXACT_POINTS = 600  # the newest, which are never merged
MOST_CELLS = 1000
MOST_DEVICES = 256
_MERGED_POINTS = MOST_POINTS - 2 * EXACT_POINTS
_FIRST_SPAN_SECONDS = 0.125


class Points(Sequence[Point]):
    """The first points of a list that only grows; costs nothing to make."""

    __slots__ = ("_count", "_points")

    def __init__(self, points: Sequence[Point]) -> None:
        self._points, self._count = points, len(points)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Point]:
        return islice(self._points, self._count)

    @overload
    def __getitem__(self, index: int) -> Point: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Point]: ...

    def __getitem__(self, index: int | slice) -> Point | Sequence[Point]:
        if isinstance(index, slice):
            return tuple(self._points[at] for at in range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._points[index % self._count]


class Keeper:
    """Keeps points by UUID, and the cells; oldest first.

    One thread at a time may change it; what ``past`` gave may be read by any.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._cells: tuple[CellSpan, ...] = ()

    def past(self) -> Past:
        """Return what is kept now; later changes do not show in it."""
        points = {uuid: Points(series.points) for uuid, series in self._series.items()}
        return Past(points, self._cells)

    def add(self, points: Mapping[str, Point]) -> None:
        """Keep one more point of each of some devices."""
        for uuid, point in points.items():
            if uuid not in self._series and len(self._series) >= MOST_DEVICES:
                oldest = min(self._series, key=lambda one: self._series[one].points[-1].at)
                del self._series[oldest]
            self._series.setdefault(uuid, _Series()).add(point)

    def cell_begins(self, number: int | None, at: float) -> None:
        """Note that a cell begins; another one that has not ended ends here."""
        if self._cells[-1:] == (CellSpan(number, at),):
            return  # it is watched again
        self.cell_ends(at)
        self._cells = (*self._cells[1 - MOST_CELLS :], CellSpan(number, at))

    def cell_ends(self, at: float) -> None:
        """Note that the cell that runs has ended; without one nothing changes."""
        if self._cells and self._cells[-1].ended is None:
            self._cells = (*self._cells[:-1], replace(self._cells[-1], ended=at))

    def shift(self, seconds: float) -> None:
        """Move everything in time, as the clock has been moved."""
        for series in self._series.values():
            series.points = [replace(point, at=point.at + seconds) for point in series.points]
        self._cells = tuple(
            replace(
                cell,
                began=cell.began + seconds,
                ended=None if cell.ended is None else cell.ended + seconds,
            )
            for cell in self._cells
        )


class _Series:
    """The points of one device, and how many readings each of them stands for."""

    __slots__ = ("_span_seconds", "_weights", "points")

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._weights: list[int] = []
        self._span_seconds = _FIRST_SPAN_SECONDS

    def add(self, point: Point) -> None:
        if len(self.points) >= MOST_POINTS:
            self._merge()
        if self.points and point.at < self.points[-1].at:  # of two threads the later one was first
            point = replace(point, at=self.points[-1].at)
        self.points.append(point)
        self._weights.append(1)

    def _merge(self) -> None:
        """Merge what is not among the newest, in spans that are as short as possible."""
        while True:
            points, weights = self._merged()
            if len(points) <= _MERGED_POINTS:
                break
            self._span_seconds *= 2
        # New lists: readers go on with the old ones.
        self.points = points + self.points[-EXACT_POINTS:]
        self._weights = weights + self._weights[-EXACT_POINTS:]

    def _merged(self) -> tuple[list[Point], list[int]]:
        points: list[Point] = []
        weights: list[int] = []
        last: float | None = None
        for point, weight in zip(
            self.points[:-EXACT_POINTS], self._weights[:-EXACT_POINTS], strict=True
        ):
            span = point.at // self._span_seconds
            if points and span == last:
                points[-1] = _one_of(points[-1], weights[-1], point, weight)
                weights[-1] += weight
            else:
                points.append(point)
                weights.append(weight)
            last = span
        return points, weights


def _one_of(one: Point, weight: int, other: Point, other_weight: int) -> Point:
    """Return one point for two: the highest memory and temperature, the mean of load and power."""

    def mean(first: float | None, second: float | None) -> float | None:
        if first is None or second is None:
            return second if first is None else first
        return (first * weight + second * other_weight) / (weight + other_weight)

    return Point(
        one.at,
        _highest(one.memory_used_bytes, other.memory_used_bytes),
        _highest(one.memory_here_bytes, other.memory_here_bytes),
        mean(one.utilization_percent, other.utilization_percent),
        mean(one.power_watts, other.power_watts),
        _highest(one.temperature_celsius, other.temperature_celsius),
        other.ordinal,
    )


def _highest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
