"""What a cell took: memory, utilisation and energy of each device, and time. Pure.

The readings are made elsewhere; here they become peaks, means and joules, and a short series that
can be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from jupyter_gpu.core.devices import Device, Inventory, Kind, Source
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.readings import Reading

Ending = Literal["done", "failed", "interrupted"]
_Number = TypeVar("_Number", int, float)
# Drivers move the energy counter every 20 to 100 ms: in a shorter cell it stands still or jumps.
COUNTED_FROM_SECONDS = 0.2
_EXACT_SHARE = 0.98  # of the time between the counter's two readings


@dataclass(frozen=True, slots=True)
class Sample:
    """All devices at one moment, ``seconds`` after the first reading began.

    ``span_seconds`` is the time for which utilisation and power stand: since they were read before.
    It is 0 where they were not read, and in the first sample, which is from before the cell.
    """

    seconds: float
    span_seconds: float
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What was read while a cell ran.

    ``energy_before`` and ``energy_after`` are the devices' counters in joules, read
    ``energy_seconds`` apart, None where that is not known. ``cell_at_seconds`` is when the cell
    began, on the samples' clock. ``reads`` counts the samples before any were merged;
    ``cpu_seconds`` is what taking them cost while the cell ran.
    """

    samples: tuple[Sample, ...] = ()
    energy_before: tuple[float | None, ...] = ()
    energy_after: tuple[float | None, ...] = ()
    reads: int = 0
    cpu_seconds: float | None = None
    problem: str | None = None
    energy_seconds: float | None = None
    cell_at_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AllocatorMemory:
    """What a framework's allocator says of one device: this kernel's tensors and nothing else."""

    before_bytes: int
    peak_bytes: int
    after_bytes: int

    @property
    def added_bytes(self) -> int:
        """What the cell has left allocated, negative where it freed more."""
        return self.after_bytes - self.before_bytes

    def as_json(self) -> dict[str, object]:
        """Return the numbers as JSON."""
        return {
            "allocated_before_bytes": self.before_bytes,
            "allocated_peak_bytes": self.peak_bytes,
            "allocated_after_bytes": self.after_bytes,
            "allocated_added_bytes": self.added_bytes,
        }


@dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """One visible device during a cell. ``torch`` is None where torch has said nothing.

    Memory, utilisation and energy are the whole device's, whoever uses it.
    """

    ordinal: int
    index: int | None
    uuid: str | None
    name: str | None = None
    kind: Kind = "gpu"
    memory_total_bytes: int | None = None
    memory_before_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_after_bytes: int | None = None
    utilization_mean_percent: float | None = None
    utilization_peak_percent: float | None = None
    energy_joules: float | None = None
    energy_estimated: bool = False
    torch: AllocatorMemory | None = None

    @property
    def memory_added_bytes(self) -> int | None:
        """What is used on the device after the cell and was not before it."""
        if self.memory_before_bytes is None or self.memory_after_bytes is None:
            return None
        return self.memory_after_bytes - self.memory_before_bytes

    def as_json(self) -> dict[str, object]:
        """Return the device as JSON."""
        return {
            "ordinal": self.ordinal,
            "index": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "kind": self.kind,
            "memory_total_bytes": self.memory_total_bytes,
            "memory_before_bytes": self.memory_before_bytes,
            "memory_peak_bytes": self.memory_peak_bytes,
            "memory_after_bytes": self.memory_after_bytes,
            "memory_added_bytes": self.memory_added_bytes,
            "utilization_mean_percent": self.utilization_mean_percent,
            "utilization_peak_percent": self.utilization_peak_percent,
            "energy_joules": self.energy_joules,
            "energy_estimated": self.energy_estimated,
            "torch": None if self.torch is None else self.torch.as_json(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Measurement:
    """What a cell took. Shows itself under a cell; ``as_json`` gives the numbers.

    ``samples`` have one reading for each of ``devices``, in the same order.
    """

    seconds: float
    ended: Ending
    source: Source
    machine: str = ""
    problem: str | None = None
    devices: tuple[DeviceMeasurement, ...] = ()
    samples: tuple[Sample, ...] = ()
    reads: int = 0
    cpu_seconds: float | None = None

    @property
    def energy_joules(self) -> float | None:
        """The energy of all its devices, or None where one is unknown."""
        known = [one.energy_joules for one in self.devices if one.energy_joules is not None]
        return sum(known) if known and len(known) == len(self.devices) else None

    @property
    def cpu_share(self) -> float | None:
        """The part of one core that sampling took while the cell ran."""
        if self.cpu_seconds is None or self.seconds <= 0:
            return None
        return self.cpu_seconds / self.seconds

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON; what is unknown is None."""
        return {
            "schema": 1,
            "seconds": self.seconds,
            "ended": self.ended,
            "machine": {"source": self.source, "problem": self.problem},
            "energy_joules": self.energy_joules,
            "devices": [device.as_json() for device in self.devices],
            "sampling": {
                "reads": self.reads,
                "cpu_seconds": self.cpu_seconds,
                "cpu_share": self.cpu_share,
            },
            "samples": [_sample_json(sample) for sample in self.samples],
        }

    def __repr__(self) -> str:
        from jupyter_gpu.core.measurement_view import measurement_view  # noqa: PLC0415 - it shows us
        from jupyter_gpu.core.render_text import as_text  # noqa: PLC0415 - as above

        return as_text(measurement_view(self))

    def _repr_html_(self) -> str:
        """Return it as HTML; IPython calls this to display the object."""
        from jupyter_gpu.core.measurement_view import measurement_view  # noqa: PLC0415 - it shows us
        from jupyter_gpu.core.render_html import as_html  # noqa: PLC0415 - as above

        return as_html(measurement_view(self))


@dataclass(frozen=True, slots=True)
class Cell:
    """How the measured cell ran, and what is visible after it.

    ``watched`` are the UUIDs whose readings the recording has, in its order; ``torch`` maps visible
    ordinals.
    """

    seconds: float
    ended: Ending
    rows: tuple[InForce, ...]
    watched: tuple[str, ...]
    torch: Mapping[int, AllocatorMemory]


def measurement(
    recording: Recording, cell: Cell, inventory: Inventory, *, machine: str = ""
) -> Measurement:
    """Return what a cell took.

    Parameters
    ----------
    recording
        What was read while it ran.
    cell
        How it ran, and the devices to tell about.
    inventory
        The machine after it.
    machine
        The machine in words, for the heading.
    """
    places = {uuid: place for place, uuid in enumerate(cell.watched)}
    devices, columns = [], []
    for row in cell.rows:
        place = None if row.uuid is None else places.get(row.uuid)
        columns.append(place)
        device = None if row.uuid is None else inventory.find(row.uuid)
        devices.append(_device(row, device, place, recording, cell))
    return Measurement(
        seconds=cell.seconds,
        ended=cell.ended,
        source=inventory.source,
        machine=machine,
        problem=inventory.problem or recording.problem,
        devices=tuple(devices),
        samples=_of_devices(recording.samples, columns),
        reads=recording.reads,
        cpu_seconds=recording.cpu_seconds,
    )


def merged(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return half as many samples: peaks stay peaks, means stay means.

    The first and the last stay as they are: they are the memory before and after.
    """
    first, *middle, last = samples
    pairs = [_merge(*middle[at : at + 2]) for at in range(0, len(middle), 2)]
    return (first, *pairs, last)


def _merge(one: Sample, other: Sample | None = None) -> Sample:
    if other is None:
        return one
    return Sample(
        other.seconds,
        one.span_seconds + other.span_seconds,
        tuple(
            Reading(
                _highest((a.memory_used_bytes, b.memory_used_bytes)),
                _mean((a.utilization_percent, b.utilization_percent), (one, other)),
                _mean((a.power_watts, b.power_watts), (one, other)),
                _highest((a.highest_percent, b.highest_percent)),
            )
            for a, b in zip(one.readings, other.readings, strict=True)
        ),
    )


def _mean(values: Sequence[float | None], samples: Sequence[Sample]) -> float | None:
    """Return the mean over time, of the time that is known."""
    known = [
        (value, sample.span_seconds)
        for value, sample in zip(values, samples, strict=True)
        if value is not None and sample.span_seconds > 0
    ]
    total = sum(span for _, span in known)
    return sum(value * span for value, span in known) / total if known else None


def _highest(values: Sequence[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _device(
    row: InForce, device: Device | None, place: int | None, recording: Recording, cell: Cell
) -> DeviceMeasurement:
    samples = recording.samples if place is not None else ()
    readings = [sample.readings[place or 0] for sample in samples]
    during = [sample for sample in samples if sample.span_seconds > 0]
    loads = [sample.readings[place or 0] for sample in during]
    memory = [reading.memory_used_bytes for reading in readings]
    joules, estimated = _energy(place, recording, during, cell.seconds)
    return DeviceMeasurement(
        ordinal=row.ordinal,
        index=row.index,
        uuid=row.uuid,
        name=None if device is None else device.name,
        kind="gpu" if device is None else device.kind,
        memory_total_bytes=None if device is None else device.memory_total_bytes,
        memory_before_bytes=memory[0] if memory else None,
        memory_peak_bytes=_highest(memory),
        memory_after_bytes=memory[-1] if memory else None,
        utilization_mean_percent=_mean([load.utilization_percent for load in loads], during),
        utilization_peak_percent=_highest([load.highest_percent for load in loads]),
        energy_joules=joules,
        energy_estimated=estimated,
        torch=cell.torch.get(row.ordinal),
    )


def _energy(
    place: int | None, recording: Recording, during: Sequence[Sample], seconds: float
) -> tuple[float | None, bool]:
    """Return the joules of the cell's own time, and whether they are estimated.

    The counter is the better source, except in a cell that is too short for it.
    """
    if place is None:
        return None, False
    counted, share = _counted(place, recording, seconds)
    if counted is None or seconds < COUNTED_FROM_SECONDS:
        watts = _mean_watts(place, recording.cell_at_seconds, during, seconds)
        if watts is not None:
            return watts * seconds, True
    if counted is None:
        return None, False
    return counted * share, share < _EXACT_SHARE


def _counted(place: int, recording: Recording, seconds: float) -> tuple[float | None, float]:
    """Return the counter's difference, and the cell's share of the time that it stands for."""
    if not recording.energy_before or not recording.energy_after:
        return None, 1.0
    before, after = recording.energy_before[place], recording.energy_after[place]
    if before is None or after is None or after < before:
        return None, 1.0
    between = recording.energy_seconds
    return after - before, 1.0 if not between else min(seconds / between, 1.0)


def _mean_watts(place: int, began: float, during: Sequence[Sample], seconds: float) -> float | None:
    """Return the mean power while the cell ran: readings count for their time inside it."""
    total = covered = 0.0
    for sample in during:
        start = max(sample.seconds - sample.span_seconds, began)
        inside = min(sample.seconds, began + seconds) - start
        if inside <= 0:
            continue
        watts = sample.readings[place].power_watts
        if watts is None:
            return None
        total, covered = total + watts * inside, covered + inside
    return total / covered if covered else None


def _of_devices(samples: Sequence[Sample], columns: Sequence[int | None]) -> tuple[Sample, ...]:
    """Return the samples with the readings of the devices that are told about."""
    unknown = Reading()
    return tuple(
        Sample(
            sample.seconds,
            sample.span_seconds,
            tuple(unknown if at is None else sample.readings[at] for at in columns),
        )
        for sample in samples
    )


def _sample_json(sample: Sample) -> dict[str, object]:
    return {
        "seconds": round(sample.seconds, 6),
        "devices": [
            {
                "memory_used_bytes": reading.memory_used_bytes,
                "utilization_percent": reading.utilization_percent,
                "power_watts": reading.power_watts,
            }
            for reading in sample.readings
        ],
    }
