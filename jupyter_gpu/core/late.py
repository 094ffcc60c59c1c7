"""A change of CUDA_VISIBLE_DEVICES that came too late, or does not do what was meant.

Shown under the cell that made it; ``%gpu`` says the same for as long as it is so. Pure.
"""

from __future__ import annotations

from jupyter_gpu.core.environment import visible_value
from jupyter_gpu.core.history import Change, Frozen, cause_words
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.notes import ON_PURPOSE, value_notes
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.standing import FREE, standing, standing_words
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import View, listed, value_words
from jupyter_gpu.core.visibility import read, visible


def change_view(overview: Overview, change: Change) -> View | None:
    """Return what to show under a cell that changed the variable; None for a change in order."""
    process = overview.process
    if process is None:
        return None
    if process.state == "frozen":
        return _late_view(overview, process) if is_late(overview, process) else None
    notes = (*meant_otherwise(overview, change.after), *_outside_notes(overview, process))
    if not notes or process.state == "forked":
        return None
    shown = listed(device.index for device in overview.visible.devices)
    means = f"physical {shown}" if shown else "no GPU"
    now = f"{VISIBLE} is {_now(change.after)}: CUDA will show {means}."
    return View(title=now, lines=notes)


def export_view(overview: Overview) -> View:
    """Return what to show under a ``!export`` of the variable."""
    value = None if overview.process is None else overview.process.set_now
    return View(
        title=f"The ! line changed nothing here: {VISIBLE} is still {value_words(value)}.",
        lines=(
            "Such a line runs in a shell of its own, which has ended.",
            f"To set it in this kernel:  %env {VISIBLE}=…",
        ),
    )


def misspelt_view(name: str) -> View:
    """Return what to show under a cell that sets a variable whose name has a slip in it."""
    return View(title=f'CUDA does not read "{clean(name)}": did you mean {VISIBLE}?')


def is_late(overview: Overview, process: KernelProcess) -> bool:
    """Return whether the variable means other devices now than those in force.

    Not where it only reads as if: on a machine whose numbering we read in another order than CUDA,
    or with several MIG devices. What tells is the value that the driver has read.
    """
    if process.in_force is None:
        return False
    frozen = process.history.frozen
    values = () if frozen is None else frozen.values
    if not overview.inventory.devices:  # NVML is gone: only the text can be compared
        return bool(values) and process.set_now not in values
    meant = _means(process.set_now, overview)
    could_be = [_means(value, overview) for value in values]
    given = [row.uuid for row in process.in_force]
    if None in given:  # a device that the inventory lacks: only the number can be compared
        return len(meant) != len(given) and meant not in could_be
    if not values and process.set_now == process.launched_with:
        return False
    differs = meant != given
    return differs and (_reads_alike(overview) or given in could_be or meant not in could_be)


def _reads_alike(overview: Overview) -> bool:
    """Return whether we number the GPUs as CUDA does for certain: all alike, and none in parts."""
    gpus = overview.inventory.gpus
    whole = not any(gpu.mig_mode or gpu.problem is not None for gpu in gpus)
    return whole and len({gpu.name for gpu in gpus}) == 1


def _means(value: str | None, overview: Overview) -> list[str | None]:
    devices = visible(value, overview.inventory, environment={}).devices
    return [device.uuid for device in devices]


def ways_to_change(overview: Overview) -> str:
    """Return how one changes devices that are in force already."""
    meant = [str(device.index) for device in overview.visible.devices]
    renews = overview.process is not None and overview.process.renewable
    lease = " (the lease stays)" if overview.lease is not None and renews else ""
    ways = f"To change devices: restart the kernel{lease} and set it first"
    # A number alone would be how many, not which.
    which = f"--devices {meant[0]}" if len(meant) == 1 else ",".join(meant)
    return ways + (f", or  %gpu use {which} --restart" if meant and renews else ".")


