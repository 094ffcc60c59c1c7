"""The views of ``status``, ``who`` and ``map``: the machine as anybody sees it. Pure."""

from __future__ import annotations

from datetime import datetime

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import Lease, Waiter
from jupyter_gpu.core.overview import Leasing, Overview
from jupyter_gpu.core.policy import USUAL_REASON
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.refusal import idle_in_words, since_in_words
from jupyter_gpu.core.standing import (
    FREE,
    Standing,
    holder_name,
    holder_words,
    owner_name,
    standing,
)
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
    spans,
    value_words,
)
from jupyter_gpu.core.visibility import Visible

_STATUS = (
    Column("Physical"),
    Column("Model", shrinks=True),
    Column("Memory", right=True),
    Column("Load", right=True),
    Column("Held by"),
)
_LEASES = (
    Column("Physical"),
    Column("User"),
    Column("Holder", shrinks=True),
    Column("Since"),
    Column("Memory", right=True),
    Column("More"),
)
_QUEUE = (
    Column("Place"),
    Column("User"),
    Column("Holder", shrinks=True),
    Column("Since"),
    Column("Asks for"),
)
_MAP = (Column("Visible = physical"), Column("Model", shrinks=True), Column("UUID"))
_USER_LENGTH = 16
_CUINIT = {100: "100 (no device)", 101: "101 (invalid device: the same one twice)"}


def status_view(overview: Overview, now: datetime) -> View:
    """Return every device with its memory, its load and its holder; ``now`` in local time."""
    inventory = overview.inventory
    standings = tuple(standing(device, overview) for device in inventory.devices)
    rows = tuple(
        (
            _place(found.device),
            model_words(found.device),
            memory_words(found.device),
            load_words(found.device),
            _held_by(found, now),
        )
        for found in standings
    )
    return View(
        title=_title(standings, overview.leasing),
        machine=machine_words(inventory),
        tables=(Table("Devices of this machine", _STATUS, rows),) if rows else (),
        lines=(_visible_line(overview.visible, inventory),) if rows else (),
        notes=(*overview.visible.notes, *machine_notes(inventory, overview.leasing)),
    )


def who_view(overview: Overview, now: datetime) -> View:
    """Return every lease with its holder, and those who wait; ``now`` in local time."""
    leases, waiters = overview.holdings.leases, overview.holdings.waiters
    tables = []
    if leases:
        rows = tuple(_lease_row(lease, overview, now) for lease in leases)
        tables.append(Table("Leases", _LEASES, rows))
    if waiters:
        rows = tuple(_waiter_row(place, waiter, now) for place, waiter in enumerate(waiters, 1))
        tables.append(Table("Waiting", _QUEUE, rows))
    title = f"{in_words(len(leases), 'lease')} on this machine" if leases else "No GPU is leased"
    if not overview.leasing.exclusive:
        title = "No lease can be seen here"
    groups: dict[str, list[int]] = {}
    for device in overview.inventory.gpus if overview.leasing.exclusive else ():
        found = standing(device, overview)
        if not found.leases:
            groups.setdefault(found.words, []).append(device.index)
    rest = " · ".join(f"{listed(indices)} {words}" for words, indices in groups.items())
    return View(
        title=title,
        machine=machine_words(overview.inventory),
        tables=tuple(tables),
        lines=(f"Not leased: {rest}",) if rest else (),
        notes=machine_notes(overview.inventory, overview.leasing),
    )


def map_view(visible: Visible, inventory: Inventory) -> View:
    """Return what the CUDA driver makes of a value of CUDA_VISIBLE_DEVICES."""
    rows = []
    for shown in visible.devices:
        device = inventory.find(shown.uuid)
        model = "–" if device is None else model_words(device)
        rows.append((f"cuda:{shown.ordinal} = physical {shown.index}", model, shown.uuid))
    lines = []
    if visible.cuinit is None:
        lines.append("There is no machine to ask, so only the text itself is judged.")
    elif visible.cuinit:
        lines.append(f"No GPU is visible: cuInit fails with {_CUINIT[visible.cuinit]}.")
    problem = () if inventory.problem is None else (inventory.problem,)
    return View(
        title=f"CUDA_VISIBLE_DEVICES: {value_words(visible.value)}",
        machine=machine_words(inventory),
        tables=(Table("Visible devices", _MAP, tuple(rows)),) if rows else (),
        lines=tuple(lines),
        notes=(*visible.notes, *problem),
    )


def _title(standings: tuple[Standing, ...], leasing: Leasing) -> str:
    gpus = [found for found in standings if found.device.kind == "gpu"]
    if not gpus:
        return "No GPU can be seen here"
    if not leasing.exclusive:
        return in_words(len(gpus))
    free = sum(found.words == FREE for found in gpus)
    return f"{in_words(len(gpus))}, {free or 'none'} free"


def _place(device: Device) -> str:
    return str(device.index) if device.kind == "gpu" else f"{device.index} part"


def _held_by(found: Standing, now: datetime) -> str:
    if not found.leases:
        return found.words
    return "; ".join(
        f"{holder_words(lease, now)} since {since_in_words(lease.record.since, now)}"
        for lease in found.leases
    )


def _visible_line(visible: Visible, inventory: Inventory) -> str:
    if visible.value is None and len(visible.devices) == len(inventory.gpus):
        return "CUDA_VISIBLE_DEVICES is not set here: every GPU is visible."
    shown = ", ".join(f"cuda:{d.ordinal} = physical {d.index}" for d in visible.devices)
    value = value_words(visible.value)
    return f"CUDA_VISIBLE_DEVICES is {value} here: {shown or 'no GPU is visible'}."


def _lease_row(lease: Lease, overview: Overview, now: datetime) -> tuple[str, ...]:
    record, used = lease.record, overview.memory_used_on(lease)
    more = []
    if lease.state == "idle":
        more.append(idle_in_words(record.owner.idle_since, now))
    if lease.pids:
        more.append(f"pid {listed(lease.pids[:3])}{', …' if len(lease.pids) > 3 else ''}")  # noqa: PLR2004 - a few are enough
    if lease.state == "draining":
        more.append(lease.state)
    if lease.note is not None:
        more.append(lease.note)
    if record.ancestors:
        more.append("inside another lease")
    if record.because not in ((), (USUAL_REASON,)):
        more.append(f"chosen: {', '.join(record.because)}")
    return (
        spans(record.indices),
        _shown_user(lease.user),
        holder_name(lease),
        since_in_words(record.since, now),
        "" if used is None else f"{in_gib(used)} GiB",
        "; ".join(more),
    )


def _shown_user(user: str | None) -> str:
    name = user or "unknown user"
    return name if len(name) <= _USER_LENGTH else f"{name[: _USER_LENGTH - 1]}…"


def _waiter_row(place: int, waiter: Waiter, now: datetime) -> tuple[str, ...]:
    record = waiter.record
    asks = record.request.in_words()
    return (
        str(place),
        _shown_user(waiter.user),
        owner_name(record.owner),
        since_in_words(record.since, now),
        f"{asks} (has stopped looking)" if waiter.stalled else asks,
    )
