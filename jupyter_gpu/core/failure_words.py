"""The hint that follows an error about GPUs: what is true here, then what to do. Pure.

The larger kinds have modules of their own: ``wrong_id``, ``no_gpu``, ``out_of_memory`` and
``library_failures``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from jupyter_gpu.core.asked_ids import Asked
from jupyter_gpu.core.failure_case import Case
from jupyter_gpu.core.failures import Failure, Kind
from jupyter_gpu.core.history import cause_words, cell_words
from jupyter_gpu.core.library_failures import (
    fractions_view,
    memory_growth_view,
    tensorflow_late_view,
    unreadable_value_view,
    uuid_view,
)
from jupyter_gpu.core.no_gpu import (
    DOCTOR,
    cpu_build_view,
    jax_backend_view,
    no_driver_view,
    no_gpu_view,
    old_driver_view,
)
from jupyter_gpu.core.out_of_memory import out_of_memory_view
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.standing import standing_words
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import View, value_words
from jupyter_gpu.core.wrong_id import elsewhere_view, wrong_id_view


def failure_view(
    failure: Failure, overview: Overview, asked: Callable[[], Iterator[Asked]]
) -> View | None:
    """Return the hint on a failure, None where nothing true and useful can be said.

    Parameters
    ----------
    failure
        The error, recognised.
    overview
        The machine, with the kernel that the error is of.
    asked
        Gives the device ids that may have been asked for; called only where they matter.
    """
    process = overview.process
    if process is None:
        return None
    case = Case(failure, overview, process)
    if failure.kind == "device id":
        return wrong_id_view(case, asked())
    # torch's compiled code says this where there is no frame of torch to tell it by.
    of_torch = failure.framework == "torch" or "accelerator device" in failure.message
    if of_torch and failure.kind == "no gpu" and failure.cpu_build:
        return cpu_build_view(case)
    if failure.kind == "cpu build" and failure.cpu_build is False:
        return None  # another library's text on its own build
    return _VIEWS[failure.kind](case)


def forked_view(case: Case) -> View:
    """Return the hint where a forked process asked for CUDA that its parent had initialised."""
    frozen = case.process.history.frozen
    since = () if frozen is None else (f"{_sentence(cause_words(frozen))} initialised CUDA here.",)
    if "dataloader" in case.failure.message.lower():
        spawn = 'DataLoader(…, multiprocessing_context="spawn")'
    else:
        spawn = 'multiprocessing.get_context("spawn")'
    in_use = case.process.state == "frozen"
    return View(
        "CUDA is in use in this kernel, so processes forked from it cannot use it."
        if in_use
        else "CUDA does not work in a process forked from one that has used it.",
        lines=(
            *since,
            f"Start the workers anew instead:  {spawn}",
            "What they run has to stand in a .py file then: they do not see the cells.",
            "Or keep CUDA out of them: let workers return CPU tensors.",
            *case.raised_inside,
        ),
    )


def initialization_view(case: Case) -> View:
    """Return the hint on an initialisation that failed: in a forked worker, or by the driver."""
    if case.process.state == "forked" or case.failure.worker:
        return forked_view(case)
    return View(
        "CUDA could not be initialised in this kernel: the driver refused.",
        machine=case.machine,
        lines=(
            "In a process forked from one that uses CUDA it always does.",
            DOCTOR,
            *case.raised_inside,
        ),
    )


def unknown_error_view(case: Case) -> View:
    """Return the hint on "CUDA unknown error", whose text blames the variable."""
    process, changes = case.process, case.process.history.changes
    now, launched = value_words(process.set_now), value_words(process.launched_with)
    if not changes and process.launched_with == process.set_now:
        title = f"{VISIBLE} did not change since the start: it is not the cause."
        causes = "as after a suspend or in a container that lost its GPUs"
        lines = (f"It is {now}. An unknown error comes from the driver, {causes}.", DOCTOR)
        return View(title, machine=case.machine, lines=(*lines, *case.raised_inside))
    if changes:
        last = changes[-1]
        from_to = f"from {value_words(last.before)} to {value_words(last.after)}"
        title = f"{_sentence(cell_words(last.cell))} changed {VISIBLE} {from_to} ({last.how})."
    else:
        title = f"{VISIBLE} was {launched} when this kernel started, and is {now} now."
    lines = (
        "If CUDA was asked before that, it stays so: restart the kernel and set it first.",
        f"If it fails then as well, it is the driver:  {DOCTOR.partition('  ')[2]}",
    )
    return View(title, machine=case.machine, lines=(*lines, *case.raised_inside))


def count_changed_view(case: Case) -> View:
    """Return the hint where torch had counted other devices than it then got."""
    rows = case.rows
    changes = case.process.history.changes
    who = f"{_sentence(cell_words(changes[-1].cell))} changed {VISIBLE}" if changes else ""
    why = f"{who} in between." if who else f"{VISIBLE} usually changed in between."
    return View(
        "torch had counted other devices than CUDA then gave it.",
        machine=case.machine,
        lines=(
            f"{why} Restart the kernel, and set it before torch counts.",
            *((f"CUDA's devices here: {case.map_line}",) if rows else ()),
            *case.caveat,
            *case.raised_inside,
        ),
    )


def busy_view(case: Case) -> View:
    """Return the hint on a device that takes no further process."""
    lines = []
    for row in case.rows:
        device = None if row.uuid is None else case.overview.inventory.find(row.uuid)
        if device is not None and device.exclusive:
            name = case.named(row.ordinal)
            lines.append(f"{name} is in exclusive-process mode, or closed to compute.")
        elif device is not None and device.problem is not None:
            lines.append(f"{case.named(row.ordinal)}: {device.problem}")
        elif device is not None:
            words = standing_words(device, case.overview)
            lines.append(f"{case.named(row.ordinal)}: {words}")
    return View(
        "CUDA sees a device and cannot use it: busy, or closed to this process.",
        machine=case.machine,
        lines=(*lines, *case.caveat, "Who is on it:  %gpu who", *case.raised_inside),
    )


def peer_view(case: Case) -> View:
    """Return the hint on devices that cannot read each other's memory."""
    rows = case.rows
    return View(
        "These devices cannot all read each other's memory directly.",
        machine=case.machine,
        lines=(
            *((f"  {case.map_line}",) if rows else ()),
            *case.caveat,
            "How they are linked:  %gpu topo",
            *case.raised_inside,
        ),
    )