def stale_words(overview: Overview, process: KernelProcess) -> str | None:
    """Return a sentence where torch counts other devices than CUDA has, or None."""
    if not any(one.module == "torch" for one in process.history.imports):
        return None
    remembered, given = process.torch_count, process.in_force
    if given is None:
        now = len(overview.visible.devices)
        if remembered in (None, 0, now) or process.state != "open":
            return None
        return (
            f"torch.cuda.device_count() says {remembered}, which it remembers: stale. "
            f"CUDA will show {now}."
        )
    if remembered is None and (process.set_now or "").startswith("MIG-"):
        return None  # then torch asks the driver
    says = len(overview.visible.devices) if remembered is None else remembered
    if says == len(given) or remembered == 0:  # a build without CUDA always counts none
        return None
    return f"torch.cuda.device_count() says {says}, which is stale; it is {len(given)}."


def map_words(rows: tuple[InForce, ...]) -> str:
    """Return ``"cuda:0 = physical 3, cuda:1 = physical 5"``."""
    shown = (
        f"cuda:{row.ordinal} = physical {'unknown' if row.index is None else row.index}"
        for row in rows
    )
    return ", ".join(shown) or "it has no device"


def meant_otherwise(overview: Overview, value: str | None) -> tuple[str, ...]:
    """Return the sentences on a value that its writer likely meant otherwise."""
    if value is None:
        return ()
    inventory = overview.inventory
    notes = value_notes(value, read(value, inventory), inventory, None)
    return tuple(note for note in notes if not note.startswith(ON_PURPOSE))


def outside_lease(overview: Overview, rows: tuple[InForce, ...]) -> tuple[InForce, ...]:
    """Return what is visible without being leased to the kernel; nothing where it has no lease."""
    if overview.lease is None:
        return ()
    return tuple(row for row in rows if row.uuid not in overview.lease.record.uuids)


def lease_value(overview: Overview) -> str | None:
    """Return the value of the variable that means the kernel's lease, None where it has none."""
    if overview.lease is None:
        return None
    inventory = overview.inventory
    found = (inventory.find(uuid) for uuid in overview.lease.record.uuids)
    devices = tuple(device for device in found if device is not None)
    return visible_value(devices, inventory, "auto") if devices else None


def outside_note(overview: Overview, process: KernelProcess, outside: tuple[InForce, ...]) -> str:
    """Say who has what is visible and not leased, and how to go back to what is."""
    parts = []
    for row in outside:
        device = None if row.uuid is None else overview.inventory.find(row.uuid)
        if device is None:
            continue
        words = standing_words(device, overview)
        held = f"held by {words}" if standing(device, overview).leases else words
        free = ", and may go to another kernel" if words == FREE else ""
        parts.append(f"Physical {row.index} is outside this kernel's lease: {held}{free}.")
    own = lease_value(overview)
    if process.in_force is not None or own is None:
        parts.append("Restart the kernel to go back.")
    else:
        parts.append(f"To go back, set {VISIBLE} to {value_words(own)}.")
    return " ".join(parts)


def _outside_notes(overview: Overview, process: KernelProcess) -> tuple[str, ...]:
    shown = overview.visible.devices
    rows = tuple(InForce(device.ordinal, device.index, device.uuid) for device in shown)
    outside = outside_lease(overview, rows)
    return (outside_note(overview, process, outside),) if outside else ()


def _late_view(overview: Overview, process: KernelProcess) -> View:
    cause = cause_words(process.history.frozen or Frozen(None, "before"))
    since = f"{cause} initialised CUDA, and since then {map_words(process.in_force or ())}."
    stale = stale_words(overview, process)
    lines = (since if stale is None else f"{since} {stale}", ways_to_change(overview))
    return View(title=f"{in_vain(process)}:", lines=lines)


def in_vain(process: KernelProcess) -> str:
    """Return the sentence that says that the variable does not count."""
    return f"{VISIBLE} is {_now(process.set_now)}, but that changes nothing in this kernel"


def _now(value: str | None) -> str:
    return "no longer set" if value is None else f"now {value_words(value)}"
