"""What the text of a cell tells: how it sets the variable, and what in it initialises CUDA. Pure.

A cell may hold magics and lines for the shell, so it is not always Python; what cannot be read
tells nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jupyter_gpu.core.variables import VISIBLE

_ENV_MAGIC = re.compile(rf"^\s*%(?:set_)?env\s+{VISIBLE}\b", re.MULTILINE)
_USE_MAGIC = re.compile(r"^\s*%gpu\s+use\b", re.MULTILINE)
# A line for the shell that sets the variable and does nothing else: a command behind it would be
# given the variable, and such a line is in order.
_SHELL_EXPORT = re.compile(rf"^\s*!\s*(?:export|set)\s+{VISIBLE}=[^;&|]*$", re.MULTILINE)
_IPYTHON_LINE = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)

# What initialises the driver when it is called (measured on H200 with torch 2.11, jax 0.11, cupy
# and numba; TensorFlow's after its documentation).
_TORCH_CUDA = (
    *("is_available", "init", "current_device", "set_device", "mem_get_info", "synchronize"),
    *("get_device_properties", "get_device_name", "get_device_capability"),
    *("set_per_process_memory_fraction", "can_device_access_peer"),
)
_FREEZING = frozenset(
    {
        *(f"torch.cuda.{name}" for name in _TORCH_CUDA),
        *(f"jax.{name}" for name in ("devices", "local_devices", "device_count", "device_put")),
        "jax.local_device_count",
        "cupy.cuda.runtime.getDeviceCount",
        *(f"numba.cuda.{name}" for name in ("select_device", "get_current_device", "list_devices")),
        *(f"tf.config.list_{kind}_devices" for kind in ("physical", "logical")),
        "tensorflow.config.list_physical_devices",
        "tf.test.is_gpu_available",
    }
)
_FREEZING_ENDINGS = ("DataParallel", "Accelerator", "cuda.is_available", "cuda.set_device")
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def how_set(source: str) -> str:
    """Return how a cell that changed the variable did it, such as ``"%env"``."""
    if _USE_MAGIC.search(source):
        return "%gpu use"
    if _ENV_MAGIC.search(source):
        return "%env"
    return "os.environ" if VISIBLE in source else "code that it called"


def exports_in_vain(source: str) -> bool:
    """Return whether a ``!export`` of the variable stands there, whose shell ends with its line."""
    return VISIBLE in source and _SHELL_EXPORT.search(source) is not None


def freezing_call(source: str) -> str | None:
    """Return the first call in a cell that initialises CUDA, as it is written, or None.

    Only calls that run with the cell count, not those inside functions that it defines.
    """
    try:
        tree = ast.parse(_IPYTHON_LINE.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = (_freezes(call) for call in _calls(tree))
    return next((name for name in names if name is not None), None)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in the order in which they run: arguments before the call itself."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LATER):
            yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


def _freezes(call: ast.Call) -> str | None:
    name = _dotted(call.func)
    if name in _FREEZING or name.endswith(_FREEZING_ENDINGS):
        return name
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "cuda" and name != "torch.cuda":
        return ".cuda()"
    devices = [*call.args, *(word.value for word in call.keywords if word.arg == "device")]
    named = [one for one in devices if isinstance(one, ast.Constant)]
    on_cuda = any(isinstance(one.value, str) and one.value.startswith("cuda") for one in named)
    if method == "to" and on_cuda:
        return f'.to("{next(one.value for one in named if isinstance(one.value, str))}")'
    by_keyword = any(word.arg == "device" for word in call.keywords)
    return f'{name}(device="cuda")' if on_cuda and by_keyword and name else None


def _dotted(node: ast.AST) -> str:
    """Return ``"torch.cuda.is_available"`` for such an expression, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))
