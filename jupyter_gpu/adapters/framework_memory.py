"""Gives back the GPU memory that frameworks keep without using it, each by its own means.

Nothing is imported and nothing initialised: a framework is asked only where it is loaded, where it
has begun to use CUDA, and where the driver says so too. Only caches are emptied; no object of the
person's is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from jupyter_gpu.core.memory_report import Emptied, TorchMemory

_TENSORFLOW_KEEPS = "gives nothing back before a restart"


def torch_memory(
    ordinals: Sequence[int], modules: Mapping[str, ModuleType] = sys.modules
) -> Mapping[int, TorchMemory]:
    """Return what torch's allocator holds on each of these devices; empty where it has not begun.

    Called only while the driver is frozen; the numbers are counters of this process.
    """
    cuda = _awake_torch(modules)
    if cuda is None:
        return {}
    found = {ordinal: _torch_memory(cuda, ordinal) for ordinal in ordinals}
    return {ordinal: memory for ordinal, memory in found.items() if memory is not None}


def empty_caches(
    contexts: Sequence[int], modules: Mapping[str, ModuleType] = sys.modules
) -> tuple[Emptied, ...]:
    """Empty the caches of every framework that uses CUDA here, and say of each what was done.

    Parameters
    ----------
    contexts
        The visible ordinals on which this process has a context: another one would be given one,
        with its memory, by being asked.
    modules
        The loaded modules.
    """
    found = (
        _emptied("torch", lambda: _torch(modules)),
        _emptied("CuPy", lambda: _cupy(contexts, modules)),
        _emptied("JAX", lambda: _jax(modules)),
        _emptied("numba", lambda: _numba(modules)),
        _emptied("TensorFlow", lambda: _tensorflow(modules)),
    )
    return tuple(one for one in found if one is not None)


def _emptied(name: str, empty: Callable[[], str | None]) -> Emptied | None:
    try:
        done = empty()
    except Exception as error:  # noqa: BLE001 - a framework's own failure is told, not raised
        words = str(error).strip().split("\n")[0]
        return Emptied(name, "could not", f"{type(error).__name__}: {words}")
    return None if done is None else Emptied(name, done)


def _torch_memory(cuda: Any, ordinal: int) -> TorchMemory | None:  # noqa: ANN401 - as below
    try:
        return TorchMemory(int(cuda.memory_allocated(ordinal)), int(cuda.memory_reserved(ordinal)))
    except Exception:  # noqa: BLE001 - the person's torch, whatever its version
        return None


def _awake_torch(modules: Mapping[str, ModuleType]) -> Any:  # noqa: ANN401 - torch has no types
    cuda = getattr(modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # noqa: BLE001 - a torch that is only half imported
        return None


def _torch(modules: Mapping[str, ModuleType]) -> str | None:
    cuda = _awake_torch(modules)
    if cuda is None:
        return None
    cuda.empty_cache()
    return "emptied its cache"


def _cupy(contexts: Sequence[int], modules: Mapping[str, ModuleType]) -> str | None:
    cupy: Any = modules.get("cupy")
    if cupy is None or not contexts:
        return None
    # Each device has a pool of its own, and only the current one's is emptied.
    for ordinal in contexts:
        with cupy.cuda.Device(ordinal):
            cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    return "emptied its pools"


def _jax(modules: Mapping[str, ModuleType]) -> str | None:
    backends = getattr(modules.get("jax._src.xla_bridge"), "_backends", None)
    jax: Any = modules.get("jax")
    if jax is None or not isinstance(backends, dict) or not {"cuda", "gpu", "rocm"} & set(backends):
        return None
    jax.clear_caches()
    return "dropped its compiled functions; its pool is given back only by a restart"


def _numba(modules: Mapping[str, ModuleType]) -> str | None:
    devices = getattr(modules.get("numba.cuda.cudadrv.devices"), "gpus", None)
    # The list of devices is made when CUDA is first used; asking for it would do that.
    managers = getattr(devices, "__dict__", {}).get("lst", ())
    done = None
    for manager in managers:
        context = getattr(getattr(manager, "_device", None), "primary_context", None)
        if context is not None:
            with manager:
                context.deallocations.clear()
            done = "freed what waited to be freed"
    return done


def _tensorflow(modules: Mapping[str, ModuleType]) -> str | None:
    # Its allocator has no way back, and clearing Keras' session would touch the person's models.
    context = getattr(modules.get("tensorflow.python.eager.context"), "_context", None)
    begun = getattr(context, "_initialized", False) is True
    return _TENSORFLOW_KEEPS if begun else None
