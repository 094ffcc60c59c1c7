"""Which errors are about GPUs, and of which kind: the table of what the libraries say.

An error is recognised by what it says, by its type, and by who raised it. Nothing is said about an
error that the person's own cell raises, whatever its text: they know what they meant. The texts
are those of the libraries' sources (torch 1.13 to 2.13, TensorFlow 2, JAX 0.4 to 0.11, CuPy, Numba,
PyCUDA, Paddle, RMM, Lightning, Ultralytics).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jupyter_gpu.core.remote_errors import is_remote

Kind = Literal[
    "device id",
    "model elsewhere",
    "count changed",
    "forked",
    "initialization",
    "no driver",
    "old driver",
    "no gpu",
    "cpu build",
    "unknown error",
    "out of memory",
    "tensorflow late",
    "memory growth",
    "jax backend",
    "jax fractions",
    "uuid",
    "unreadable value",
    "busy",
    "peer access",
    "same gpu",
]

# Packages whose own types of errors are believed wherever they are raised, with what people call
# the frameworks among them; a library is named in a hint, a framework speaks for itself.
_FRAMEWORKS = {
    "torch": "torch",
    "tensorflow": "TensorFlow",
    "keras": "TensorFlow",
    "jax": "JAX",
    "jaxlib": "JAX",
    "cupy": "CuPy",
    "cupy_backends": "CuPy",
    "cupyx": "CuPy",
    "numba": "Numba",
    "numba_cuda": "Numba",
    "pycuda": "PyCUDA",
    "paddle": "Paddle",
    "rmm": "RMM",
    "cudf": "cuDF",
    "triton": "Triton",
}
_LIBRARIES = frozenset({"lightning", "lightning_fabric", "pytorch_lightning", "ultralytics"})
CELL = "__main__"  # the module that cells run in
_MACHINERY = frozenset({"IPython", "ipykernel", "jupyter_gpu"})
# Who passes on what a worker process has raised, and how torch's loader begins it.
_PASS_ON = frozenset({"multiprocessing", "concurrent", "joblib"})
_WORKER = " in DataLoader worker process "
_RUNTIME = frozenset({"RuntimeError", "MemoryError"})
# "Invalid device ordinal" may be a sound card's: who is no framework has to say that it is CUDA's.
_SAYS_CUDA = re.compile(
    r"cuda|(?<![a-z])gpu|nvidia|nccl|cublas|cudnn|\bcu(init|mem|device|ctx|stream|module)"
    r"|'mig-|accelerator device"
)
_LONGEST = 4096  # as much of a message's beginning, and half of it of its end, is looked at


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as plain text: its classes as ``(module, name)``, the most special first."""

    classes: tuple[tuple[str, str], ...]
    message: str

    @property
    def names(self) -> frozenset[str]:
        """The names of its classes."""
        return frozenset(name for _, name in self.classes)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of its classes."""
        return tuple(module.partition(".")[0] for module, _ in self.classes)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an exception was raised.

    ``modules`` are those of its traceback, the cell first; ``by_cell`` says that a ``raise`` or an
    ``assert`` of the person's own cell did it.
    """

    modules: tuple[str, ...]
    by_cell: bool = False

    @property
    def below_the_cell(self) -> tuple[str, ...]:
        """What the cell, or a function of a cell that a library called, has called last."""
        if CELL not in self.modules:
            return self.modules
        return self.modules[len(self.modules) - self.modules[::-1].index(CELL) :]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of error and how to tell it.

    One of ``marks`` stands in the message (in lower case), and so does ``beside``. Unless the type
    is one of a framework's own, it is one of ``types``; ``inside`` are the modules of which one has
    to have raised it, where the message alone could be anybody's.
    """

    kind: Kind
    marks: tuple[str, ...]
    beside: str = ""
    types: frozenset[str] = _RUNTIME
    inside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A recognised error: ``framework`` as people call it, ``libraries`` the way to it, if any.

    ``cpu_build`` says that the torch that is loaded has no CUDA in it, None where none is loaded;
    ``worker`` that a worker process failed, and its parent passes that on.
    """

    kind: Kind
    message: str
    framework: str | None = None
    libraries: tuple[str, ...] = ()
    cpu_build: bool | None = None
    worker: bool = False


