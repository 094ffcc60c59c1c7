"""The view of ``%gpu``: which devices this kernel has, what CUDA does, who has the rest. Pure."""

from __future__ import annotations

from datetime import datetime

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.history import cause_words, import_words
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.late import (
    in_vain,
    is_late,
    outside_lease,
    outside_note,
    stale_words,
    ways_to_change,
)
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.machine_view import (
    device_words,
    full_stop,
    holding_words,
    limit_lines,
    queue_lines,
    site_notes,
    yours_words,
)
from jupyter_gpu.core.notes import ON_PURPOSE
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.standing import holder_name, holder_words, standing, standing_words
from jupyter_gpu.core.view import (
    Column,
    Table,
    View,
    listed,
    load_words,
    machine_notes,
    machine_words,
    memory_words,
    model_words,
    value_words,
)

_COLUMNS = (
    Column("Visible = physical"),
    Column("Model", shrinks=True),
    Column("Memory", right=True),
    Column("This kernel"),
    Column("Load", right=True),
)
_STATES = {
    "open": "CUDA is open: nothing has initialised it, so a change of CUDA_VISIBLE_DEVICES "
    "still counts.",
    "frozen": "CUDA is frozen: it is initialised in this kernel, so its devices stay the same "
    "until a restart.",
    "absent": "CUDA is absent: there is no working driver in this kernel.",
    "forked": "CUDA is not asked here: this process was forked from a kernel, and cannot use CUDA "
    "if that kernel had initialised it.",
    "simulated": "CUDA is simulated: no driver is open or frozen here.",
}
_FORKED_FROZEN = (
    "This process was forked from a kernel that had initialised CUDA: CUDA cannot be used here. "
    'Start such workers with multiprocessing\'s "spawn".'
)
_FORKED_OPEN = (
    "This process was forked from a kernel in which CUDA was still open; CUDA is not asked here."
)
# How the wrapper's notice begins where a kernel could not have what it asked for.
_NO_GPU = "This kernel has no GPU"
_IN_FORCE_UNKNOWN = {"open": "– (open)", "simulated": "–, simulated"}


def kernel_view(overview: Overview, process: KernelProcess, now: datetime) -> View:
    """Return the view of ``%gpu``.

    Parameters
    ----------
    overview
        The machine, with this process as the kernel that asks.
    process
        That process.
    now
        The present, in the reader's time zone.
    """
    rows = overview.shown
    lines = [state_words(process), _values(process)]
    if overview.lease is not None:
        lines.extend(lease_lines(overview.lease, process, now))
    elif rows and process.lease_id is None and overview.leasing.exclusive:
        lines.insert(0, "Pick a PyTorch (n GPUs) kernel to have some to yourself.")
    sharing = _sharing(overview, now)
    if sharing:
        lines.append(sharing)
    others = others_words(overview, now)
    if others:
        lines.insert(len(lines) if overview.lease is not None else 1, others)
    shown = tuple(_row(row, overview, process) for row in rows)
    hidden = tuple(_hidden_row(device, overview, process) for device in _hidden(overview, rows))
    table = Table("Devices of this kernel", _COLUMNS, (*shown, *hidden))
    return View(
        title=title_words(overview, rows),
        machine=machine_words(overview.inventory),
        notices=process.notices,
        tables=(table,) if table.rows else (),
        lines=(*lines, *queue_lines(overview), *limit_lines(overview)),
        notes=(
            *mismatches(overview, process, rows),
            *machine_notes(overview.inventory, overview.leasing),
            *site_notes(overview),
            *process.advice,
            *process.missing,
        ),
    )


def title_words(overview: Overview, rows: tuple[InForce, ...]) -> str:
    """Say how many devices are this kernel's; ``rows`` are what is visible in it."""
    total = len(overview.inventory.gpus)
    if overview.lease is not None:
        return _own_title(overview, overview.lease, rows)
    if not total:
        return "NVML lists no GPU now" if rows else "No GPU can be seen here"
    if not rows:
        return f"No GPU is visible in this kernel ({in_words(total)} on this machine)"
    verb = "is" if len(rows) == 1 else "are"
    shown = in_words(total) if len(rows) == total else f"{len(rows)} of {in_words(total)}"
    return f"{shown} {verb} visible here, none leased to this kernel"


