"""The monitor's curves: the last minutes of one device as two small SVG drawings. Pure.

Time is cut into slots of five seconds that begin at whole multiples of it, so that a curve moves
slot by slot and does not tremble. Coordinates are whole numbers and the commands relative, because
a curve goes over the wire again and again. A slot without any reading in a long silence is a gap,
and so is one whose readings said nothing; a curve that is much too restless for its bytes is drawn
with longer slots.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jupyter_gpu.core.live import Point
from jupyter_gpu.core.quantities import in_gib

SPAN_SECONDS = 300
SLOT_SECONDS = 5
SLOTS = SPAN_SECONDS // SLOT_SECONDS
SPAN_WORDS = f"{SPAN_SECONDS // 60} minutes"
HEIGHT = 24
PATH_BYTES = 260
_MINUTE = 60
_BRIDGED = 2  # readings so many slots apart are still one line, whatever the interval
_HALVINGS = 4  # enough for a curve of nothing but gaps

Run = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Slots:
    """A device's last minutes in slots, numbered from 0, the oldest, to ``SLOTS - 1``, the present.

    ``load`` is the mean utilisation in percent and ``memory`` the most bytes in use; None where
    there were readings that did not say it. A slot without any reading is missing.
    ``load_now``, ``load_highest`` and the like are of single readings; ``seconds`` is how far back
    the first of them is.
    """

    load: Mapping[int, float | None]
    memory: Mapping[int, float | None]
    load_now: float | None = None
    load_highest: float | None = None
    memory_now: int | None = None
    memory_highest: int | None = None
    seconds: float = 0


def in_slots(points: Sequence[Point], at: float) -> Slots:
    """Return the last minutes before ``at``, in seconds of the Unix epoch."""
    first = int(at // SLOT_SECONDS) - SLOTS + 1
    loads: dict[int, list[float]] = {}
    used: dict[int, list[int]] = {}
    recent: list[Point] = []
    before: int | None = None
    here: list[float] = []
    there: list[int] = []
    for point in reversed(points):
        slot = int(point.at // SLOT_SECONDS) - first
        if slot < 0:
            break
        if slot >= SLOTS:
            continue
        recent.append(point)
        if slot != before:
            before, here, there = slot, loads.setdefault(slot, []), used.setdefault(slot, [])
        load, memory = point.utilization_percent, point.memory_used_bytes
        if load is not None and math.isfinite(load):
            here.append(load)
        if memory is not None:
            there.append(memory)
    if not recent:
        return Slots({}, {})
    return Slots(
        {slot: sum(some) / len(some) if some else None for slot, some in loads.items()},
        {slot: max(some, default=None) for slot, some in used.items()},
        known(recent[0].utilization_percent),
        max((max(some) for some in loads.values() if some), default=None),
        recent[0].memory_used_bytes,
        max((max(some) for some in used.values() if some), default=None),
        max(at - recent[-1].at, 0),
    )


def known(value: float | None) -> float | None:
    """Return a number, None for what is none."""
    return value if value is not None and math.isfinite(value) else None


def load_curve(slots: Slots) -> str:
    """Return the utilisation as a line from 0 to 100 percent: one ``svg`` element."""
    if slots.load_now is None and slots.load_highest is None:
        return _svg("Load: not known", "")
    label = (
        f"Load: now {_percent(slots.load_now)}, highest {_percent(slots.load_highest)}, "
        f"{over_words(slots.seconds)}"
    )
    return _svg(label, line(slots.load, 100))


def memory_curve(slots: Slots, total_bytes: int | None) -> str:
    """Return the memory in use as an area from 0 to all there is: one ``svg`` element."""
    if slots.memory_highest is None:
        return _svg("Memory: not known", "")
    label = (
        f"Memory: now {in_gib(slots.memory_now)}, highest {in_gib(slots.memory_highest)} GiB, "
        f"{over_words(slots.seconds)}"
    )
    return _svg(label, area(slots.memory, total_bytes or slots.memory_highest), "ga")


def over_words(seconds: float) -> str:
    """Return how long a curve is: ``"over 40 s"``, ``"over 5 min"``."""
    if seconds < _MINUTE:
        return f"over {max(round(seconds), 1)} s"
    return f"over {min(round(seconds / _MINUTE), SPAN_SECONDS // _MINUTE)} min"


def line(values: Mapping[int, float | None], highest: float) -> str:
    """Return the path of a line; ``highest`` is the value at the top."""
    return _fitting(values, highest, lambda run: f"M{run[0][0]} {run[0][1]}{_along(run)}")


def area(values: Mapping[int, float | None], highest: float) -> str:
    """Return the path of what is below a line."""
    return _fitting(
        values, highest, lambda run: f"M{run[0][0]} {HEIGHT}V{run[0][1]}{_along(run)}V{HEIGHT}z"
    )


def _fitting(
    values: Mapping[int, float | None], highest: float, drawn: Callable[[Run], str]
) -> str:
    path = ""
    for halving in range(_HALVINGS):
        path = "".join(drawn(run) for run in _runs(values, highest, 1 << halving))
        if len(path) <= PATH_BYTES:
            break
    return path


def _runs(values: Mapping[int, float | None], highest: float, width: int) -> list[Run]:
    """Return the pieces of a curve, each without a gap, as coordinates."""
    wide: dict[int, float | None] = {}
    for slot in sorted(values):
        value, there = values[slot], wide.get(slot // width)
        wide[slot // width] = value if there is None else max(there, value or 0)
    apart = sorted(b - a for a, b in itertools.pairwise(wide))
    bridged = max(_BRIDGED, 2 * apart[len(apart) // 2]) if apart else _BRIDGED
    runs: list[Run] = []
    before: int | None = None
    for slot, value in wide.items():
        if value is None:
            before = None
            continue
        place = (slot * width, _height(value, highest))
        if before is None or slot - before > bridged:
            runs.append([])
        runs[-1].append(place)
        before = slot
    return runs


def _height(value: float, highest: float) -> int:
    part = value / highest if highest > 0 else 0.0
    return HEIGHT - round(HEIGHT * min(max(part, 0.0), 1.0))


def _along(run: Run) -> str:
    """Return the commands from the first place of a run to its last; a dot for a single place."""
    commands: list[str] = []
    flat, lined = 0, False
    for (x, y), (to_x, to_y) in itertools.pairwise(run):
        if to_y == y:
            flat += to_x - x
            continue
        if flat:
            commands.append(f"h{flat}")
            flat, lined = 0, False
        sign = "" if to_y < y else " "
        commands.append(f"{' ' if lined else 'l'}{to_x - x}{sign}{to_y - y}")
        lined = True
    if flat or len(run) == 1:
        commands.append(f"h{flat}")
    return "".join(commands)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _svg(label: str, path: str, kind: str = "") -> str:
    named = f" class='{kind}'" if kind else ""
    drawn = f"<path{named} d='{path}'/>" if path else ""
    # The label is made of numbers and our own words; escaping it costs nothing.
    return (
        f"<svg viewBox='0 0 {SLOTS - 1} {HEIGHT}' preserveAspectRatio='none' role='img' "
        f"aria-label='{html.escape(label, quote=True)}'>{drawn}</svg>"
    )
