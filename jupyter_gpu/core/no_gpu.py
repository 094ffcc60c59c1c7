"""The hints where CUDA finds no GPU: the variable, the driver, or a build without CUDA. Pure."""

from __future__ import annotations

import re

from jupyter_gpu.core.failure_case import Case, variable_words
from jupyter_gpu.core.history import cell_words
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import View, listed, machine_notes, value_words
from jupyter_gpu.core.visibility import visible

DOCTOR = "Check the driver:  jupyter gpu doctor"
_FOUND_VERSION = re.compile(r"found version ([0-9]{4,6})")
_PICK = 'To have GPUs, pick a kernel that leases some, such as "PyTorch (1 GPU)".'
_RESTART = "restart the kernel."
_SIMULATED = "The GPUs of this machine are simulated: there is no CUDA behind them."


def no_gpu_view(case: Case, asked: str = "") -> View:
    """Return why CUDA finds no GPU here; ``asked`` is what a cell wanted one for, if known."""
    title, lines = _reason(case)
    if asked:
        title = f"{asked}: {title[0].lower() if title.startswith('No ') else title[0]}{title[1:]}"
    return View(
        title,
        machine=case.machine,
        lines=(*lines, *case.raised_inside),
    )


def no_driver_view(case: Case) -> View:
    """Return the hint where CUDA finds no driver at all."""
    inventory = case.overview.inventory
    if case.simulated or not inventory.gpus:
        return no_gpu_view(case)
    count = in_words(len(inventory.gpus))
    return View(
        f"CUDA finds no NVIDIA driver in this kernel, though NVML lists {count}.",
        lines=(
            "A container needs  NVIDIA_DRIVER_CAPABILITIES=compute,utility  for it.",
            DOCTOR,
            *case.raised_inside,
        ),
    )


def old_driver_view(case: Case) -> View:
    """Return the hint where the driver is older than the framework needs."""
    inventory, who = case.overview.inventory, case.failure.framework or "the library"
    if case.simulated or inventory.driver is None:
        return no_gpu_view(case)
    name, found = clean(inventory.driver), _FOUND_VERSION.search(case.failure.message)
    if found is None:
        offers = f", which offers CUDA {clean(inventory.cuda)}" if inventory.cuda else ""
        return View(
            f"CUDA finds a driver older than {who} needs, or finds none.",
            lines=(f"NVML reports driver {name}{offers}.", DOCTOR, *case.raised_inside),
        )
    offered = f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"
    return View(
        f"The driver here offers CUDA {offered}, and {who} was built for a newer one.",
        lines=(
            f"Update the driver ({name}), or install {who} built for CUDA {offered} or older.",
            *case.raised_inside,
        ),
    )


def cpu_build_view(case: Case) -> View:
    """Return the hint where torch itself has no CUDA in it."""
    version = next(
        (
            one.version
            for one in case.process.history.imports
            if one.module == "torch" and one.version
        ),
        None,
    )
    name = f"torch {clean(version)}" if version else "This kernel's torch"
    return View(
        f"{name} is a build without CUDA: it knows the CPU only.",
        machine=case.machine,
        lines=(*_with_cuda(case), *case.raised_inside),
    )


def jax_backend_view(case: Case) -> View:
    """Return the hint where JAX has no backend for GPUs."""
    rows = case.rows
    if not rows or case.simulated:
        return no_gpu_view(case)
    major = (case.overview.inventory.cuda or "12").partition(".")[0]
    extra = "cuda13" if major.isdecimal() and int(major) >= 13 else "cuda12"  # noqa: PLR2004 - CUDA 13
    return View(
        f"JAX has no GPU backend, though {in_words(len(rows))} "
        f"{'is' if len(rows) == 1 else 'are'} visible here.",
        lines=(
            "It is a build for the CPU, or its CUDA plugin could not start (see its warnings).",
            f'Install it with CUDA, then restart the kernel:  %pip install -U "jax[{extra}]"',
            *case.raised_inside,
        ),
    )


