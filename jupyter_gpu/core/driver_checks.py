"""The checks of the machine: its driver, NVML, the CUDA driver itself, and each GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_gpu.core.checks import Check, halves
from jupyter_gpu.core.cuda_words import cuinit_fix, cuinit_words
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.facts import DriverAnswer, Facts
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.nvml_words import NO_PACKAGE, mig_problem
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import listed, machine_words
from jupyter_gpu.core.visibility import read

_CUDA = "CUDA driver"
_CAPABILITIES = (
    "install the driver's libcuda.so.1, or start this container with "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
_DIFFERS = (
    "believe the CUDA driver; to be sure of a device, name it in CUDA_VISIBLE_DEVICES by its UUID"
)


def machine_checks(overview: Overview, facts: Facts, *, confined: bool) -> Iterator[Check]:
    """Yield the checks of the machine as a whole, then of each GPU that has something to say.

    ``confined`` is true in a job or a container, where GPUs may be hidden on purpose.
    """
    yield from _driver(overview.inventory, facts, confined=confined)
    yield from _cuda_driver(overview, facts.driver)
    yield from _gpus(overview.inventory)


def _driver(inventory: Inventory, facts: Facts, *, confined: bool) -> Iterator[Check]:
    count = in_words(len(inventory.gpus))
    if inventory.source == "simulated":
        yield Check("driver", "ok", f"{machine_words(inventory)}, {count}")
        return
    if not inventory.devices and inventory.problem is not None:
        yield _no_devices(inventory, inventory.problem, facts)
        return
    yield Check("driver", "ok", machine_words(inventory) or "its version is not known")
    if inventory.problem is None:
        yield Check("NVML", "ok", f"works, and lists {count}")
        return
    found, fix = halves(clean(inventory.problem))
    found = f"lists {count}; {found}"
    yield Check("NVML", "ok", found) if confined else Check("NVML", "warn", found, fix)


def _no_devices(inventory: Inventory, problem: str, facts: Facts) -> Check:
    found, fix = halves(clean(problem))
    # A machine without a driver is in order: its kernels run without a GPU. Not so where there is a
    # driver that fails, or a description that cannot be read.
    bad = inventory.source == "nvml" or not fix
    name = "NVML" if inventory.source == "nvml" or problem == NO_PACKAGE else "driver"
    if facts.kernel_module is not None:
        found = f"{found} (the kernel's module is {facts.kernel_module})"
    return Check(name, "fail" if bad else "warn", found, fix or "mend the description")


def _cuda_driver(overview: Overview, answer: DriverAnswer | None) -> Iterator[Check]:
    """Yield what a fresh process with these variables gets from the CUDA driver."""
    inventory = overview.inventory
    if answer is None:
        if inventory.source == "simulated":
            yield Check(_CUDA, "ok", "not asked, because the machine is simulated")
    elif not answer.found:
        if inventory.gpus:
            found = f"there is no libcuda.so.1, though NVML lists {in_words(len(inventory.gpus))}"
            yield Check(_CUDA, "fail", f"{found}: no program can use CUDA", _CAPABILITIES)
        else:
            yield Check(_CUDA, "ok", "there is no libcuda.so.1 to ask")
    elif answer.problem is not None or answer.cuinit is None:
        found = f"a fresh process that asked it got no answer: {answer.problem or 'unknown'}"
        yield Check(_CUDA, "fail", clean(found), "look at  dmesg  for lines with NVRM or Xid")
    elif answer.cuinit:
        yield _refused(overview, answer.cuinit)
    else:
        yield _seen(overview, answer)


def _refused(overview: Overview, code: int) -> Check:
    found = f"a fresh process gets {cuinit_words(code)}"
    if not overview.inventory.gpus and code == overview.visible.cuinit:
        return Check(_CUDA, "ok", f"{found}, and NVML lists none")
    if code == overview.visible.cuinit:
        return Check(_CUDA, "ok", f"{found}; that is what {VISIBLE} says")
    return Check(_CUDA, "fail", f"{found}; {_nvml_counts(overview.inventory)}", cuinit_fix(code))


def _seen(overview: Overview, answer: DriverAnswer) -> Check:
    inventory = overview.inventory
    by_digits = {_digits(device.uuid): device for device in inventory.devices}
    devices = [by_digits.get(digits) for digits in answer.uuids]
    shown = ", ".join(f"cuda:{n} = {_place(device)}" for n, device in enumerate(devices))
    count = in_words(len(devices), "device")
    counts = f"shows a fresh process {count} ({shown}); {_nvml_counts(inventory)}"
    if inventory.problem is not None and not inventory.devices:
        return Check(_CUDA, "ok", counts)
    expected = [_digits(device.uuid) for device in overview.visible.devices]
    if list(answer.uuids) == expected or _is_named(overview, answer.uuids):
        return Check(_CUDA, "ok", counts)
    read_as = listed(device.index for device in overview.visible.devices)
    meant = f"physical {read_as}" if read_as else "no GPU"
    return Check(
        _CUDA, "warn", f"{counts}; read by the rules, the variable means {meant}", _fix(overview)
    )


def _fix(overview: Overview) -> str:
    ordered = any(note.startswith("CUDA_DEVICE_ORDER") for note in overview.visible.notes)
    return "set CUDA_DEVICE_ORDER=PCI_BUS_ID before CUDA starts" if ordered else _DIFFERS


def _is_named(overview: Overview, uuids: tuple[str, ...]) -> bool:
    """Tell whether the driver gives some of the MIG devices that a list names, in its order.

    How many of them a process gets depends on the driver, so any number of them is right.
    """
    value = overview.visible.value
    if value is None:
        return False
    named = [_digits(device.uuid) for device in read(value, overview.inventory).devices]
    return bool(uuids) and named[: len(uuids)] == list(uuids)


def _nvml_counts(inventory: Inventory) -> str:
    migs = sum(device.kind == "mig" for device in inventory.devices)
    parts = f" and {in_words(migs, 'MIG device')}" if migs else ""
    return f"NVML lists {in_words(len(inventory.gpus))}{parts}"


def _digits(uuid: str | None) -> str:
    return (uuid or "").partition("-")[2].replace("-", "").lower()


def _place(device: Device | None) -> str:
    if device is None:
        return "a device that NVML does not list"
    part = "" if device.kind == "gpu" else f"{device.profile or 'a MIG device'} of "
    return f"{part}physical {device.index}"


def _gpus(inventory: Inventory) -> Iterator[Check]:
    for device in inventory.devices:
        name = f"GPU {device.index}"
        if device.mig_mode:
            yield _split(device, inventory)
        elif device.problem is not None:
            found, fix = halves(clean(device.problem))
            yield Check(name, "warn", found, fix or f"nvidia-smi -i {device.index}")
        elif device.exclusive and device.kind == "gpu":
            found = (
                "its compute mode lets in one process at a time, or none, so that a busy GPU "
                "fails whatever memory is free, and it is not leased"
            )
            yield Check(name, "warn", found, f"sudo nvidia-smi -i {device.index} -c DEFAULT")


def _split(gpu: Device, inventory: Inventory) -> Check:
    parts = [device for device in inventory.devices if device.parent == gpu.uuid]
    if not parts:
        found, fix = halves(mig_problem(gpu.index, 0))
        return Check("MIG", "warn", found, fix)
    profiles = ", ".join(device.profile or "a part" for device in parts)
    found = f"GPU {gpu.index} is split in {len(parts)} ({clean(profiles)})"
    more = "; a process gets one of them for certain, more only where the driver says so"
    return Check("MIG", "ok", f"{found}{more if len(parts) > 1 else ''}")