def _own_title(overview: Overview, lease: Lease, rows: tuple[InForce, ...]) -> str:
    """Say which devices are this kernel's, and where what is visible is something else."""
    outside, record = outside_lease(overview, rows), lease.record
    if outside:
        own = holding_words(record, overview.inventory)
        return f"{_physical(outside)} visible and not yours; yours: {own}"
    count = len(record.uuids)
    seen = len({row.uuid for row in rows} & set(record.uuids))
    if not overview.inventory.gpus:
        more = ", though NVML lists none now"
    elif seen == count:
        more = ""
    elif not seen:
        more = f", but {'it is not' if count == 1 else 'none of them is'} visible here"
    else:
        more = f", but only {seen} of them {'is' if seen == 1 else 'are'} visible here"
    return yours_words(record, overview.inventory, more)


def _physical(rows: tuple[InForce, ...]) -> str:
    """Return ``"Physical 3 is"``, the beginning of a sentence about devices."""
    indices = listed(row.index for row in rows if row.index is not None) or "unknown"
    return f"Physical {indices} {'is' if len(rows) == 1 else 'are'}"


def _hidden(overview: Overview, rows: tuple[InForce, ...]) -> tuple[Device, ...]:
    """Return the devices that are leased to this kernel and not visible in it."""
    own = () if overview.lease is None else overview.lease.record.uuids
    shown = {row.uuid for row in rows}
    found = (overview.inventory.find(uuid) for uuid in own if uuid not in shown)
    return tuple(device for device in found if device is not None)


def _hidden_row(device: Device, overview: Overview, process: KernelProcess) -> tuple[str, ...]:
    _, *rest = _row(InForce(0, device.index, device.uuid), overview, process)
    return (f"not visible: physical {device.index}", *rest)


def _row(row: InForce, overview: Overview, process: KernelProcess) -> tuple[str, ...]:
    physical = "unknown" if row.index is None else str(row.index)
    name = f"cuda:{row.ordinal} = physical {physical}"
    device = overview.inventory.find(row.uuid) if row.uuid is not None else None
    if device is None:
        return (name, "–", "–", "", "–")
    # In a container a pid may mean another process: overview.seen has only those meant.
    mine = [p for p in device.processes if p.pid == process.pid and p.pid in overview.known]
    own = sum(p.memory_bytes or 0 for p in mine)
    return (
        name,
        model_words(device),
        memory_words(device),
        f"{in_gib(own)} GiB here" if own else "",
        load_words(device),
    )


def _values(process: KernelProcess) -> str:
    if process.in_force is not None:
        physical = ("?" if row.index is None else str(row.index) for row in process.in_force)
        in_force = f"physical {', '.join(physical)}" if process.in_force else "no device"
    else:
        in_force = _IN_FORCE_UNKNOWN.get(process.state, "–")
    launched, now = map(value_words, (process.launched_with, process.set_now))
    started = (
        "launched without it" if process.launched_with is None else f"launched with {launched}"
    )
    by_now = "not set now" if process.set_now is None else f"set now {now}"
    return f"CUDA_VISIBLE_DEVICES: {started}; {by_now}; in force {in_force}"


def lease_lines(lease: Lease, process: KernelProcess, now: datetime) -> tuple[str, ...]:
    """Say whose the lease is and since when, where the request came from, and how hard it caps."""
    record = lease.record
    asked = record.request.in_words()
    origin = "" if record.origin is None else f"Asked for by {_ORIGINS[record.origin]}: {asked}."
    return (_lease_line(lease, process, now), *([origin] if origin else []), *record.caps)


_ORIGINS = {
    "kernelspec": "the kernelspec",
    "notebook": "the notebook itself",
    "server": "the server's configuration",
    "command": "the command line",
    "api": "a program",
    "magic": "%gpu use",
}


