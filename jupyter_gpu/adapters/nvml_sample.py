"""A few devices read through NVML again and again, by handles that are opened once.

Memory takes a fraction of a millisecond a device, utilisation and power about five (H200), so the
reader says whether it wants those. Nothing here imports ``pynvml``; questions go through a callable
that never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_gpu.adapters.gauge import UNLISTED_BY
from jupyter_gpu.adapters.nvml_gpu import (
    FATAL,
    TEMPERATURE_OF_THE_CHIP,
    Ask,
    memory_of,
    processes_of,
)
from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.readings import Reading

UNLISTED = UNLISTED_BY["nvml"]
# Whatever was asked, these say that the device cannot be read.
_GONE = (*FATAL, nvml_words.UNINITIALIZED)


@dataclass(frozen=True, slots=True)
class Found:
    """The handle of a device, and the physical index that names it to people."""

    index: int
    handle: object


class NVMLGauge:
    """Reads the devices behind some handles; a device without one is unknown.

    Parameters
    ----------
    ask
        Calls one function of pynvml, at any time and from any thread.
    find
        Returns for each device its handle, or a sentence that says why there is none. Called at
        once, and again when NVML has been shut down by another library in this process.
    """

    def __init__(self, ask: Ask, find: Callable[[], Sequence[Found | str]]) -> None:
        self._ask, self._find = ask, find
        self._found = tuple(find())

    def read(self, *, sensors: bool = True, processes: bool = False) -> tuple[Reading, ...]:
        """Return the devices now; see ``Gauge``."""
        down = False
        readings = []
        for found in self._found:
            reading, code = self._reading(found, sensors=sensors, processes=processes)
            readings.append(reading)
            down = down or code == nvml_words.UNINITIALIZED
        if down:
            self._found = tuple(self._find())
            readings = [
                self._reading(found, sensors=sensors, processes=processes)[0]
                for found in self._found
            ]
        return tuple(readings)

    def energy_joules(self) -> tuple[float | None, ...]:
        """Return each device's energy since the driver was loaded, None where it has no counter.

        A MIG device has none: the counter is the whole GPU's.
        """
        return tuple(self._energy(found) for found in self._found)

    def _reading(
        self, found: Found | str, *, sensors: bool, processes: bool
    ) -> tuple[Reading, int]:
        """Return a device now, and the first error that is its problem."""
        if isinstance(found, str):
            return Reading(problem=found), nvml_words.SUCCESS
        codes: list[int] = []

        def note(code: int, harmless: tuple[int, ...]) -> None:
            if code and code not in harmless:
                codes.append(code)

        _, used = memory_of(self._ask, found.handle, note)
        running = processes_of(self._ask, found.handle, note) if processes else None
        rates = milliwatts = celsius = None
        if sensors:
            rates = self._sensor(codes, "nvmlDeviceGetUtilizationRates", found.handle)
            milliwatts = self._sensor(codes, "nvmlDeviceGetPowerUsage", found.handle)
            celsius = self._sensor(
                codes, "nvmlDeviceGetTemperature", found.handle, TEMPERATURE_OF_THE_CHIP
            )
        return Reading(
            used,
            None if rates is None else float(rates.gpu),
            None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=None if celsius is None else int(celsius),
            processes=running,
            problem=nvml_words.gpu_problem(found.index, codes[0]) if codes else None,
        ), codes[0] if codes else nvml_words.SUCCESS

    def _sensor(self, codes: list[int], name: str, *arguments: object) -> Any:  # noqa: ANN401 - pynvml's
        """Ask what is only shown: an error leaves it unknown, unless it says the GPU is gone."""
        answer = self._ask(name, *arguments)
        if answer.code in _GONE:
            codes.append(answer.code)
        return answer.value

    def _energy(self, found: Found | str) -> float | None:
        if isinstance(found, str):
            return None
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", found.handle)
        return None if millijoules.code else millijoules.value / 1000


def find_handles(ask: Ask, uuids: Sequence[str]) -> tuple[Found | str, ...]:
    """Return the handles of devices, a sentence for one that is not found.

    By index, as the inventory is read: one lost GPU breaks the look-up of others by UUID.
    """
    found: dict[str | None, Found] = {}
    count = ask("nvmlDeviceGetCount")
    for index in range(0 if count.code else int(count.value)):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle.code:
            continue
        found[ask("nvmlDeviceGetUUID", handle.value).text] = Found(index, handle.value)
        if any(uuid.startswith("MIG-") and uuid not in found for uuid in uuids):
            slots = ask("nvmlDeviceGetMaxMigDeviceCount", handle.value)
            for slot in range(0 if slots.code else int(slots.value)):
                part = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle.value, slot)
                if not part.code:
                    found[ask("nvmlDeviceGetUUID", part.value).text] = Found(index, part.value)
    return tuple(found.get(uuid, UNLISTED) for uuid in uuids)