def _with_cuda(case: Case) -> tuple[str, ...]:
    """Return how to get torch with CUDA, and whether that would help here."""
    if case.simulated:
        return ("The GPUs here are simulated, so a build with CUDA would not find them either.",)
    inventory, count = case.overview.inventory, len(case.rows)
    if not inventory.gpus:
        return ("No GPU can be seen on this machine, so a build with CUDA would not find one.",)
    offered = inventory.cuda
    page = "https://pytorch.org/get-started/locally"
    driver = f"This driver offers CUDA {clean(offered)}; " if offered else ""
    return (
        f"{in_words(count) if count else 'No GPU'} {'is' if count < 2 else 'are'} visible here.",  # noqa: PLR2004 - plural
        "Install one with CUDA, then restart the kernel:",
        "  %pip install --force-reinstall torch",
        f"{driver}{'b' if driver else 'B'}uilds for each CUDA: {page}",
    )


def _reason(case: Case) -> tuple[str, tuple[str, ...]]:
    """Return the answer, and what is true besides."""
    overview, process, rows = case.overview, case.process, case.rows
    inventory = overview.inventory
    if not inventory.gpus:
        problems = machine_notes(inventory, overview.leasing)[:1]
        return "No GPU can be seen on this machine.", problems
    if rows and case.simulated:
        return _SIMULATED, ()
    if rows:
        return _should_be_there(overview, process, len(rows))
    value = process.set_now if process.in_force is None else _value_in_force(process)
    total = in_words(len(inventory.gpus))
    if value is None:
        notes = machine_notes(inventory, overview.leasing)
        return "No GPU of this machine can be used in this kernel.", (*notes, DOCTOR)
    title = f"No GPU is visible: {variable_words(value)}, and the machine has {total}."
    return title, (*process.notices[:2], *_notes(overview, process), *_way_out(overview))


def _notes(overview: Overview, process: KernelProcess) -> tuple[str, ...]:
    """Return the sentences on the value, but for those that the start of the kernel has said."""
    return () if process.notices else overview.visible.notes


def _way_out(overview: Overview) -> tuple[str, ...]:
    lease = overview.lease
    if lease is None:
        return (_PICK,)
    held = listed(lease.record.indices)
    return (f"This kernel's lease is on physical {held}; a restart makes it visible again.",)


def _should_be_there(
    overview: Overview, process: KernelProcess, count: int
) -> tuple[str, tuple[str, ...]]:
    """Return the words where the variable leaves GPUs and CUDA found none all the same."""
    changes = process.history.changes
    for change in reversed(changes):
        if not _gives(change.before, overview) and _gives(change.after, overview):
            before = f"{VISIBLE} was {value_words(change.before)}, which shows no GPU"
            kept = f"CUDA was asked before that and keeps its answer: {_RESTART}"
            return f"{before}, until {cell_words(change.cell)}.", (kept,)
    if process.launched_with != process.set_now and not _gives(process.launched_with, overview):
        launched = f"{VISIBLE} was {value_words(process.launched_with)} when this kernel started"
        kept = f"CUDA was asked while that counted and keeps its answer: {_RESTART}"
        return f"{launched}, which shows no GPU.", (kept,)
    if process.in_force:
        has = f"The CUDA driver has {in_words(count, 'device')} in this kernel"
        return f"{has}, but none was found before.", (f"That answer is kept: {_RESTART}",)
    is_or_are = "is" if count == 1 else "are"
    return (
        f"CUDA finds no GPU, though {in_words(count)} {is_or_are} visible by {VISIBLE}.",
        (unchanged_words(process), DOCTOR),
    )


def unchanged_words(process: KernelProcess) -> str:
    """Return the variable's value, and that it is what the kernel started with, if it is."""
    now = f"{variable_words(process.set_now)}."
    if process.history.changes or process.launched_with != process.set_now:
        return now
    return f"{now} It did not change since this kernel started."


def _gives(value: str | None, overview: Overview) -> bool:
    return bool(visible(value, overview.inventory, environment={}).devices)


def _value_in_force(process: KernelProcess) -> str | None:
    """Return the value that CUDA read: the first one where it was changed since, else the last."""
    changes = process.history.changes
    return process.launched_with if changes else process.set_now