def _only(*names: str) -> frozenset[str]:
    return frozenset(names)


_RULES = (
    Rule("count changed", ("device >= 0 && device < num_gpus",), beside="cuda"),
    Rule(
        "device id",
        ("invalid device id", "invalid peer device id"),
        types=_only("AssertionError"),
        inside=("torch",),
    ),
    Rule(
        "device id",
        (
            "invalid device ordinal",
            "cudaerrorinvaliddevice:",
            "cuda_error_invalid_device",
            "attempting to deserialize object on cuda device",
        ),
    ),
    Rule("device id", ("but your machine only has:",), types=_only("MisconfigurationException")),
    Rule(
        "device id",
        ("invalid cuda 'device=",),
        types=_only("ValueError"),
        inside=("ultralytics",),
    ),
    Rule(
        "device id",
        ("could not satisfy device specification", "available devices are [", "unknown device"),
        beside="gpu:",
        types=_only(),
    ),
    Rule(
        "device id",
        ("list index out of range",),
        types=_only("IndexError"),
        inside=("numba.cuda", "numba_cuda"),
    ),
    Rule(
        "device id",
        ("tuple index out of range",),
        types=_only("IndexError"),
        inside=("torch.cuda",),
    ),
    Rule("model elsewhere", ("module must have its parameters and buffers",), "device_ids[0]"),
    Rule(
        "forked",
        ("cannot re-initialize cuda in forked subprocess", "cuda initialized before forking"),
    ),
    Rule(
        "initialization",
        (
            "cuda error: initialization error",
            "error 3: initialization error",
            "cudaerrorinitializationerror",
            "cuinit failed: initialization error",
            "cuda_error_not_initialized",
        ),
    ),
    Rule("unknown error", ("cuda unknown error", "cuda_error_unknown", "cudaerrorunknown")),
    Rule(
        "no driver",
        ("found no nvidia driver on your system", "cuda driver library cannot be found"),
    ),
    Rule(
        "old driver",
        (
            "nvidia driver on your system is too old",
            "cudaerrorinsufficientdriver",
            "cuda driver version is insufficient",
        ),
    ),
    Rule(
        "no gpu",
        (
            "no cuda gpus are available",
            "no cuda-capable device is detected",
            "you might not have a cuda gpu",
            "cuda_error_no_device",
            "cudaerrornodevice",
            "attempting to deserialize object on a cuda device but",
            "cannot access accelerator device when none is available",
            "failed call to cuinit",
        ),
    ),
    Rule("no gpu", ("no supported gpu backend found",), types=_only()),
    Rule(
        "cpu build",
        ("torch not compiled with cuda enabled", "module 'torch._c' has no attribute '_cuda_"),
        types=_only("AssertionError", "AttributeError"),
        inside=("torch",),
    ),
    Rule(
        "cpu build",
        (
            "pytorch was compiled without cuda support",
            "requires cuda support",
            "without aten_cuda library",
        ),
        beside="torch",
    ),
    Rule(
        "out of memory",
        (
            "cuda out of memory",
            "cuda error: out of memory",
            "cuda_error_out_of_memory",
            "cudaerrormemoryallocation",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "resource_exhausted: out of memory while",
            "failed to allocate request for",
            "out of memory error on gpu",
            "cumemalloc failed: out of memory",
        ),
    ),
    Rule(
        "out of memory",
        ("oom when allocating", "dst tensor is not initialized"),
        beside="gpu:",
        types=_only(),
    ),
    Rule("out of memory", ("out of memory allocating",), types=_only(), inside=("cupy",)),
    Rule(
        "tensorflow late",
        ("devices cannot be modified after being initialized",),
        inside=("tensorflow", "keras"),
    ),
    Rule(
        "memory growth",
        ("memory growth cannot differ between gpu devices",),
        types=_only("ValueError"),
        inside=("tensorflow", "keras"),
    ),
    Rule(
        "jax backend",
        (
            "unknown backend: 'gpu'",
            "unknown backend: 'cuda'",
            "unknown backend gpu",
            "unable to initialize backend 'cuda'",
            "unable to initialize backend 'gpu'",
            "no visible gpu devices",
        ),
        inside=("jax", "jaxlib"),
    ),
    Rule(
        "jax fractions",
        ("xla_client_mem_fraction",),
        beside="xla_python_client_mem_fraction",
        types=_only("ValueError"),
    ),
    Rule(
        "uuid",
        (
            "invalid literal for int() with base 10: 'gpu-",
            "invalid literal for int() with base 10: 'mig-",
        ),
        types=_only("ValueError"),
    ),
    Rule(
        "unreadable value",
        ("invalid literal for int() with base 10: ",),
        types=_only("ValueError"),
        inside=("torch.cuda",),
    ),
    Rule(
        "busy",
        (
            "is/are busy or unavailable",
            "cudaerrordevicesunavailable",
            "cuda_error_device_unavailable",
        ),
    ),
    Rule(
        "peer access",
        (
            "peer access is not supported between",
            "peer mapping resources exhausted",
            "cudaerrorpeeraccessunsupported",
        ),
    ),
    Rule("same gpu", ("duplicate gpu detected",), beside="cuda device"),
)


