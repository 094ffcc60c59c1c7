"""The CUDA libraries that this Python has, from what their installers have written.

Nothing is imported: importing is what fixes devices too early. What a library has counted is read
only where it is loaded already, from variables that it has set by itself.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import sys
from pathlib import Path

from jupyter_gpu.core.facts import Installed

_HEAD = 64 * 1024
# A library and the distributions that it may come in; the first one that is there counts.
_TORCH = ("torch",)
_TENSORFLOW = ("tensorflow", "tensorflow-gpu", "tensorflow-cpu")
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
_JAX_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-cuda11-plugin")
_PLAIN = (("pynvml", "pynvml"), ("vLLM", "vllm"))
_CPU = "the CPU only"
_TORCH_FIELD = r"(?m)^%s\s*(?::[^=\n]*)?=\s*'([^'\n]*)'"
_TENSORFLOW_FIELD = r"['\"]%s['\"]\s*[,:]\s*['\"]?([0-9A-Za-z.]+)"


def installed_libraries() -> tuple[Installed, ...]:
    """Return the CUDA libraries of this Python, and packages that stand in their way."""
    found = (_torch(), _tensorflow(), _jax(), _cupy(), *map(_plain, _PLAIN))
    return tuple(library for library in found if library is not None)


def _distribution(names: tuple[str, ...]) -> importlib.metadata.Distribution | None:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.distribution(name)
    return None


def _version(distribution: importlib.metadata.Distribution) -> str:
    # A half-removed package leaves metadata without a version, which some Pythons give as None.
    with contextlib.suppress(KeyError):
        return str(distribution.version or "?")
    return "?"


def _text_of(distribution: importlib.metadata.Distribution, name: str) -> str:
    """Return the beginning of a file of a distribution, or an empty text."""
    path = Path(str(distribution.locate_file(name)))
    with contextlib.suppress(OSError):  # installed otherwise, in a way we do not know
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                return file.read(_HEAD)
    return ""


def _torch() -> Installed | None:
    distribution = _distribution(_TORCH)
    if distribution is None:
        return None
    text = _text_of(distribution, "torch/version.py")
    fields = {
        name: found[1]
        for name in ("__version__", "cuda", "hip", "xpu")
        if (found := re.search(_TORCH_FIELD % name, text))
    }
    version = fields.get("__version__") or _version(distribution)
    other = None
    if text and "cuda" not in fields:
        other = "ROCm" if "hip" in fields else "XPU" if "xpu" in fields else _CPU
    loaded = "torch" in sys.modules
    return Installed("torch", "torch", version, fields.get("cuda"), other, loaded)


def _tensorflow() -> Installed | None:
    distribution = _distribution(_TENSORFLOW)
    if distribution is None:
        return None
    text = _text_of(distribution, "tensorflow/python/platform/build_info.py")
    cuda = re.search(_TENSORFLOW_FIELD % "cuda_version", text)
    built = re.search(_TENSORFLOW_FIELD % "is_cuda_build", text)
    for_cpu = built is not None and built[1] == "False"
    for_cpu = for_cpu or distribution.metadata["Name"] == "tensorflow-cpu"
    return Installed(
        "TensorFlow",
        "tensorflow",
        _version(distribution),
        None if cuda is None or for_cpu else cuda[1],
        _CPU if for_cpu else None,
        loaded="tensorflow" in sys.modules,
    )


def _jax() -> Installed | None:
    distribution = _distribution(("jax",))
    if distribution is None:
        return None
    plugins = [name for name in _JAX_PLUGINS if _distribution((name,)) is not None]
    cuda = re.search("[0-9]+", plugins[0]) if plugins else None
    return Installed(
        "JAX",
        "jax",
        _version(distribution),
        None if cuda is None else cuda[0],
        None if plugins else _CPU,
        loaded="jax" in sys.modules,
        sees=_counted_by_jax(),
    )


def _counted_by_jax() -> int | None:
    """Return how many CUDA devices JAX has opened, None where it has opened no backend."""
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    if not isinstance(backends, dict) or not backends:
        return None
    opened = backends.get("cuda")
    if opened is None:
        return 0
    # The client's own count: a number that it has since it was opened.
    with contextlib.suppress(Exception):  # whatever this version of JAX calls it
        return int(opened.local_device_count())
    return None


def _cupy() -> Installed | None:
    distribution = _distribution(_CUPY)
    if distribution is None:
        return None
    cuda = re.search(r"cuda([0-9]+)x", str(distribution.metadata["Name"]))
    version, loaded = _version(distribution), "cupy" in sys.modules
    return Installed("CuPy", "cupy", version, None if cuda is None else cuda[1], loaded=loaded)


def _plain(names: tuple[str, str]) -> Installed | None:
    distribution = _distribution((names[1],))
    if distribution is None:
        return None
    return Installed(*names, _version(distribution), loaded=names[1] in sys.modules)
