"""What a loaded module says in its names, read without waking a lazy one or running its code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType


def names_in(
    module: str, modules: Mapping[str, ModuleType] = sys.modules
) -> Mapping[str, object] | None:
    """Return the names of a module, or None where it is not loaded."""
    try:
        names: dict[str, object] = object.__getattribute__(modules[module], "__dict__")
    except (KeyError, AttributeError):  # not loaded; None, which bars its import; no module
        return None
    return names


def is_torch_without_gpus(modules: Mapping[str, ModuleType] = sys.modules) -> bool | None:
    """Return whether the torch that is loaded was built for the CPU only; None where none is."""
    built_for = names_in("torch.version", modules)
    if built_for is None:
        return None
    return built_for.get("cuda") is None and built_for.get("hip") is None
