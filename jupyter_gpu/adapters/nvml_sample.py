"""A few devices read through NVML again and again, by handles that are opened once.

Memory takes a fraction of a millisecond a device, utilisation and power about five (H200), so the
reader says whether it wants those. Nothing here imports ``pynvml``; questions go through a callable
that never raises.
"""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_gpu.adapters.nvml_gpu import MEMORY_V2, Answer, Ask
from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.readings import Reading

_NO_SECOND_VERSION = (
    nvml_words.INVALID_ARGUMENT,
    nvml_words.FUNCTION_NOT_FOUND,
    nvml_words.ARGUMENT_VERSION_MISMATCH,
)


class NVMLGauge:
    """Reads the devices behind some handles; a device without a handle is unknown.

    Parameters
    ----------
    ask
        Calls one function of pynvml, at any time and from any thread.
    handles
        The answers that hold the devices' handles.
    """

    def __init__(self, ask: Ask, handles: Sequence[Answer | None]) -> None:
        self._ask, self._handles = ask, tuple(handles)

    def read(self, *, sensors: bool = True) -> tuple[Reading, ...]:
        """Return the devices now; without sensors only their memory."""
        return tuple(self._reading(handle, sensors=sensors) for handle in self._handles)

    def energy_joules(self) -> tuple[float | None, ...]:
        """Return each device's energy since the driver was loaded, None where it has no counter.

        A MIG device has none: the counter is the whole GPU's.
        """
        return tuple(self._energy(handle) for handle in self._handles)

    def _reading(self, handle: Answer | None, *, sensors: bool) -> Reading:
        if handle is None:
            return Reading()
        used = self._memory_used(handle.value)
        if not sensors:
            return Reading(used)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle.value)
        power = self._ask("nvmlDeviceGetPowerUsage", handle.value)
        return Reading(
            used,
            None if rates.code else float(rates.value.gpu),
            None if power.code else power.value / 1000,
        )

    def _memory_used(self, handle: object) -> int | None:
        """Return the bytes in use, as GPUReader counts them: without what the driver reserves."""
        name = "nvmlDeviceGetMemoryInfo"
        memory = self._ask(name, handle, MEMORY_V2)
        if memory.code in _NO_SECOND_VERSION:
            memory = self._ask(name, handle)
        return None if memory.code or not memory.value.total else int(memory.value.used)

    def _energy(self, handle: Answer | None) -> float | None:
        if handle is None:
            return None
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle.value)
        return None if millijoules.code else millijoules.value / 1000


def find_handles(ask: Ask, uuids: Sequence[str]) -> tuple[Answer | None, ...]:
    """Return the handles of devices, None for one that is not found.

    By index, as the inventory is read: one lost GPU breaks the look-up of others by UUID.
    """
    found: dict[str | None, Answer] = {}
    count = ask("nvmlDeviceGetCount")
    for index in range(0 if count.code else int(count.value)):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle.code:
            continue
        found[ask("nvmlDeviceGetUUID", handle.value).text] = handle
        if any(uuid.startswith("MIG-") and uuid not in found for uuid in uuids):
            slots = ask("nvmlDeviceGetMaxMigDeviceCount", handle.value)
            for slot in range(0 if slots.code else int(slots.value)):
                part = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle.value, slot)
                if not part.code:
                    found[ask("nvmlDeviceGetUUID", part.value).text] = part
    return tuple(found.get(uuid) for uuid in uuids)
