"""The hints on what TensorFlow, JAX, vLLM and torch refuse for reasons of their own. Pure."""

from __future__ import annotations

import re

from jupyter_gpu.core.failure_case import Case
from jupyter_gpu.core.history import cause_words
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.variables import ORDER, VISIBLE
from jupyter_gpu.core.view import View, value_words
from jupyter_gpu.core.visibility import visible

_LITERAL = re.compile(r"with base 10: '([^']{0,200})'")


def tensorflow_late_view(case: Case) -> View:
    """Return the hint where TensorFlow's devices are set up after their first use."""
    frozen = case.process.history.frozen
    since = "" if frozen is None else f" CUDA was initialised by {cause_words(frozen)}."
    return View(
        "TensorFlow's devices are set up once per kernel, before their first use.",
        lines=(
            f"They are in use already.{since}",
            "Restart the kernel, and run that cell once, before anything else of TensorFlow.",
            *case.raised_inside,
        ),
    )


def memory_growth_view(case: Case) -> View:
    """Return the hint where memory growth is set for some GPUs only."""
    return View(
        "Memory growth is set for all GPUs of a kernel, or for none.",
        lines=(
            'for gpu in tf.config.list_physical_devices("GPU"):',
            "    tf.config.experimental.set_memory_growth(gpu, True)",
            "Or for all at once, before TensorFlow is imported:",
            "    %env TF_FORCE_GPU_ALLOW_GROWTH=true",
            *case.raised_inside,
        ),
    )


def fractions_view(case: Case) -> View:
    """Return the hint where JAX is given its part of the memory by two variables."""
    return View(
        "JAX takes one of XLA_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_MEM_FRACTION.",
        lines=(
            "Both are set. The second is the older name of the first:",
            '  del os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]',
            "Then run the cell again; restart the kernel if JAX goes on refusing.",
            *case.raised_inside,
        ),
    )


def uuid_view(case: Case) -> View | None:
    """Return the hint where a library reads the variable as numbers, and it holds UUIDs."""
    found = _LITERAL.search(case.failure.message)
    values = (case.process.set_now, case.process.launched_with)
    if found is None or not any(found[1] in value for value in values if value is not None):
        return None
    who = (
        case.failure.libraries[-1]
        if case.failure.libraries
        else (case.failure.framework or "int()")
    )
    title = f"{clean(who)} reads {VISIBLE} as numbers, and it holds UUIDs here."
    indices = _as_indices(case)
    if indices is None:
        part = "A MIG device has no number of its own: the library has to read UUIDs, or use"
        lines: tuple[str, ...] = (f"{part} a whole GPU.",)
    else:
        lines = (
            "The same devices by their numbers:",
            f"  %env {ORDER}=PCI_BUS_ID",
            f"  %env {VISIBLE}={indices}",
            "To start with them always:  identifiers=index  in the kernel's GPU request.",
        )
    return View(title, machine=case.machine, lines=lines)


def unreadable_value_view(case: Case) -> View | None:
    """Return the hint where torch's own parser fails on a value that CUDA does read."""
    found = _LITERAL.search(case.failure.message)
    if (
        found is None
        or case.process.set_now is None
        or found[1].strip() not in case.process.set_now
    ):
        return None
    shown = ", ".join(str(device.index) for device in case.overview.visible.devices)
    return View(
        f"torch cannot read {VISIBLE}={value_words(case.process.set_now)}.",
        machine=case.machine,
        lines=(
            f"CUDA makes {f'physical {shown}' if shown else 'no GPU'} of it.",
            *case.overview.visible.notes,
            f"Write it as numbers and commas:  %env {VISIBLE}={shown.replace(' ', '') or '0'}",
            *case.raised_inside,
        ),
    )


def _as_indices(case: Case) -> str | None:
    """Return the value in numbers that gives the same devices, None where there is none."""
    rows = case.rows
    if not rows or any(row.index is None or case.is_part(row) for row in rows):
        return None
    value = ",".join(str(row.index) for row in rows)
    same = visible(value, case.overview.inventory, environment={ORDER: "PCI_BUS_ID"}).devices
    return value if [one.uuid for one in same] == [row.uuid for row in rows] else None
