"""Times, memory, load and energy of a measured cell in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_gpu.core.measurement import DeviceMeasurement

_MIB, _GIB = 2**20, 2**30
_MINUTE, _HOUR = 60, 3600
_KILOJOULES_FROM = 100_000


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


def energy_words(joules: float | None, *, estimated: bool = False) -> str:
    """Return an energy as ``"3.2 J"``, ``"123 kJ"``, an estimate as ``"~512 J"``."""
    if joules is None:
        return "–"
    if joules < 10:  # noqa: PLR2004 - where a joule needs a decimal
        words = f"{joules:.1f} J"
    elif joules < _KILOJOULES_FROM:
        words = f"{joules:.0f} J"
    else:
        words = f"{joules / 1000:.0f} kJ"
    return f"~{words}" if estimated else words
