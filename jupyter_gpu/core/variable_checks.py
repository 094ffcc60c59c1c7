"""The checks of the variables that decide what CUDA shows: CUDA's, Slurm's, a container's. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.facts import Facts
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.late import is_late, lease_value, map_words
from jupyter_gpu.core.notes import ON_PURPOSE
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.spelling import is_misspelt
from jupyter_gpu.core.variables import ORDER, VISIBLE
from jupyter_gpu.core.view import listed, value_words

_LATE = "restart the kernel, and set it before anything uses CUDA"
_INTERACTIVE_STEP = 0xFFFFFFF0  # Slurm numbers its special steps from here on
_COUNTS = ("SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")


def variable_checks(
    overview: Overview, facts: Facts, environ: Mapping[str, str]
) -> Iterator[Check]:
    """Yield the checks of the variables, each only where it matters here."""
    yield _visible(overview, environ)
    if overview.inventory.gpus:
        yield _order(overview, environ)
    if environ.get("SLURM_JOB_ID"):
        yield _slurm(overview, environ)
    if facts.foreign_pids or "NVIDIA_VISIBLE_DEVICES" in environ:
        yield _container(overview, facts, environ)


def _visible(overview: Overview, environ: Mapping[str, str]) -> Check:
    visible, process = overview.visible, overview.process
    notes = [note for note in visible.notes if not note.startswith((ON_PURPOSE, f"{ORDER} "))]
    if process is not None and is_late(overview, process):
        return Check(VISIBLE, "warn", " ".join([f"{_late_words(process)}.", *notes]), _LATE)
    before = "" if process is None else _launch_words(process)
    if notes:
        found = " ".join([*notes, f"It was {before[2:]}." if before else ""]).strip()
        return Check(VISIBLE, "warn", found, _mend(overview, environ))
    if visible.value is None:
        return Check(VISIBLE, "ok", f"not set: every GPU is visible{before}")
    indices = listed(device.index for device in visible.devices)
    means = f"physical {indices}" if indices else "no GPU"
    return Check(VISIBLE, "ok", f"{value_words(visible.value)}: {means}{before}")


def _mend(overview: Overview, environ: Mapping[str, str]) -> str:
    wrong = sorted(name for name in environ if is_misspelt(name, VISIBLE))
    if wrong:
        shown = value_words(environ[wrong[0]])
        return f"unset {value_words(wrong[0])[1:-1]}, and set {VISIBLE} to {shown} if that is meant"
    own = lease_value(overview)
    if own is not None:
        return f"%env {VISIBLE}={own}"
    mig = next((one.uuid for one in overview.inventory.devices if one.kind == "mig"), None)
    if overview.visible.value is None and mig is not None:
        return f"set {VISIBLE} to the UUID of a MIG device before CUDA starts, as  {mig}"
    return f"set it anew, or  unset {VISIBLE}" if overview.process is None else "set it anew"


def _late_words(process: KernelProcess) -> str:
    now = process.set_now
    found = "not set any more" if now is None else f"{value_words(now)} now"
    force = map_words(process.in_force or ())
    return (
        f"{found}, but that changes nothing in this kernel: in force is {force}"
        f"{_launch_words(process)}"
    )


def _launch_words(process: KernelProcess) -> str:
    """Return how the kernel began, where that is another value than now."""
    if process.launched_with == process.set_now:
        return ""
    if process.launched_with is None:
        return "; launched without it"
    return f"; launched with {value_words(process.launched_with)}"


def _order(overview: Overview, environ: Mapping[str, str]) -> Check:
    value = environ.get(ORDER)
    notes = [note for note in overview.visible.notes if note.startswith(f"{ORDER} ")]
    if notes:
        found = notes[0].removeprefix(f"{ORDER} ").partition(" CUDA_DEVICE_ORDER=")[0]
        fix = f"set {ORDER}=PCI_BUS_ID before CUDA starts; every leased kernel has it"
        return Check(ORDER, "warn", found, fix)
    if value == "PCI_BUS_ID":
        return Check(ORDER, "ok", "PCI_BUS_ID: CUDA counts as nvidia-smi does")
    counted = (gpu for gpu in overview.inventory.gpus if not (gpu.problem or gpu.mig_mode))
    alike = len({gpu.name for gpu in counted}) <= 1
    why = "the GPUs here are alike" if alike else "no number in the value depends on it"
    return Check(ORDER, "ok", f"{value_words(value)}: {why}")


def _slurm(overview: Overview, environ: Mapping[str, str]) -> Check:
    value, job = environ.get(VISIBLE), value_words(environ["SLURM_JOB_ID"])[1:-1]
    name, found = "Slurm", f"job {job}"
    if not environ.get("SLURMD_NODENAME"):
        found += " is only an allocation in this shell: its GPUs are on another machine, or not set"
        return Check(name, "warn", found, "start the server or the kernel in the job, with  srun")
    mistaken = _count_taken_for_a_list(overview, value, environ)
    if mistaken is not None:
        found += (
            f": {VISIBLE} is {value_words(value)}, the number of GPUs in {mistaken}, not a list"
        )
        fix = f"set nothing: Slurm has set {VISIBLE} for the step already"
        return Check(name, "warn", found, fix)
    if environ.get("SLURM_SHARDS_ON_NODE"):
        found += " has shards of its GPUs, so other jobs use them too"
    source = _physical_source(environ)
    if source is None:
        found += f"; {VISIBLE} and NVML say what it has"
        return Check(name, "ok", found)
    numbers = value_words(environ[source])[1:-1]
    if environ[source] == value:
        return Check(name, "ok", f"{found}; {source} and {VISIBLE} agree on {numbers}")
    local = value_words(value)
    found += f"; {source} {numbers} counts on the whole node, {VISIBLE} {local} inside the job"
    return Check(name, "ok", found)


def _physical_source(environ: Mapping[str, str]) -> str | None:
    """Return which variable has the node's own numbers of what this step was given."""
    step = environ.get("SLURM_STEP_ID", "")
    special = step.isdecimal() and int(step) >= _INTERACTIVE_STEP
    if environ.get("SLURM_STEP_GPUS") and not special:
        return "SLURM_STEP_GPUS"
    return "SLURM_JOB_GPUS" if environ.get("SLURM_JOB_GPUS") else None


