"""The view model: what a person is shown, before it is text or HTML, and words shared by views."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.overview import Leasing
from jupyter_gpu.core.quantities import in_gib

VALUE_LENGTH = 60
_LEAST_SPAN = 4
_VENDOR = re.compile(r"\b(NVIDIA|Tesla|GeForce|Quadro)\s+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; ``shrinks`` marks the one that gives way where lines get too long."""

    heading: str
    right: bool = False
    shrinks: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, as many as there are columns; the first cell names its row.

    ``headed`` is true where the columns need their headings in text too.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    headed: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """One page: the answer in a line, what machine it is about, then the particulars.

    ``notices`` come first of all, ``lines`` are facts, ``notes`` what one should know or do;
    ``checks`` are findings, each with what mends it.
    ``drawing`` is an SVG element with a label of its own, shown in HTML only: it says nothing that
    the rest does not say. ``code`` are lines to copy: no one of them is ever broken.
    """

    title: str
    machine: str = ""
    notices: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    drawing: str = ""
    checks: tuple[Check, ...] = ()
    code: tuple[str, ...] = ()


def machine_words(inventory: Inventory) -> str:
    """Return the driver and its CUDA version, and that a machine is simulated."""
    words = f"NVIDIA {clean(inventory.driver)}" if inventory.driver else ""
    if inventory.cuda:
        words += f", CUDA {clean(inventory.cuda)}"
    if inventory.source == "simulated":
        return f"simulated machine, {words}" if words else "simulated machine"
    return words


def model_words(device: Device) -> str:
    """Return a model's name without the vendor's and the brand's."""
    name = clean(device.name)
    return _VENDOR.sub("", name) or name


def memory_words(device: Device) -> str:
    """Return ``"12.1 of 140.4 GiB"``; what is unknown is ``"–"``."""
    if device.memory_total_bytes is None:
        return "–"
    return f"{in_gib(device.memory_used_bytes)} of {in_gib(device.memory_total_bytes)} GiB"


def load_words(device: Device) -> str:
    """Return the utilisation, ``"43 %"``, or ``"–"`` where it is unknown."""
    return "–" if device.utilization_percent is None else f"{device.utilization_percent} %"


def value_words(value: str | None) -> str:
    """Return a variable's value in quotes, shortened and safe to print, or ``"not set"``."""
    if value is None:
        return "not set"
    shown = clean(value)
    return f'"{shown if len(shown) <= VALUE_LENGTH else shown[: VALUE_LENGTH - 1] + "…"}"'


def listed(numbers: Iterable[int]) -> str:
    """Return indices as ``"0, 1"``."""
    return ", ".join(map(str, numbers))


def spans(numbers: Iterable[int]) -> str:
    """Return indices in their order, four and more in a row as ``"0–7"``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}–{run[-1]}" if len(run) >= _LEAST_SPAN else listed(run) for run in runs
    )


def machine_notes(inventory: Inventory, leasing: Leasing) -> tuple[str, ...]:
    """Return what stands against the machine as a whole, its GPUs, and its leases."""
    notes = [] if inventory.problem is None else [clean(inventory.problem)]
    for device in inventory.devices:
        if device.problem is not None and not device.mig_mode:
            problem = clean(device.problem)
            # The driver's problems name the GPU themselves, a description's may not.
            named = problem.startswith(f"GPU {device.index} ")
            notes.append(problem if named else f"GPU {device.index}: {problem}")
    if leasing.problem is not None:
        notes.append(leasing.problem)
    if leasing.warning is not None and inventory.devices:
        notes.append(leasing.warning)
    return tuple(dict.fromkeys(notes))
