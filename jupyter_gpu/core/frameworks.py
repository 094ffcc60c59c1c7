"""The CUDA frameworks that people import: their names, and what each remembers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.core.history import History, cell_words, import_words
from jupyter_gpu.core.variables import VISIBLE


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework: the module whose presence shows it, and how people call it."""

    module: str
    name: str
    distribution: str


FRAMEWORKS = (
    Framework("torch", "torch", "torch"),
    Framework("tensorflow", "TensorFlow", "tensorflow"),
    Framework("jax", "JAX", "jax"),
    Framework("cupy", "CuPy", "cupy"),
    Framework("numba.cuda", "numba.cuda", "numba"),
    Framework("paddle", "Paddle", "paddlepaddle-gpu"),
    Framework("pycuda.autoinit", "pycuda.autoinit", "pycuda"),
    Framework("pycuda", "PyCUDA", "pycuda"),
    Framework("cudf", "cuDF", "cudf"),
    Framework("cudf.pandas", "cudf.pandas", "cudf"),
    Framework("vllm", "vLLM", "vllm"),
)
MODULES = tuple(framework.module for framework in FRAMEWORKS)
BY_MODULE = {framework.module: framework for framework in FRAMEWORKS}
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


def version_pair(version: str | None) -> tuple[int, int] | None:
    """Return ``(2, 13)`` of ``"2.13.0+cpu"``, or None where it cannot be read."""
    found = _VERSION.match(version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def remembers(module: str, version: str | None, environ: Mapping[str, str]) -> str | None:
    """Return why an import of this version fixes devices though the driver is open, or None.

    Sources: torch's release notes and source (1.13 counts through NVML, 2.3 no longer caches the
    count); Kineto initialises CUDA at import where its daemon is asked for; Paddle and
    pycuda.autoinit initialise it at import.
    """
    pair = version_pair(version)
    if module == "torch" and pair is not None:
        if pair < (1, 13):
            return f"torch {version} initialises CUDA in torch.cuda.device_count()"
        if pair < (2, 3):
            return f"torch {version} remembers the first torch.cuda.device_count() for good"
    if module == "torch" and environ.get("KINETO_USE_DAEMON"):
        return "KINETO_USE_DAEMON is set, so torch's profiler initialises CUDA at import"
    if module == "paddle":
        return "Paddle reads its devices while it is imported"
    if module == "pycuda.autoinit":
        return "pycuda.autoinit takes its device while it is imported"
    return None


def advice(history: History, environ: Mapping[str, str], *, frozen: bool) -> tuple[str, ...]:
    """Return a sentence on each import that one has to know something about."""
    found = [_import_that_froze(history)] if frozen else []
    # What is said where CUDA's state is told: which import has initialised it.
    told = history.frozen.chain if frozen and history.frozen is not None else ()
    for one in history.imports:
        why = remembers(one.module, one.version, environ)
        if why is not None and one.module not in told:
            found.append(f"{why}; it was imported {import_words(one)}.")
    imported = {one.module for one in history.imports}
    if frozen and "jax" in imported and not _spares_memory(environ):
        found.append(
            "JAX takes three quarters of the memory of every visible GPU when it starts, unless "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false is set before."
        )
    if "vllm" in imported:
        found.append(uuid_refused(environ.get(VISIBLE)))
    return tuple(sentence for sentence in found if sentence is not None)


def uuid_refused(value: str | None) -> str | None:
    """Return what to do where vLLM meets UUIDs in the variable, which it reads as numbers."""
    if value is None or not value.startswith(("GPU-", "MIG-")):
        return None
    return (
        f"vLLM reads {VISIBLE} as numbers, and fails on UUIDs in many versions. "
        "For a kernel with numbers:  jupyter gpu install --gpus 1 --identifiers index"
    )


def _import_that_froze(history: History) -> str | None:
    frozen = history.frozen
    if frozen is None or frozen.by_import is None:
        return None
    return (
        f"import {frozen.by_import} initialises CUDA: to choose devices, set {VISIBLE} before "
        f"{cell_words(frozen.cell)} runs."
    )


def _spares_memory(environ: Mapping[str, str]) -> bool:
    return environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").strip().lower() in ("false", "0")
