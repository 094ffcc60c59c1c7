"""What a monitor has seen, as plain data for plotting and for programs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.live import memory_here
from jupyter_gpu.core.readings import Reading

if TYPE_CHECKING:
    from jupyter_gpu.core.devices import Device, Process
    from jupyter_gpu.core.live import CellSpan, Moment, Past, Point
    from jupyter_gpu.core.overview import Overview

_NO_PANDAS = "Monitor.frame() needs pandas:  %pip install pandas  (Monitor.history does without)"


_COLUMNS = (
    "time",
    "cell",
    "ordinal",
    "index",
    "uuid",
    "memory_used_bytes",
    "memory_here_bytes",
    "utilization_percent",
    "power_watts",
    "temperature_celsius",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A device of a monitor, and where it stands; ``ordinal`` is None where not visible."""

    uuid: str
    index: int | None = None
    ordinal: int | None = None


def seen_in(overview: Overview, uuids: Sequence[str] | None) -> tuple[Seen, ...]:
    """Return the devices that a monitor shows, in its order.

    Parameters
    ----------
    overview
        The machine.
    uuids
        The devices that it was asked for, None for the visible ones.
    """
    visible = {row.uuid: row for row in overview.shown if row.uuid is not None}
    found = []
    for uuid in visible if uuids is None else uuids:
        row, device = visible.get(uuid), overview.inventory.find(uuid)
        index = device.index if device is not None else None if row is None else row.index
        found.append(Seen(uuid, index, None if row is None else row.ordinal))
    return tuple(found)


def in_utc(seconds: float) -> str:
    """Return a moment of the Unix epoch as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def rows_of(past: Past, devices: Sequence[Seen], since: float = 0.0) -> list[dict[str, Any]]:
    """Return a row for each device and point from then on, oldest first."""
    cells = _Cells(past.cells)
    found = [
        (point.at, number, _row(device, point, cells.at(point.at)))
        for number, device in enumerate(devices)
        for point in past.of(device.uuid)
        if point.at >= since
    ]
    found.sort(key=lambda one: one[:2])
    return [row for _, _, row in found]


def cells_of(past: Past, since: float = 0.0) -> list[dict[str, Any]]:
    """Return the cells that ran then and later, oldest first."""
    return [
        {
            "cell": span.number,
            "began": in_utc(span.began),
            "ended": None if span.ended is None else in_utc(span.ended),
        }
        for span in past.cells
        if span.ended is None or span.ended >= since
    ]


def answer_of(
    moment: Moment, devices: Sequence[Seen], since: float = 0.0
) -> dict[str, Any]:
    """Return one look as what programs read."""
    return {
        "schema": 1,
        "time": in_utc(moment.at.timestamp()),
        "running": moment.running,
        "problem": moment.problem or moment.overview.inventory.problem,
        "devices": [_device(device, moment) for device in devices],
        "cells": cells_of(moment.past, since),
    }


def frame_of(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401 - pandas' own
    """Return the rows as a pandas DataFrame, its times as pandas has them.

    Raises
    ------
    GPUError
        Where there is no pandas.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - only where it is asked for
    except ImportError:
        raise GPUError(_NO_PANDAS) from None
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    for name in ("cell", "ordinal", "index"):
        frame[name] = frame[name].astype("Int64")  # whole numbers, some of them missing
    frame["time"] = pd.to_datetime(frame["time"], utc=True, format="ISO8601")
    return frame


class _Cells:
    """Which cell ran at a moment."""

    def __init__(self, spans: Sequence[CellSpan]) -> None:
        self._spans = spans
        self._began = [span.began for span in spans]

    def at(self, seconds: float) -> int | None:
        """Return the number of the cell that ran, None where none ran or it has no number."""
        number = bisect_right(self._began, seconds) - 1
        if number < 0:
            return None
        span = self._spans[number]
        return span.number if span.ended is None or seconds <= span.ended else None


def _row(device: Seen, point: Point, cell: int | None) -> dict[str, Any]:
    return {
        "time": in_utc(point.at),
        "cell": cell,
        "ordinal": point.ordinal,
        "index": device.index,
        "uuid": device.uuid,
        "memory_used_bytes": point.memory_used_bytes,
        "memory_here_bytes": point.memory_here_bytes,
        "utilization_percent": point.utilization_percent,
        "power_watts": point.power_watts,
        "temperature_celsius": point.temperature_celsius,
    }


def _device(seen: Seen, moment: Moment) -> dict[str, Any]:
    """Return one device of a look: its reading, and what only the inventory has."""
    overview = moment.overview
    device = overview.inventory.find(seen.uuid)
    reading = moment.readings.get(seen.uuid) or _reading(device)
    problem = reading.problem or (None if device is None else device.problem)
    if problem is None and device is None:
        problem = "NVML no longer lists it"
    return {
        "ordinal": seen.ordinal,
        "index": seen.index,
        "uuid": seen.uuid,
        "name": None if device is None else device.name,
        "memory_total_bytes": None if device is None else device.memory_total_bytes,
        "memory_used_bytes": reading.memory_used_bytes,
        "memory_here_bytes": memory_here(reading, moment.own_pids, overview.known),
        "utilization_percent": reading.utilization_percent,
        "power_watts": reading.power_watts,
        "temperature_celsius": reading.temperature_celsius,
        "processes": [_process(one, overview) for one in reading.processes or ()],
        "problem": problem,
    }


def _process(process: Process, overview: Overview) -> dict[str, Any]:
    known = overview.known.get(process.pid)
    return {
        "pid": process.pid,
        "memory_bytes": process.memory_bytes,
        "user": None if known is None else known.user,
        "command": None if known is None else known.command,
    }


def _reading(device: Device | None) -> Reading:
    """Return what the inventory says of a device that was not read by itself."""
    if device is None:
        return Reading()
    return Reading(
        device.memory_used_bytes,
        device.utilization_percent,
        device.power_watts,
        temperature_celsius=device.temperature_celsius,
        processes=device.processes,
    )
