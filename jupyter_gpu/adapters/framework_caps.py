"""Sets memory caps in frameworks that are loaded, without importing or initialising any."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jupyter_gpu.core.errors import GPUError


@dataclass(frozen=True, slots=True)
class TorchState:
    """How far torch is in this process: ``version`` also of one that is only installed."""

    imported: bool
    begun: bool
    version: str | None


class PendingCaps:
    """Caps that torch sets by itself as soon as it initialises CUDA; one of them at most waits."""

    def __init__(self, cuda: Any, fractions: Mapping[int, float]) -> None:  # noqa: ANN401 - untyped
        self.fractions = dict(fractions)
        self._cuda = cuda

    def __call__(self) -> None:
        """Set them; torch calls this inside its initialisation."""
        for ordinal, fraction in self.fractions.items():
            # An error here would keep torch from initialising, and a cap is not worth that.
            with contextlib.suppress(Exception):
                self._cuda.set_per_process_memory_fraction(fraction, ordinal)


def torch_state(modules: Mapping[str, ModuleType] = sys.modules, *, frozen: bool) -> TorchState:
    """Return how far torch is; ``frozen`` is whether the driver is initialised here."""
    torch: Any = modules.get("torch")
    if torch is None:
        return TorchState(imported=False, begun=False, version=_installed("torch"))
    try:
        begun = bool(torch.cuda.is_initialized())
    except Exception:  # noqa: BLE001 - a torch that is only half imported
        begun = False
    return TorchState(imported=True, begun=begun and frozen, version=str(torch.__version__))


def set_caps(
    fractions: Mapping[int, float], modules: Mapping[str, ModuleType] = sys.modules
) -> None:
    """Cap torch's cache at these fractions of the visible devices, now; torch has begun.

    Raises
    ------
    GPUError
        When torch refuses, with its words.
    """
    cuda: Any = modules["torch"].cuda
    try:
        for ordinal, fraction in fractions.items():
            cuda.set_per_process_memory_fraction(float(fraction), ordinal)
    except Exception as error:
        # The person's torch, in whatever state it is.
        words = str(error).strip().split("\n")[0]
        raise GPUError(f"torch did not take the cap for cuda:{ordinal}: {words}") from error


def caps_now(
    ordinals: Sequence[int], modules: Mapping[str, ModuleType] = sys.modules
) -> Mapping[int, float]:
    """Return the fractions in force, from a torch that has begun and is new enough to tell."""
    cuda: Any = modules["torch"].cuda
    found = {}
    with contextlib.suppress(Exception):  # older versions cannot be asked
        for ordinal in ordinals:
            found[ordinal] = float(cuda.get_per_process_memory_fraction(ordinal))
    return found


def set_caps_later(
    fractions: Mapping[int, float], modules: Mapping[str, ModuleType] = sys.modules
) -> bool:
    """Have torch cap itself when it initialises CUDA; without fractions, take that back.

    Returns whether this torch can be told so: it keeps a list of what to do then, which its own
    random seeds use too.
    """
    cuda: Any = modules["torch"].cuda
    queue = getattr(cuda, "_queued_calls", None)
    if not isinstance(queue, list) or not hasattr(cuda, "_lazy_call"):
        return False
    queue[:] = [entry for entry in queue if not _is_ours(entry)]
    if fractions:
        cuda._lazy_call(PendingCaps(cuda, fractions))  # noqa: SLF001 - see above
    return True


def caps_waiting(modules: Mapping[str, ModuleType] = sys.modules) -> Mapping[int, float]:
    """Return the fractions that wait for torch to initialise CUDA."""
    cuda: Any = getattr(modules.get("torch"), "cuda", None)
    queue = getattr(cuda, "_queued_calls", None)
    for entry in queue if isinstance(queue, list) else ():
        if _is_ours(entry):
            return dict(entry[0].fractions)
    return {}


def jax_has_begun(modules: Mapping[str, ModuleType] = sys.modules) -> bool | None:
    """Return whether JAX has opened its devices here; None where it is not installed."""
    backends = getattr(modules.get("jax._src.xla_bridge"), "_backends", None)
    if isinstance(backends, dict) and backends:
        return True
    return False if "jax" in modules or _installed("jax") is not None else None


def _is_ours(entry: object) -> bool:
    return isinstance(entry, tuple) and bool(entry) and type(entry[0]) is PendingCaps


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