def candidates(raised: Raised) -> tuple[Rule, ...]:
    """Return the kinds that an exception may be, by what it says and its type; mostly none."""
    message = raised.message
    if len(message) > _LONGEST:
        message = message[:_LONGEST] + message[-_LONGEST // 2 :]
    message = message.lower()
    names, own_type = raised.names, _of_a_framework(raised)
    return tuple(
        rule
        for rule in _RULES
        if (own_type or not names.isdisjoint(rule.types))
        and any(mark in message for mark in rule.marks)
        and rule.beside in message
    )


def confirmed(
    rules: Iterable[Rule], raised: Raised, origin: Origin, *, cpu_build: bool | None = None
) -> Failure | None:
    """Return the failure that the first fitting rule tells, or None."""
    for rule in rules:
        if not _fits(rule, raised, origin):
            continue
        libraries = tuple(dict.fromkeys(filter(None, map(_library, origin.below_the_cell))))
        framework = _framework(raised, origin)
        worker = _WORKER in raised.message or not _PASS_ON.isdisjoint(
            module.partition(".")[0] for module in origin.modules
        )
        return Failure(rule.kind, raised.message, framework, libraries, cpu_build, worker)
    return None


def _fits(rule: Rule, raised: Raised, origin: Origin) -> bool:
    last = origin.modules[-1] if origin.modules else ""
    if rule.inside:
        of_type = any(package in rule.inside for package in raised.packages)
        return of_type or any(last == one or last.startswith(f"{one}.") for one in rule.inside)
    told = last.partition(".")[0] in _FRAMEWORKS or _SAYS_CUDA.search(raised.message.lower())
    return _of_a_framework(raised) or (bool(told) and not origin.by_cell)


def passed_on(raised: Raised, origin: Origin) -> bool:
    """Return whether an error came from another process that need not share this one's GPUs."""
    packages = {module.partition(".")[0] for module in origin.modules}
    here = _of_a_framework(raised) or _WORKER in raised.message
    known = here or not packages.isdisjoint(_PASS_ON | set(_FRAMEWORKS))
    types = (module for module, _ in raised.classes)
    return is_remote(types, origin.modules, raised.message, explained=known)


def _of_a_framework(raised: Raised) -> bool:
    return any(package in _FRAMEWORKS or package in _LIBRARIES for package in raised.packages)


def _framework(raised: Raised, origin: Origin) -> str | None:
    """Return the framework whose error it is: by its type, else by the innermost module of one."""
    inner = (module.partition(".")[0] for module in reversed(origin.modules))
    found = (_FRAMEWORKS.get(package) for package in (*raised.packages, *inner))
    return next((name for name in found if name is not None), None)


def _library(module: str) -> str | None:
    """Return the library of a module, None for a framework, Python itself, and the cell."""
    package = module.partition(".")[0]
    if package in _FRAMEWORKS or package in _MACHINERY or package in sys.stdlib_module_names:
        return None
    return package or None