def _count_taken_for_a_list(
    overview: Overview, value: str | None, environ: Mapping[str, str]
) -> str | None:
    """Return the variable whose count stands in CUDA_VISIBLE_DEVICES, or None."""
    text = (value or "").strip()
    if not re.fullmatch(r"[1-9][0-9]*", text):
        return None
    if text in (environ.get("SLURM_STEP_GPUS"), environ.get("SLURM_JOB_GPUS")):
        return None
    # A job of one GPU may well have been given number 1.
    certain = text != "1" or not overview.visible.devices
    return next((name for name in _COUNTS if certain and environ.get(name) == text), None)


def _container(overview: Overview, facts: Facts, environ: Mapping[str, str]) -> Check:
    given = environ.get("NVIDIA_VISIBLE_DEVICES")
    gpus = overview.inventory.gpus
    if given is not None and given.strip() in ("", "void", "none") and not gpus:
        found = f"NVIDIA_VISIBLE_DEVICES is {value_words(given)}: this container has no GPU"
        return Check(
            "container", "warn", found, "start it with  --gpus all  if it should have some"
        )
    words = []
    if given is not None:
        words.append(f"NVIDIA_VISIBLE_DEVICES is {value_words(given)}")
        migs = sum(text.strip().startswith("MIG-") for text in given.split(","))
        if migs > 1:
            words.append(
                f"it names {in_words(migs, 'MIG device')}, and of those a process gets one for "
                "certain, more only where the driver says so"
            )
    if facts.foreign_pids:
        words.append(
            "NVML tells the host's pids, so processes on a GPU can be named only if they are in "
            "this container"
        )
    return Check("container", "ok", "; ".join(words))
