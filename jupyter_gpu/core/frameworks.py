"""The CUDA frameworks that people import: their names, and what each remembers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


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