def _lease_line(lease: Lease, process: KernelProcess, now: datetime) -> str:
    record = lease.record
    if lease.pids and process.pid not in lease.pids:
        whose = f"by {holder_name(lease)}, which this program runs under"
    elif record.owner.kind == "kernel" and record.owner.notebook is None:
        whose = "for this kernel; ends with it"
    elif record.owner.kind == "kernel":
        whose = f"for {holder_name(lease)}; ends with this kernel"
    else:
        whose = f"by {holder_name(lease)}"
    words = f"Leased since {since_in_words(record.since, now)} {whose}."
    return f"{words} Why these: {'; '.join(record.because)}." if record.because else words


def mismatches(
    overview: Overview, process: KernelProcess, rows: tuple[InForce, ...]
) -> tuple[str, ...]:
    """Return where the value, the driver and the lease do not agree, and the value's own notes."""
    notes = []
    if is_late(overview, process):
        notes.append(f"{in_vain(process)}. {ways_to_change(overview)}")
    else:
        refused = any(notice.startswith(_NO_GPU) for notice in process.notices)
        notes.extend(
            note for note in overview.visible.notes if not (refused and note.startswith(ON_PURPOSE))
        )
    stale = stale_words(overview, process)
    notes.extend(() if stale is None else (stale,))
    lease = overview.lease
    if lease is None:
        if process.lease_id is not None and overview.leasing.problem is None:
            notes.append(
                "The lease that this kernel was started with cannot be found: others may get its "
                "devices. Restart the kernel."
            )
        return tuple(notes)
    if lease.note is not None:
        notes.append(f"The lease: {lease.note}.")
    outside = outside_lease(overview, rows)
    if outside:
        notes.append(outside_note(overview, process, outside))
    return tuple(notes)


def state_words(process: KernelProcess) -> str:
    """Say what CUDA does in this process, since when, and what was imported."""
    history = process.history
    if process.state == "frozen" and history.frozen is not None:
        words = (
            f"CUDA is frozen: {cause_words(history.frozen)} initialised it, so its devices stay "
            "the same until a restart."
        )
    elif process.state == "forked" and history.forked_frozen is not None:
        words = _FORKED_FROZEN if history.forked_frozen else _FORKED_OPEN
    else:
        words = _STATES[process.state]
    if process.state == "frozen" and process.contexts:
        words += f" It has a context on {', '.join(f'cuda:{n}' for n in process.contexts)}."
    by_cell: dict[str, list[str]] = {}
    for one in history.imports:
        by_cell.setdefault(import_words(one), []).append(one.name)
    imported = (
        f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} imported {cell}."
        for cell, names in by_cell.items()
    )
    return " ".join((words, *imported))


def _sharing(overview: Overview, now: datetime) -> str:
    """Return who has the rest of the device of which this kernel has a share; else empty."""
    own = overview.lease
    if own is None or not own.record.share_words:
        return ""
    parts = []
    for uuid in own.record.uuids:
        device = overview.inventory.find(uuid)
        if device is None:
            continue
        found = standing(device, overview)
        holders = [
            holder_words(lease, now)
            for lease in found.leases
            if lease.record.id not in (own.record.id, *own.record.ancestors)
        ]
        rest = " and ".join([*holders, *([found.words] if found.words else [])])
        name = device_words(device, overview.inventory)
        parts.append(full_stop(f"The rest of {name}: {rest or 'nobody has it'}"))
    return " ".join(parts)


def others_words(overview: Overview, now: datetime | None = None) -> str:
    """Return who has the devices that are not this kernel's, or an empty text."""
    own = overview.lease
    groups: dict[str, list[Device]] = {}
    for device in overview.inventory.devices:
        if device.mig_mode or (own is not None and device.uuid in own.record.uuids):
            continue
        groups.setdefault(standing_words(device, overview, now), []).append(device)
    parts = [
        f"{', '.join(device_words(device, overview.inventory) for device in devices)} {words}"
        for words, devices in groups.items()
    ]
    if not parts:
        return ""
    return full_stop(f"{'Devices' if own is None else 'Others'}: {' · '.join(parts)}")
