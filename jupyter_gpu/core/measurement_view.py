"""The view of ``%%gpu``: what a cell took, device by device. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.measurement import DeviceMeasurement, Measurement
from jupyter_gpu.core.measurement_chart import chart
from jupyter_gpu.core.measurement_words import (
    EnergyScale,
    added_words,
    energy_words,
    load_words,
    memory_words,
    seconds_words,
)
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.view import Column, Table, View

# NVML's utilisation is a mean over up to this time.
LAG_SECONDS = 1.0
_LITTLE = 0.0005
_BEFORE_AND_AFTER = 2
_NAMES_SHOWN = 6

_ON_DEVICE = (
    Column("Device"),
    Column("Peak"),
    Column("Added"),
    Column("Load"),
    Column("Energy"),
)
_BY_TORCH = (Column("Device"), Column("Peak"), Column("Added"), Column("Now"))
_ENDED = {
    "done": "The cell took {}",
    "failed": "The cell failed after {}",
    "interrupted": "The cell was interrupted after {}",
}


def measurement_view(measured: Measurement) -> View:
    """Return what a cell took as a view."""
    return View(
        title=_title(measured),
        machine=measured.machine,
        tables=tuple(_tables(measured)),
        lines=tuple(_lines(measured)),
        notes=tuple(_notes(measured)),
        drawing=chart(measured),
    )


def _title(measured: Measurement) -> str:
    words = _ENDED[measured.ended].format(seconds_words(measured.seconds))
    if measured.energy_joules is not None:
        scale = _scale(measured)
        total = sum(scale.rounded(one.energy_joules or 0.0) for one in measured.devices)
        energy = energy_words(total, estimated=_is_estimated(measured), scale=scale)
        return f"{words} and {energy} on {in_words(len(measured.devices), 'device')}"
    return words


def _scale(measured: Measurement) -> EnergyScale:
    known = (device.energy_joules for device in measured.devices)
    return EnergyScale.of([joules for joules in known if joules is not None])


def _is_estimated(measured: Measurement) -> bool:
    return any(device.energy_estimated for device in measured.devices)


def _tables(measured: Measurement) -> Iterator[Table]:
    if measured.devices:
        scale = _scale(measured)
        rows = tuple(_row(device, scale) for device in measured.devices)
        yield Table("What the cell took", _ON_DEVICE, rows, headed=True)
    rows = tuple(_torch_row(device) for device in measured.devices if device.torch is not None)
    if rows:
        yield Table("This kernel alone, by torch's allocator", _BY_TORCH, rows, headed=True)


def _row(device: DeviceMeasurement, scale: EnergyScale) -> tuple[str, ...]:
    physical = "unknown" if device.index is None else device.index
    return (
        f"cuda:{device.ordinal} = physical {physical}",
        _peak_words(device),
        added_words(device.memory_added_bytes),
        load_words(device),
        energy_words(device.energy_joules, estimated=device.energy_estimated, scale=scale),
    )


def _peak_words(device: DeviceMeasurement) -> str:
    peak, total = device.memory_peak_bytes, device.memory_total_bytes
    if peak is None or total is None:
        return memory_words(peak)
    return f"{in_gib(peak)} of {in_gib(total)} GiB"


def _torch_row(device: DeviceMeasurement) -> tuple[str, ...]:
    torch = device.torch
    assert torch is not None, "only such devices have a row"
    return (
        f"cuda:{device.ordinal}",
        memory_words(torch.peak_bytes),
        added_words(torch.added_bytes),
        memory_words(torch.after_bytes),
    )


def _lines(measured: Measurement) -> Iterator[str]:
    if not measured.devices and measured.problem is None:
        yield "No GPU is visible in this kernel, so only the time was measured."
    if measured.reads:
        yield "Memory, load and energy are the whole device's, whoever uses it."
        yield _sampling(measured)


def _sampling(measured: Measurement) -> str:
    share = measured.cpu_share
    if measured.reads <= _BEFORE_AND_AFTER:
        return "Read before and after the cell only: it was too short for more."
    words = f"Read {measured.reads} times"
    if share is None:
        return f"{words}."
    cost = "less than 0.1" if share < _LITTLE else f"{share * 100:.1f}"
    return f"{words}, which took {cost} % of a core."


def _names(devices: Sequence[DeviceMeasurement]) -> str:
    """Return ``"cuda:0, cuda:1"``, so many names at most as fit a line: it is not broken there."""
    names = ", ".join(f"cuda:{device.ordinal}" for device in devices[:_NAMES_SHOWN])
    more = len(devices) - _NAMES_SHOWN
    return f"{names} and {more} more" if more > 0 else names


def _notes(measured: Measurement) -> Iterator[str]:
    if measured.problem is not None:
        yield clean(measured.problem)
    if measured.source == "simulated" and measured.devices:
        yield "This machine is simulated: the numbers are those of its description."
    if _is_estimated(measured):
        yield "The energy is estimated: no energy counter tells it for just the cell's time."
    known = [one for one in measured.devices if one.utilization_mean_percent is not None]
    if known and measured.seconds < LAG_SECONDS and measured.source == "nvml":
        yield (
            "The driver's load is a mean over up to a second, so it says little of a cell as "
            "short as this."
        )
    if any(device.kind == "mig" for device in measured.devices):
        yield "A MIG device has no load and no energy of its own; the driver has them for its GPU."
    unseen = [one for one in measured.devices if one.memory_peak_bytes is None]
    if unseen and measured.problem is None:
        yield f"Nothing could be read of {_names(unseen)}."
