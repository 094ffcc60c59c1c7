"""The kernel that asks about itself: its values of CUDA_VISIBLE_DEVICES, and what CUDA does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jupyter_gpu.core.history import History

ProcessState = Literal["open", "frozen", "absent", "forked", "simulated"]


@dataclass(frozen=True, slots=True)
class InForce:
    """A device that the CUDA driver has given to a process.

    ``uuid`` is None where the driver does not say, ``index`` where the inventory lacks the device.
    """

    ordinal: int
    index: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class KernelProcess:
    """The kernel that asks about itself.

    ``launched_with`` and ``set_now`` are values of CUDA_VISIBLE_DEVICES, None where it is not set;
    ``in_force`` is what the driver uses, None while it has not read the variable. ``notices`` are
    sentences that the start of the kernel left for the person; ``missing`` name the frameworks that
    its kernelspec promises and its Python lacks. ``contexts`` are the visible ordinals on which
    this process holds memory of the driver. ``torch_count`` is the number of devices that torch has
    counted once and will repeat; None where it counts anew. ``advice`` are sentences on what was
    imported. ``renewable`` says whether what starts the kernel again reads a request for other
    devices.
    """

    pid: int
    launched_with: str | None
    set_now: str | None
    state: ProcessState
    in_force: tuple[InForce, ...] | None = None
    lease_id: str | None = None
    notices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    history: History = field(default_factory=History)
    contexts: tuple[int, ...] = ()
    torch_count: int | None = None
    advice: tuple[str, ...] = ()
    renewable: bool = False