def same_gpu_view(case: Case) -> View:
    """Return the hint where two ranks of NCCL use one GPU."""
    rows = case.rows
    seen = f"This kernel sees {len(rows)}: {case.map_line}." if rows else ""
    return View(
        "Two processes of the group use the same GPU; NCCL wants one for each.",
        machine=case.machine,
        lines=(
            *((seen,) if seen else ()),
            *case.caveat,
            "Start as many as there are devices, and in each first:",
            '  torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            *case.raised_inside,
        ),
    )


def _sentence(words: str) -> str:
    """Return words with a capital letter, as a sentence begins."""
    return words[:1].upper() + words[1:]


_VIEWS: Mapping[Kind, Callable[[Case], View | None]] = MappingProxyType(
    {
        "model elsewhere": elsewhere_view,
        "count changed": count_changed_view,
        "forked": forked_view,
        "initialization": initialization_view,
        "no driver": no_driver_view,
        "old driver": old_driver_view,
        "no gpu": no_gpu_view,
        "cpu build": cpu_build_view,
        "unknown error": unknown_error_view,
        "out of memory": out_of_memory_view,
        "tensorflow late": tensorflow_late_view,
        "memory growth": memory_growth_view,
        "jax backend": jax_backend_view,
        "jax fractions": fractions_view,
        "uuid": uuid_view,
        "unreadable value": unreadable_value_view,
        "busy": busy_view,
        "peer access": peer_view,
        "same gpu": same_gpu_view,
    }
)
