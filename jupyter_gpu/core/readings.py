"""What one device says at one moment, read again and again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_gpu.core.devices import Process


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment; None is unknown, or not asked this time.

    ``utilization_peak_percent`` is set where several readings have been merged into one.
    ``problem`` is a sentence about a device that does not answer any more.
    """

    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    utilization_peak_percent: float | None = None
    temperature_celsius: int | None = None
    processes: tuple[Process, ...] | None = None
    problem: str | None = None

    @property
    def highest_percent(self) -> float | None:
        """The highest utilisation that this reading stands for."""
        if self.utilization_peak_percent is None:
            return self.utilization_percent
        return self.utilization_peak_percent
