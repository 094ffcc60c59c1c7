"""What reads a few devices again and again, quickly: the part of the seam that ``%%gpu`` samples.

A machine gives one for the devices that are asked for; its handles are opened once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from jupyter_gpu.core.devices import Inventory, Source
from jupyter_gpu.core.readings import Reading

UNLISTED_BY: Mapping[Source, str] = MappingProxyType(
    {
        "nvml": "NVML no longer lists this device: it is unplugged, hidden, or parted anew.",
        "simulated": "The simulated machine no longer has this device.",
        "none": "There is no driver library that lists this device.",
    }
)


class Gauge(Protocol):
    """Reads the devices that it was made for, in their order. May be used in another thread."""

    def read(self, *, sensors: bool = True, processes: bool = False) -> tuple[Reading, ...]:
        """Return the devices now; without sensors only their memory, which is quick.

        Parameters
        ----------
        sensors
            Also read utilisation, power and temperature.
        processes
            Also read the compute processes, clients of an MPS server included.
        """

    def energy_joules(self) -> tuple[float | None, ...]:
        """Return each device's energy counter, None where it has none."""


class InventoryGauge:
    """The gauge of a machine whose inventory is read in no time: a simulated one.

    Parameters
    ----------
    read
        Returns the inventory now.
    uuids
        The devices.
    """

    def __init__(self, read: Callable[[], Inventory], uuids: Sequence[str]) -> None:
        self._read, self._uuids = read, tuple(uuids)

    def read(self, *, sensors: bool = True, processes: bool = False) -> tuple[Reading, ...]:
        """Return the devices as the inventory has them now.

        Raises
        ------
        SimulationError
            When the description cannot be read.
        """
        inventory = self._read()
        return tuple(
            _reading(inventory, uuid, sensors=sensors, processes=processes) for uuid in self._uuids
        )

    def energy_joules(self) -> tuple[float | None, ...]:
        """Return None for each device: an inventory has no counters."""
        return (None,) * len(self._uuids)


def _reading(inventory: Inventory, uuid: str, *, sensors: bool, processes: bool) -> Reading:
    device = inventory.find(uuid)
    if device is None:
        unlisted = UNLISTED_BY[inventory.source]
        return Reading(problem=unlisted if inventory.devices else inventory.problem or unlisted)
    return Reading(
        device.memory_used_bytes,
        device.utilization_percent if sensors else None,
        device.power_watts if sensors else None,
        temperature_celsius=device.temperature_celsius if sensors else None,
        processes=device.processes if processes else None,
        # That a GPU is used in parts is told as a problem too, but it can be read.
        problem=None if device.mig_mode else device.problem,
    )
