"""Fakes for programs that build on this package: a machine that is what a test says it is.

They stand where the real ones do (``Acquisition(machine=…, place=…)``), so tests patch nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from jupyter_gpu.adapters.gauge import InventoryGauge
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.lease import HeldLease

__all__ = ["FakeMachine", "fake_gpu", "fake_lease"]

_GIB = 2**30


def fake_gpu(index: int, **changes: object) -> Device:
    """Return a healthy idle GPU with this physical index; ``changes`` are fields of Device."""
    digits = f"{index:012x}"
    device = Device(
        index=index,
        uuid=f"GPU-00000000-0000-0000-0000-{digits}",
        name="NVIDIA H200",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        memory_total_bytes=140 * _GIB,
        memory_used_bytes=0,
        minor=index,
    )
    return dataclasses.replace(device, **changes)  # type: ignore[arg-type] # names are the caller's


class FakeMachine:
    """A machine whose devices a test sets, and may change between two reads.

    ``reads`` counts how often it was looked at; ``inventory`` and ``connected``, how its GPUs are
    connected, may be replaced at any time.
    """

    def __init__(self, *devices: Device, problem: str | None = None) -> None:
        self.inventory = Inventory("simulated", "580.95.05", "13.0", problem, devices)
        self.connected = Topology()
        self.reads = 0

    def __enter__(self) -> FakeMachine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; there is nothing to close."""

    def set(self, *devices: Device) -> None:
        """Replace the devices."""
        self.inventory = dataclasses.replace(self.inventory, devices=devices)

    def read(self, *, sensors: bool = True) -> Inventory:  # noqa: ARG002 - the seam's signature
        """Return the inventory as it is set now."""
        self.reads += 1
        return self.inventory

    def gauge(self, uuids: Sequence[str]) -> InventoryGauge:
        """Return what reads these devices as they are set at that moment."""
        return InventoryGauge(self.read, uuids)

    def topology(self) -> Topology:
        """Return the topology, which knows nothing until a test sets ``connected``."""
        return self.connected


def fake_lease(machine: FakeMachine, folder: Path, **options: object) -> HeldLease:
    """Lease devices of a fake machine in a lease directory of the test's own.

    Parameters
    ----------
    machine
        The machine.
    folder
        The lease directory, made where it is missing.
    **options
        Request options, as in ``jupyter_gpu.acquire``.

    Raises
    ------
    NoDeviceAvailable, RequestError
        As ``jupyter_gpu.acquire`` does.
    """
    request = Request.parse(options, default_wait=0)
    place = Place(folder, "given")
    owner = Owner("api", command=f"test {os.getpid()}")
    return acquire_now(Acquisition(request, owner, {}, machine=machine, place=place))
