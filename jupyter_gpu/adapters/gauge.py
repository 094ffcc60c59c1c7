"""What reads a few devices again and again, quickly: the part of the seam that ``%%gpu`` samples.

A machine gives one for the devices that are asked for; its handles are opened once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.readings import Reading


class Gauge(Protocol):
    """Reads the devices that it was made for, in their order. May be used in another thread."""

    def read(self, *, sensors: bool = True) -> tuple[Reading, ...]:
        """Return the devices now; without sensors only their memory, which is quick."""

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

    def read(self, *, sensors: bool = True) -> tuple[Reading, ...]:
        """Return the devices as the inventory has them now.

        Raises
        ------
        SimulationError
            When the description cannot be read.
        """
        inventory = self._read()
        return tuple(_reading(inventory, uuid, sensors=sensors) for uuid in self._uuids)

    def energy_joules(self) -> tuple[float | None, ...]:
        """Return None for each device: an inventory has no counters."""
        return (None,) * len(self._uuids)


def _reading(inventory: Inventory, uuid: str, *, sensors: bool) -> Reading:
    device = inventory.find(uuid)
    if device is None:
        return Reading()
    if not sensors:
        return Reading(device.memory_used_bytes)
    return Reading(device.memory_used_bytes, device.utilization_percent, device.power_watts)
