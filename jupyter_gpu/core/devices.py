"""The nouns of the inventory: devices, the processes on them, and the machine's list.

Everything above passes these values around; nothing here knows where they came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["nvml", "simulated", "none"]
Kind = Literal["gpu", "mig"]


@dataclass(frozen=True, slots=True)
class Process:
    """One compute process that the driver library reports on a device."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One leasable thing, a whole GPU or a MIG device, as reported at one moment.

    ``index`` is the physical index (NVML's; a MIG device has its parent's). ``None`` always means
    unknown. ``minor`` is the number in ``/dev/nvidia<minor>``, which is not the index.
    ``gpu_instance`` and ``compute_instance`` number a MIG device within its GPU.
    ``exclusive`` is true in the compute modes EXCLUSIVE_PROCESS and PROHIBITED. ``uuid`` is None
    only for a GPU so lost that the driver does not even name it.
    """

    index: int
    uuid: str | None
    name: str
    kind: Kind = "gpu"
    parent: str | None = None
    profile: str | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    processes: tuple[Process, ...] = ()
    problem: str | None = None
    mig_mode: bool = False
    minor: int | None = None
    exclusive: bool = False
    display: bool = False
    numa_node: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def __hash__(self) -> int:
        # Devices are keys all over a choice, and hashing every reading of them would be most of it.
        return hash((self.uuid, self.index))

    @property
    def memory_free_bytes(self) -> int | None:
        """Bytes not in use, or None where the driver library does not say."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the driver library reports at one moment.

    ``devices`` are in physical order; a GPU in MIG mode is followed by its MIG devices.
    ``problem`` is one sentence about the machine as a whole, or None.
    """

    source: Source
    driver: str | None = None
    cuda: str | None = None
    problem: str | None = None
    devices: tuple[Device, ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The physical GPUs, MIG mode or not, lost ones included."""
        return tuple(device for device in self.devices if device.kind == "gpu")

    def find(self, uuid: str) -> Device | None:
        """Return the device with exactly this UUID, or None."""
        return next((device for device in self.devices if device.uuid == uuid), None)
