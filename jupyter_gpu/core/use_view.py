"""The answer of ``%gpu use``: the new map, or what the restart will bring. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.machine_view import yours_words
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.standing import holder_name
from jupyter_gpu.core.view import (
    Column,
    Table,
    View,
    listed,
    machine_words,
    memory_words,
    model_words,
)

_COLUMNS = (
    Column("Visible = physical"),
    Column("Model", shrinks=True),
    Column("Memory", right=True),
)


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that has been made: the devices in visible order, those before, and the lease."""

    devices: tuple[Device, ...]
    before: tuple[Device, ...] = ()
    lease: Lease | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A request that waits for the restart; ``restarting`` when that has begun."""

    restarting: bool = False
    notes: tuple[str, ...] = ()


def changed_view(changed: Changed, inventory: Inventory, now: datetime) -> View:
    """Return the view of a change that has been made at once.

    Parameters
    ----------
    changed
        What it has come to.
    inventory
        The machine.
    now
        The present, in the reader's time zone.
    """
    devices, lines = changed.devices, []
    rows = tuple(
        (f"cuda:{ordinal} = physical {device.index}", model_words(device), memory_words(device))
        for ordinal, device in enumerate(devices)
    )
    if changed.lease is not None and devices:
        record = changed.lease.record
        lines.append(f"Leased since {since_in_words(record.since, now)} {_for(changed.lease)}.")
        if record.because:
            lines.append(f"Why these: {'; '.join(record.because)}.")
        lines.extend(record.caps)
    if {device.uuid for device in changed.before} != {device.uuid for device in devices}:
        had = listed(device.index for device in changed.before)
        lines.append(f"Before: {f'physical {had}' if had else 'no GPU of its own'}.")
    return View(
        title=_title(changed, inventory),
        machine=machine_words(inventory),
        tables=(Table("Devices of this kernel", _COLUMNS, rows),) if rows else (),
        lines=tuple(lines),
        notes=changed.notes,
    )


def left_view(request: Request, left: Left, inventory: Inventory) -> View:
    """Return the view of a request that waits for the restart."""
    words = request.in_words()
    title = f"{words[0].upper()}{words[1:]}: {'with the restart' if left.restarting else 'not yet'}"
    return View(title=title, machine=machine_words(inventory), lines=left.notes)


def count_note(what: str | None, devices: tuple[Device, ...], inventory: Inventory) -> str | None:
    """Return a note where a number that was meant as how many is a physical index too.

    None where that device came with it, or where nothing has this index.
    """
    if what is None or not what.isdigit() or int(what) == 0:
        return None
    if int(what) not in {gpu.index for gpu in inventory.gpus} - {d.index for d in devices}:
        return None
    return f"{what} is how many. For physical {what}:  %gpu use --devices {what}"


def changed_answer(changed: Changed, request: Request) -> dict[str, object]:
    """Return the same for a program."""
    return {
        **_answer(request, "now"),
        "devices": [
            {"ordinal": ordinal, "index": device.index, "uuid": device.uuid}
            for ordinal, device in enumerate(changed.devices)
        ],
        "lease": None if changed.lease is None else changed.lease.as_json(),
        "notes": list(changed.notes),
    }


def left_answer(request: Request, left: Left) -> dict[str, object]:
    """Return the same for a program; the devices are null, because nothing has changed."""
    return {
        **_answer(request, "restart"),
        "restarting": left.restarting,
        "devices": None,
        "lease": None,
        "notes": list(left.notes),
    }


def _answer(request: Request, when: str) -> dict[str, object]:
    return {"schema": 1, "when": when, "restarting": False, "request": request.as_options()}


def _title(changed: Changed, inventory: Inventory) -> str:
    devices = changed.devices
    if not devices:
        return "This kernel has no GPU now"
    if changed.lease is not None:
        return yours_words(changed.lease.record, inventory, " now")
    verb = "is" if len(devices) == 1 else "are"
    return f"{len(devices)} of {in_words(len(inventory.gpus))} {verb} yours now"


def _for(lease: Lease) -> str:
    if lease.record.owner.kind == "kernel" and lease.record.owner.notebook is None:
        return "for this kernel; ends with it"
    return f"for {holder_name(lease)}; ends with this kernel"
