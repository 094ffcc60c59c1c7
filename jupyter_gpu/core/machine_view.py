"""The views of ``status``, ``who`` and ``map``: the machine as anybody sees it. Pure."""

from __future__ import annotations

from datetime import datetime

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import Lease, Record, Waiter, clean
from jupyter_gpu.core.overview import Leasing, Overview
from jupyter_gpu.core.policy import HAD_LAST_TIME, HELD_ALREADY, SHARED_ALREADY, USUAL_REASON
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.refusal import idle_in_words, since_in_words
from jupyter_gpu.core.standing import (
    FREE,
    Standing,
    holder_name,
    holder_words,
    outlives_its_outer,
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
_WAITERS_NAMED = 3
_UUID_LENGTH = 12  # "MIG-1f2e3d4c", longer only where that is the start of another one too
# Reasons for a choice that nobody else asks about; ``%gpu`` has them.
_USUAL_REASONS = (USUAL_REASON, SHARED_ALREADY, HAD_LAST_TIME, HELD_ALREADY)
_CUINIT = {100: "100 (no device)", 101: "101 (invalid device: the same one twice)"}


def status_view(overview: Overview, now: datetime) -> View:
    """Return every device with its memory, its load and its holder; ``now`` in local time."""
    inventory = overview.inventory
    standings = tuple(standing(device, overview) for device in inventory.devices)
    rows = tuple(
        (
            device_words(found.device, inventory),
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
        lines=(
            *((_visible_line(overview.visible, inventory),) if rows else ()),
            *queue_lines(overview),
            *limit_lines(overview),
        ),
        notes=(
            *overview.visible.notes,
            *machine_notes(inventory, overview.leasing),
            *site_notes(overview),
        ),
    )


def who_view(overview: Overview, now: datetime) -> View:
    """Return every lease with its holder, and those who wait; ``now`` in local time."""
    leases, waiters = overview.holdings.leases, overview.holdings.waiters
    tables = []
    if leases:
        rows = tuple(_lease_row(lease, overview, now) for lease in leases)
        tables.append(Table("Leases", _LEASES, rows))
    if waiters:
        held_back = {} if overview.rules is None else overview.rules.held_back
        rows = tuple(
            _waiter_row(place, waiter, now, held_back.get(waiter.record.id))
            for place, waiter in enumerate(waiters, 1)
        )
        tables.append(Table("Waiting", _QUEUE, rows))
    title = f"{in_words(len(leases), 'lease')} on this machine" if leases else "No GPU is leased"
    if not overview.leasing.exclusive:
        title = "No lease can be seen here"
    groups: dict[str, list[str]] = {}
    for device in overview.inventory.devices if overview.leasing.exclusive else ():
        found = standing(device, overview)
        if found.words and not device.mig_mode:
            name = device_words(device, overview.inventory)
            groups.setdefault(found.words, []).append(name)
    rest = " · ".join(f"{', '.join(names)} {words}" for words, names in groups.items())
    return View(
        title=title,
        machine=machine_words(overview.inventory),
        tables=tuple(tables),
        lines=(*((full_stop(f"Not leased: {rest}"),) if rest else ()), *limit_lines(overview)),
        notes=(*machine_notes(overview.inventory, overview.leasing), *site_notes(overview)),
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
    words = f"{in_words(len(gpus))}, {free or 'none'} free"
    in_part = sum(bool(found.leases) and found.free_units > 0 for found in gpus)
    if in_part:
        words += f", {in_part} in part"
    parts = [found for found in standings if found.device.kind == "mig"]
    if parts:
        free = sum(found.words == FREE for found in parts)
        words += f"; {in_words(len(parts), 'MIG device')}, {free or 'none'} free"
    return words


def device_words(device: Device, inventory: Inventory) -> str:
    """Return a device as a list of them names it: ``"3"``, ``"1 (MIG-1f2e3d4c 1g.18gb)"``."""
    if device.kind == "gpu":
        return str(device.index)
    return f"{device.index} ({_mig_words(device, inventory)})"


def _mig_words(device: Device, inventory: Inventory) -> str:
    name = _start_of_uuid(device, inventory) or "MIG"
    return f"{name} {clean(device.profile)}" if device.profile else name


def _start_of_uuid(device: Device, inventory: Inventory) -> str:
    """Return as much of a UUID as means no other device; empty without one."""
    uuid = clean(device.uuid or "")
    others = [(other.uuid or "").lower() for other in inventory.devices if other != device]
    for length in range(_UUID_LENGTH, len(uuid)):
        if not any(other.startswith(uuid[:length].lower()) for other in others):
            return uuid[:length]
    return uuid


def holding_words(record: Record, inventory: Inventory) -> str:
    """Return what a lease has: ``"physical 3, 5"``, ``"¼ of physical 0"``.

    A MIG device is named by its profile: ``"MIG device 1g.18gb of physical 1"``.
    """
    parts = _mig_devices(record, inventory)
    words = ", ".join(f"MIG device {_part_words(part, inventory)}" for part in parts)
    if not parts:
        words = f"physical {listed(record.indices) or 'none'}"
    elif len(parts) < len(record.uuids):
        indices = {*record.indices} - {part.index for part in parts}
        words += f", physical {listed(sorted(indices)) or 'unknown'}"
    return f"{_fraction(record)} of {words}" if record.share_words else words


def yours_words(record: Record, inventory: Inventory, more: str = "") -> str:
    """Return the answer to whose the devices of a lease are, for its holder.

    Parameters
    ----------
    record
        The holder's own lease.
    inventory
        The machine.
    more
        What follows "yours" at once, such as ``" now"``.
    """
    count, total = len(record.uuids), len(inventory.gpus)
    verb = "is" if count == 1 else "are"
    if record.share_words:
        machine = f" ({in_words(total)} on this machine)" if total else ""
        return f"{holding_words(record, inventory)} {verb} yours{more}{machine}"
    parts = _mig_devices(record, inventory)
    if parts and len(parts) == count:
        names = ", ".join(_part_words(part, inventory) for part in parts)
        return f"{in_words(count, 'MIG device')} {verb} yours{more}: {names}"
    if parts:
        words = holding_words(record, inventory)
        return f"{in_words(count, 'device')} {verb} yours{more}: {words}"
    of_all = f"{count} of {in_words(total)}" if total else in_words(count)
    return f"{of_all} {verb} yours{more}"


def _fraction(record: Record) -> str:
    return record.share_words.removesuffix(" GPU")


def _mig_devices(record: Record, inventory: Inventory) -> tuple[Device, ...]:
    found = map(inventory.find, record.uuids)
    return tuple(device for device in found if device is not None and device.kind == "mig")


def _part_words(device: Device, inventory: Inventory) -> str:
    """Return ``"1g.18gb of physical 1"``, with the UUID's start where the profile is unknown."""
    name = clean(device.profile or "") or _start_of_uuid(device, inventory)
    return f"{name} of physical {device.index}".lstrip()


def full_stop(sentence: str) -> str:
    """Return a sentence with the full stop that words of somebody's own may have already."""
    return sentence if sentence.endswith(".") else f"{sentence}."


def queue_lines(overview: Overview) -> tuple[str, ...]:
    """Return one line about who waits, none where nobody does."""
    waiters = overview.holdings.waiters
    if not waiters:
        return ()
    named = [
        f"{waiter.user or 'unknown user'} for {waiter.record.request.in_words()}"
        for waiter in waiters[:_WAITERS_NAMED]
    ]
    more = f" and {len(waiters) - len(named)} more" if len(waiters) > len(named) else ""
    return (f"Waiting, in this order: {'; '.join(named)}{more}.",)


def limit_lines(overview: Overview) -> tuple[str, ...]:
    """Return what the site's rules mean for who looks, none where there are no such rules."""
    rules = overview.rules
    if rules is None:
        return ()
    reserved: dict[str, list[str]] = {}
    for device in overview.inventory.devices:
        why = rules.reserved.get(device.uuid or "")
        if why is not None:
            name = device_words(device, overview.inventory)
            reserved.setdefault(why, []).append(name)
    words = [f"{', '.join(names)} {why}" for why, names in reserved.items()]
    closed = (full_stop(f"Not open to you: {' · '.join(words)}"),) if words else ()
    return (*(() if rules.limit is None else (rules.limit,)), *closed)


def site_notes(overview: Overview) -> tuple[str, ...]:
    """Return what is wrong with the rules, or with the list of holds."""
    rules = None if overview.rules is None else overview.rules.problem
    return tuple(problem for problem in (rules, overview.holds.problem) if problem is not None)


def _held_by(found: Standing, now: datetime) -> str:
    holders = [
        f"{holder_words(lease, now)} since {since_in_words(lease.record.since, now)}"
        for lease in found.leases
    ]
    return "; ".join([*holders, *([found.words] if found.words else [])])


def _visible_line(visible: Visible, inventory: Inventory) -> str:
    if visible.value is None and len(visible.devices) == len(inventory.gpus):
        return "CUDA_VISIBLE_DEVICES is not set here: every GPU is visible."
    shown = ", ".join(f"cuda:{d.ordinal} = physical {d.index}" for d in visible.devices)
    value = value_words(visible.value)
    return f"CUDA_VISIBLE_DEVICES is {value} here: {shown or 'no GPU is visible'}."


def _lease_row(lease: Lease, overview: Overview, now: datetime) -> tuple[str, ...]:
    record, used = lease.record, overview.memory_used_on(lease)
    mig = _mig_devices(record, overview.inventory)
    more = [_mig_words(part, overview.inventory) for part in mig]
    if record.share_words:
        more.append(record.share_words)
    if lease.state == "idle":
        more.append(idle_in_words(record.owner.idle_since, now))
    if lease.pids:
        more.append(f"pid {listed(lease.pids[:3])}{', …' if len(lease.pids) > 3 else ''}")  # noqa: PLR2004 - a few are enough
    if lease.state == "draining":
        more.append(lease.state)
    if lease.note is not None:
        more.append(lease.note)
    if record.ancestors:
        on_devices = map(overview.holdings.on, record.uuids)
        ended = any(outlives_its_outer(lease, others) for others in on_devices)
        more.append("inside a lease that has ended" if ended else "inside another lease")
    because = [reason for reason in record.because if not reason.endswith(_USUAL_REASONS)]
    if because:
        more.append(f"chosen: {', '.join(because)}")
    physical = spans(dict.fromkeys(record.indices))
    return (
        # Which MIG devices they are stands last: a row has too little room for their UUIDs.
        f"{physical} ({'MIG' if len(mig) == 1 else f'{len(mig)} MIG'})" if mig else physical,
        _shown_user(lease.user),
        holder_name(lease),
        since_in_words(record.since, now),
        "" if used is None else f"{in_gib(used)} GiB",
        "; ".join(more),
    )


def _shown_user(user: str | None) -> str:
    name = user or "unknown user"
    return name if len(name) <= _USER_LENGTH else f"{name[: _USER_LENGTH - 1]}…"


def _waiter_row(
    place: int, waiter: Waiter, now: datetime, held_back: str | None
) -> tuple[str, ...]:
    record = waiter.record
    asks = record.request.in_words()
    if held_back is not None:
        asks = f"{asks} (its own limit: {held_back})"
    return (
        str(place),
        _shown_user(waiter.user),
        owner_name(record.owner),
        since_in_words(record.since, now),
        f"{asks} (has stopped looking)" if waiter.stalled else asks,
    )
