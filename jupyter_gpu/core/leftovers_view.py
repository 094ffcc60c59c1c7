"""The views and answers of ``release``: what would be ended, and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.holds import device_name
from jupyter_gpu.core.leftovers import Left, Leftovers, ProcessFacts
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_gib
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.standing import FREE, standing, standing_words
from jupyter_gpu.core.view import Column, Table, View, listed

SCHEMA = 1
Signal = Literal["TERM", "KILL"]

_COLUMNS = (
    Column("Pid", right=True),
    Column("User"),
    Column("Command", shrinks=True),
    Column("Since"),
    Column("GPU"),
    Column("Memory", right=True),
    Column("Lease"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is gone: after which signal, None where it had ended by itself before."""

    process: ProcessFacts
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a release: who is gone, who is left and why, and the devices it is about.

    ``overview`` is the machine as it is afterwards.
    """

    ended: tuple[Ended, ...]
    left: tuple[Left, ...]
    overview: Overview
    devices: tuple[Device, ...] = ()


def question(leftovers: Leftovers) -> str:
    """Return the question that is asked before anything is ended."""
    count = len(leftovers.may_end)
    return f"End {'this process' if count == 1 else f'these {count} processes'}? [y/N] "


def found_view(leftovers: Leftovers, now: datetime) -> View:
    """Return what would be ended, and what would not; ``now`` in local time."""
    if not leftovers.may_end:
        title = "Nothing can be released" if leftovers.left else "Nothing is left behind"
        return View(title, lines=_left_lines(leftovers.left))
    title = f"{_count(leftovers.may_end)} left behind on {_gpus(leftovers.may_end)}"
    return View(title, tables=(_table(leftovers.may_end, now),), lines=_left_lines(leftovers.left))


def released_view(released: Released, now: datetime) -> View:
    """Return who is gone, which devices are free, and what is still held and why."""
    gone = tuple(one.process for one in released.ended)
    free, held = [], []
    for device in released.devices:
        if standing(device, released.overview).words == FREE:
            free.append(device_name(device))
        else:
            held.append(f"{device_name(device)}: {standing_words(device, released.overview, now)}")
    parts = [f"{_count(gone)} ended" if gone else "No process has ended"]
    if free:
        parts.append(f"{', '.join(free)} {'is' if len(free) == 1 else 'are'} free")
    return View(
        "; ".join(parts),
        lines=(*_how(released.ended), *held, *_left_lines(released.left)),
    )


def _how(ended: Iterable[Ended]) -> tuple[str, ...]:
    """Return a line for those that took more than a request, or none."""
    found = tuple(ended)
    killed = listed(_pids(one for one in found if one.signal == "KILL"))
    before = listed(_pids(one for one in found if one.signal is None))
    return (
        *((f"Killed, because they did not end when asked: {killed}",) if killed else ()),
        *((f"Had ended by themselves: {before}",) if before else ()),
    )


def _pids(ended: Iterable[Ended]) -> tuple[int, ...]:
    return tuple(one.process.pid for one in ended if one.process.pid is not None)


def _table(processes: tuple[ProcessFacts, ...], now: datetime) -> Table:
    rows = tuple(
        (
            "–" if one.pid is None else str(one.pid),
            one.user or "–",
            one.command or "–",
            "–" if one.since is None else since_in_words(one.since, now),
            listed(one.indices) or "–",
            "–" if one.memory_bytes is None else f"{in_gib(one.memory_bytes)} GiB",
            "" if one.lease is None else one.lease.record.id,
        )
        for one in processes
    )
    return Table("Processes", _COLUMNS, rows, headed=True)


def _left_lines(left: tuple[Left, ...]) -> tuple[str, ...]:
    lines = []
    for one in left:
        where = f"GPU {listed(one.process.indices)}: " if one.process.indices else ""
        lines.append(f"{where}not ended: {one.process.words}: {one.why}")
    return tuple(lines)


def _count(processes: tuple[ProcessFacts, ...]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


def _gpus(processes: Iterable[ProcessFacts]) -> str:
    indices = sorted({index for one in processes for index in one.indices})
    return f"GPU {listed(indices)}" if indices else "no GPU that is known"


def release_answer(ended: Iterable[Ended], left: Iterable[Left]) -> dict[str, object]:
    """Return the answer of ``release`` for programs."""
    return {
        "schema": SCHEMA,
        "released": [{**_row(one.process), "signal": one.signal} for one in ended],
        "left": [
            {
                "pid": one.process.pid,
                "user": one.process.user,
                "command": one.process.command,
                "why": one.why,
                "indices": list(one.process.indices),
            }
            for one in left
        ],
    }


def _row(process: ProcessFacts) -> Mapping[str, object]:
    lease = process.lease
    return {
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "lease": None if lease is None else lease.record.id,
        "indices": list(process.indices),
    }
