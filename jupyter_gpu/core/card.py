"""Free on the card: what stands against leasing a device whatever the locks say. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.quantities import in_gib

# The driver keeps a few hundred megabytes for itself on some boards and drivers (308 MB were
# reported on an idle card); more than this without a process is somebody's.
UNEXPLAINED_MEMORY_BYTES = 600 * 2**20

_MPS_SERVER = "nvidia-cuda-mps-server"


class KnownProcess(Protocol):
    """What the rule needs to know about a process that exists here."""

    @property
    def user(self) -> str:
        """The owner's name."""

    @property
    def command(self) -> str:
        """The command line."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a device cannot be leased; ``passing`` when that ends by itself within moments."""

    sentence: str
    passing: bool = False


def obstacle(
    device: Device,
    known: Mapping[int, KnownProcess],
    *,
    ours: Collection[int] = (),
    min_free_memory_bytes: int | None = None,
    shared: bool = False,
    through_mps: bool = False,
) -> Obstacle | None:
    """Return what stands against leasing this device now, or None.

    Parameters
    ----------
    device
        As the driver library reports it.
    known
        The processes on it that exist here, by pid. A pid that is missing is gone, and the driver
        is tidying up after it, or it lives outside this container.
    ours
        Pids that belong to the lease that asks, or to the lease it is nested in.
    min_free_memory_bytes
        What the request wants to be free.
    shared
        Whether others hold shares of it, beside which the new one is to be: then their processes
        are in ``ours`` as far as they can be seen, and unseen ones are taken for theirs.
    through_mps
        Whether the kernel will go through an MPS server, which is the one process of a device in
        exclusive-process mode.
    """
    if device.problem is not None:
        return Obstacle(device.problem)
    if device.exclusive and not through_mps:
        return Obstacle("in exclusive-process mode, or closed to compute")
    return _foreign_process(device, known, ours, shared=shared) or _memory(
        device, min_free_memory_bytes, shared=shared
    )


def _foreign_process(
    device: Device, known: Mapping[int, KnownProcess], ours: Collection[int], *, shared: bool
) -> Obstacle | None:
    for process in device.processes:
        info = known.get(process.pid)
        if process.pid in ours or (info is not None and _MPS_SERVER in info.command):
            continue
        if info is not None:
            return Obstacle(f"used without a lease by {info.user}: {process.pid} {info.command}")
        if shared:
            continue
        return Obstacle(
            "used by a process that cannot be seen from here (ending, or outside this container)",
            passing=True,
        )
    return None


def _memory(
    device: Device, min_free_memory_bytes: int | None, *, shared: bool
) -> Obstacle | None:
    used, free = device.memory_used_bytes, device.memory_free_bytes
    # A desktop on the display's GPU uses memory without being a compute process.
    explained = bool(device.processes) or device.display or shared
    if used is not None and used > UNEXPLAINED_MEMORY_BYTES and not explained:
        held = f"{in_gib(used)} GiB in use by no process that can be seen"
        return Obstacle(held, passing=True)
    if min_free_memory_bytes is not None and free is not None and free < min_free_memory_bytes:
        return Obstacle(f"only {in_gib(free)} GiB free")
    return None
