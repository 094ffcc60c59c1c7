"""Times, memory, load and energy of a measured cell in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_gpu.core.measurement import DeviceMeasurement

_MIB, _GIB = 2**20, 2**30
_MINUTE, _HOUR = 60, 3600
_KILOJOULES_FROM = 100_000
_MILLIJOULES_BELOW = 0.1


def seconds_words(seconds: float) -> str:
    """Return a time as ``"12 µs"``, ``"412 ms"``, ``"2.41 s"``, ``"3 min 5 s"``."""
    if seconds < 0.001:  # noqa: PLR2004 - below a millisecond
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 0.01:  # noqa: PLR2004 - where milliseconds need a decimal
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def memory_words(number_bytes: int | None) -> str:
    """Return memory as ``"512 MiB"`` or ``"61.0 GiB"``, ``"–"`` where it is unknown."""
    if number_bytes is None:
        return "–"
    if abs(number_bytes) < _GIB:
        mebibytes = number_bytes / _MIB
        return f"{mebibytes:.1f} MiB" if 0 < abs(mebibytes) < 1 else f"{mebibytes:.0f} MiB"
    return f"{number_bytes / _GIB:.1f} GiB"


def added_words(number_bytes: int | None) -> str:
    """Return a change of memory with its sign, ``"+512 MiB"``; no change is ``"+0 MiB"``."""
    if number_bytes is None:
        return "–"
    sign = "−" if number_bytes < 0 else "+"
    return f"{sign}{memory_words(abs(number_bytes))}"


def load_words(device: DeviceMeasurement) -> str:
    """Return the mean and the highest utilisation, ``"43 %, peak 99 %"``."""
    mean, peak = device.utilization_mean_percent, device.utilization_peak_percent
    if mean is None or peak is None:
        return "–"
    return f"{mean:.0f} %, peak {peak:.0f} %"


@dataclass(frozen=True, slots=True)
class EnergyScale:
    """A unit of energy in joules, and the decimals with which all energies of a table stand."""

    unit: str = "J"
    joules: float = 1.0
    decimals: int = 1

    @classmethod
    def of(cls, energies: Sequence[float]) -> EnergyScale:
        """Return the scale in which the largest of them has two digits at least."""
        largest = max(energies, default=0.0)
        if largest <= 0:
            return cls()
        unit, joules = "J", 1.0
        if sum(energies) >= _KILOJOULES_FROM:
            unit, joules = "kJ", 1000.0
        elif largest < _MILLIJOULES_BELOW:
            unit, joules = "mJ", 0.001
        return cls(unit, joules, max(0, 1 - math.floor(math.log10(largest / joules))))

    def rounded(self, joules: float) -> float:
        """Return an energy as it will be shown, in joules: what is shown in rows adds up."""
        return round(joules / self.joules, self.decimals) * self.joules


def energy_words(
    joules: float | None, *, estimated: bool = False, scale: EnergyScale | None = None
) -> str:
    """Return an energy as ``"3.2 J"``, ``"3.9 mJ"``, ``"123 kJ"``, an estimate as ``"~512 J"``."""
    if joules is None:
        return "–"
    scale = scale or EnergyScale.of((joules,))
    words = f"{joules / scale.joules:.{scale.decimals}f} {scale.unit}"
    return f"~{words}" if estimated else words
