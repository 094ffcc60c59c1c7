"""What a picture of the timeline shows: lines of devices, spans of cells, and their labels. Pure.

It is made of ``Monitor.history`` and ``Monitor.cells``: plain data, which a person may have kept.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jupyter_gpu.core.quantities import in_words

MOST_ROWS = 3  # of labels
_GIB = 2**30
_IDLE_SECONDS = 6.0  # an idle kernel is looked at every 5 s: no gap yet
_NEIGHBOURS = 5
_CHARACTER_INCHES = 0.068  # of a label of 7.5 points


@dataclass(frozen=True, slots=True)
class Line:
    """One device's values over time, in seconds of the Unix epoch; not a number is unknown.

    It is what curves are drawn of, where a hole is just that.
    """

    title: str
    times: tuple[float, ...]
    used_gib: tuple[float, ...]
    here_gib: tuple[float, ...]
    load_percent: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A cell's time within the picture."""

    label: str
    began: float
    ended: float


def _seconds(given: object) -> float:
    """Return the seconds of a time in ISO 8601; ``Z`` is new to Python 3.11."""
    return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", str(given))).timestamp()


def _number(value: object, unit: float = 1.0) -> float:
    """Return a value in its unit; what is unknown is left out of the line."""
    return value / unit if isinstance(value, (int, float)) else math.nan


def lines_of(rows: Sequence[Mapping[str, object]]) -> tuple[Line, ...]:
    """Return one line a device: the visible ones first, in the order in which they are visible."""
    devices: dict[object, list[tuple[float, Mapping[str, object]]]] = {}
    for row in rows:
        devices.setdefault(row.get("uuid"), []).append((_seconds(row["time"]), row))
    for points in devices.values():
        points.sort(key=lambda point: point[0])
    latest = sorted(devices.values(), key=lambda points: _place(points[-1][1]))
    return tuple(map(_line, latest))


def _place(row: Mapping[str, object]) -> tuple[float, float, str]:
    keys = [_number(row.get(name)) for name in ("ordinal", "index")]
    ordinal, index = (math.inf if math.isnan(key) else key for key in keys)
    return ordinal, index, str(row.get("uuid"))


def _line(points: Sequence[tuple[float, Mapping[str, object]]]) -> Line:
    """Make the line of one device, with a hole where nobody looked."""
    last = points[-1][1]
    ordinal, index = last.get("ordinal"), last.get("index")
    physical = "physical –" if index is None else f"physical {index}"
    title = f"{physical} (not visible)" if ordinal is None else f"cuda:{ordinal} = {physical}"
    if str(last.get("uuid")).startswith("MIG-"):
        title += f" {last['uuid']}"
    holes = _holes([at for at, _ in points])
    times: list[float] = []
    values: list[tuple[float, float, float]] = []
    for position, (at, row) in enumerate(points):
        if position in holes:
            times.append((times[-1] + at) / 2)
            values.append((math.nan, math.nan, math.nan))
        times.append(at)
        used, here = (_number(row.get(f"memory_{of}_bytes"), _GIB) for of in ("used", "here"))
        values.append((used, here, _number(row.get("utilization_percent"))))
    used_gib, here_gib, load = zip(*values, strict=True)
    return Line(title, tuple(times), used_gib, here_gib, load)


def _holes(times: Sequence[float]) -> frozenset[int]:
    """Return the positions before which nobody looked for much longer than around them.

    Old points are further apart than new ones, as they are merged: so it is the neighbourhood
    that says what is usual.
    """
    steps = [after - before for before, after in itertools.pairwise(times)]
    found = set()
    for position, step in enumerate(steps):
        around = steps[max(0, position - _NEIGHBOURS) : position + _NEIGHBOURS + 1]
        if step > max(_IDLE_SECONDS, 3 * statistics.median(around)):
            found.add(position + 1)
    return frozenset(found)


def spans_of(cells: Sequence[Mapping[str, object]], began: float, ended: float) -> tuple[Span, ...]:
    """Return the cells that ran between the first point and the last, cut to that time."""
    found = []
    for cell in cells:
        start = _seconds(cell["began"])
        end = ended if cell.get("ended") is None else _seconds(cell["ended"])
        if start <= ended and end >= began:
            number = cell.get("cell")
            label = "[ ]" if number is None else f"[{number}]"
            found.append(Span(label, max(start, began), min(end, ended)))
    return tuple(sorted(found, key=lambda span: span.began))


def label_rows(spans: Sequence[Span], seconds_per_inch: float) -> Mapping[int, int]:
    """Return the row of labels for each cell whose label has room, the longest cells first."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(MOST_ROWS)]
    rows = {}
    by_length = sorted(range(len(spans)), key=lambda at: spans[at].began - spans[at].ended)
    for position in by_length:
        span = spans[position]
        half = (len(span.label) + 1) * _CHARACTER_INCHES * seconds_per_inch / 2
        middle = (span.began + span.ended) / 2
        for row, others in enumerate(taken):
            if all(middle + half <= left or middle - half >= right for left, right in others):
                others.append((middle - half, middle + half))
                rows[position] = row
                break
    return rows


def highest(values: Iterable[float]) -> float | None:
    """Return the highest known value, None where none is known."""
    known = [value for value in values if not math.isnan(value)]
    return max(known) if known else None


def numbers(line: Line) -> str:
    """Return a panel's numbers in words, as nobody reads them off a curve."""
    used, here = highest(line.used_gib), highest(line.here_gib)
    loads = [load for load in line.load_percent if not math.isnan(load)]
    most = "memory unknown" if used is None else f"at most {used:.1f} GiB"
    mine = "this kernel's part unknown" if here is None else f"{here:.1f} of this kernel"
    load = f"{statistics.fmean(loads):.0f} % on average" if loads else "unknown"
    return f"{most}, {mine}; load {load}"


def spoken(lines: Sequence[Line], spans: Sequence[Span]) -> str:
    """Return the picture in words, for those who do not see it."""
    devices = "; ".join(f"{line.title}: {numbers(line)}" for line in lines)
    ran = f"{in_words(len(spans), 'cell')} ran meanwhile" if spans else "no cell ran meanwhile"
    return f"GPU timeline; {ran}. {devices}."
