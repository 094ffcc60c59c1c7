"""What torch's allocator says of this kernel's memory, asked without ever waking CUDA.

torch is never imported here and never made to initialise CUDA: it is asked only where it is loaded,
says that it has initialised CUDA, and the driver says so too. Its numbers are then plain counters
of this process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jupyter_gpu.core.measurement import AllocatorMemory


def begin(
    count: int, *, frozen: bool, modules: Mapping[str, ModuleType] = sys.modules
) -> Mapping[int, int] | None:
    """Return the bytes allocated on each visible device, and begin its peak anew.

    None where torch has not initialised CUDA. The peak is reset as
    ``torch.cuda.reset_peak_memory_stats`` does it: what torch itself says of it afterwards counts
    from here.

    Parameters
    ----------
    count
        The number of devices in force.
    frozen
        Whether the CUDA driver is initialised in this process.
    modules
        The loaded modules.
    """
    cuda = _awake(modules) if frozen else None
    if cuda is None:
        return None
    before = {ordinal: _reset(cuda, ordinal) for ordinal in range(count)}
    return {ordinal: held for ordinal, held in before.items() if held is not None}


def end(
    count: int,
    before: Mapping[int, int] | None,
    *,
    frozen: bool,
    modules: Mapping[str, ModuleType] = sys.modules,
) -> Mapping[int, AllocatorMemory]:
    """Return what the allocator held before, at its peak and holds now, by visible ordinal.

    Where torch initialised CUDA only since ``begin``, there was nothing before, and the peak has
    counted from nothing.
    """
    cuda = _awake(modules) if frozen else None
    if cuda is None:
        return {}
    held = dict.fromkeys(range(count), 0) if before is None else before
    found = {ordinal: _memory(cuda, ordinal, held[ordinal]) for ordinal in held}
    return {ordinal: memory for ordinal, memory in found.items() if memory is not None}


def _awake(modules: Mapping[str, ModuleType]) -> Any:  # noqa: ANN401 - torch has no types here
    """Return ``torch.cuda`` where torch is loaded and has initialised CUDA, else None."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # noqa: BLE001 - the person's torch: another version, or half imported
        return None


def _reset(cuda: Any, ordinal: int) -> int | None:  # noqa: ANN401 - as above
    try:
        cuda.reset_peak_memory_stats(ordinal)
        return int(cuda.memory_allocated(ordinal))
    except Exception:  # noqa: BLE001 - as above
        return None


def _memory(cuda: Any, ordinal: int, before: int) -> AllocatorMemory | None:  # noqa: ANN401
    try:
        peak = int(cuda.max_memory_allocated(ordinal))
        return AllocatorMemory(before, peak, int(cuda.memory_allocated(ordinal)))
    except Exception:  # noqa: BLE001 - as above
        return None
