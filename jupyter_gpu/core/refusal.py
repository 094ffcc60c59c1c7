"""The words of a refusal: what was asked, who holds what, what to do. Pure.

Short lines, because JupyterLab's dialog does not wrap them, and no percent sign, because it is
doubled on the way there.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Literal

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Holdings, Lease, LeaseKind, Owner
from jupyter_gpu.core.policy import Candidate, count_wanted, eligible
from jupyter_gpu.core.quantities import as_text, fraction_words, in_words
from jupyter_gpu.core.request import Request

_HOUR, _DAY = 60, 24 * 60  # in minutes
LEASED = "leased"  # why a candidate cannot be had that others hold
_DENOMINATOR = 100


def holder_in_words(owner: Owner) -> str:
    """Return what holds a lease: the notebook's path, the command, or the kernel."""
    if owner.notebook is not None:
        return owner.notebook
    if owner.command is not None:
        return owner.command
    return f"kernel {owner.kernel_id[:8]}" if owner.kernel_id else "a program"


def short_holder(owner: Owner) -> str:
    """Return the same, a notebook by its file name alone."""
    return PurePath(owner.notebook).name if owner.notebook else holder_in_words(owner)


def since_in_words(since: str, now: datetime) -> str:
    """Return an ISO 8601 time as a person says it: ``"09:12"``, ``"yesterday 18:40"``.

    ``now`` is the present in the reader's time zone; an unreadable time is ``"–"``.
    """
    try:
        then = datetime.fromisoformat(since).astimezone(now.tzinfo)
    except (ValueError, OverflowError):
        return "–"
    if then.date() == now.date():
        return f"{then:%H:%M}"
    if then.date() == now.date() - timedelta(days=1):
        return f"yesterday {then:%H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"


def idle_in_words(idle_since: str | None, now: datetime) -> str:
    """Return ``"idle 12 min"``, ``"idle 3 h"``, ``"idle 2 days"``; empty for what is not idle."""
    if idle_since is None:
        return ""
    minutes = int((now - datetime.fromisoformat(idle_since)).total_seconds() // 60)
    if minutes < _HOUR:
        return f"idle {max(minutes, 1)} min"
    if minutes < _DAY:
        return f"idle {minutes // _HOUR} h"
    return f"idle {in_words(minutes // _DAY, 'day')}"


Asked = LeaseKind | Literal["magic"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a refusal: how they asked, who they are, and the present in their time zone.

    ``own`` are the UUIDs of devices that they hold already.
    """

    kind: Asked
    user: str | None
    now: datetime
    own: tuple[str, ...] = ()


def short_lines(message: str, width: int = 76) -> str:
    """Return a message with no line longer than the width; paths stay whole."""
    lines = []
    for line in message.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        lines.extend(
            textwrap.wrap(
                line,
                width,
                subsequent_indent=f"{indent}  ",
                break_long_words=False,
                break_on_hyphens=False,
                drop_whitespace=True,
                replace_whitespace=False,
            )
            or [""]
        )
    return "\n".join(lines)


def refusal(
    request: Request,
    candidates: tuple[Candidate, ...],
    holdings: Holdings,
    reader: Reader,
    notes: tuple[str, ...] = (),
    limit: str | None = None,
) -> str:
    """Return the message for a request that cannot be met now.

    ``limit`` is the sentence of a limit that stands against it, whatever is free.
    """
    pool = tuple(candidate.device for candidate in candidates)
    serving = eligible(request, pool)
    wanted = count_wanted(request, serving)
    by_device = {candidate.device: candidate for candidate in candidates}
    free = [device for device in serving if by_device[device].serves(request)]
    lines = [limit or f"{_none_free(request, wanted)} ({_of(request, pool, whole=not notes)})."]
    told: set[str] = set()
    for device in serving:
        leases = holdings.on(device.uuid)
        reason = by_device[device].reason
        for lease in leases:
            if lease.record.id not in told:
                told.add(lease.record.id)
                lines.append(_lease_line(lease, reader.now))
        # Beside the leases on it, a device may be on hold, kept for others, or in a stranger's use.
        if reason is not None and (not leases or reason != LEASED):
            silent = not leases and device.uuid in holdings.unclaimed
            lines.append(f"  {device.index}  {_SILENT if silent else reason}")
    lines.extend(_room_lines(request, serving, by_device))
    for some, words in (
        ([device for device in free if device.uuid in reader.own], "yours already"),
        (
            [d for d in free if d.uuid not in reader.own],
            "free" if limit else _why_not(request, wanted, len(free)),
        ),
    ):
        if some:
            lines.append(f"  {', '.join(str(device.index) for device in some)}  {words}")
    if holdings.waiters:
        lines.append(f"Waiting before this one: {len(holdings.waiters)}.")
    lines.extend(notes)
    mine = any(
        lease.user == reader.user and lease.record.owner.kind == "kernel"
        for device in serving
        for lease in holdings.on(device.uuid)
    )
    if reader.kind == "magic":  # no dialog, and a line to type stays in one piece
        remedies = _magic_remedies(request, wanted, len(free) if limit is None else 0)
        return "\n".join([short_lines("\n".join(lines)), *remedies])
    enough = len(free) if limit is None else 0
    lines.extend(_remedies(request, reader.kind, wanted, enough, mine=mine))
    return short_lines("\n".join(lines))


def _none_free(request: Request, wanted: int) -> str:
    if request.share is not None or request.profile is not None:
        return f"No {request.amount_in_words().removeprefix('1 ')} is free"
    joined = f" {_JOINED}" if request.topology == "require" else ""
    return "No GPU is free" if wanted == 1 else f"No {in_words(wanted)}{joined} are free"


def _why_not(request: Request, wanted: int, free: int) -> str:
    """Return why devices that are free do not serve."""
    if free < wanted:
        return f"free, but {wanted} are needed"
    if request.topology == "require" and wanted > 1:
        return f"free, but no {wanted} of them are {_JOINED}"
    return "in use below a lease that has ended, or taken at this moment"


_JOINED = "joined by NVLink"


def _room_lines(
    request: Request, serving: tuple[Device, ...], by_device: dict[Device, Candidate]
) -> list[str]:
    """Return how much is left of each device that is not free enough for a share."""
    if request.share is None:
        return []
    lines = []
    for device in serving:
        found = by_device[device]
        if found.reason is None and not found.serves(request):
            left = units_words(found.free_units)
            lines.append(f"  {device.index}  {left} left, {request.amount_in_words()} is needed")
    return lines


def units_words(units: int) -> str:
    """Return so much of a device in words: ``"¼ GPU"``, ``"nothing"``."""
    from fractions import Fraction  # noqa: PLC0415 - only about shares

    if not units:
        return "nothing"
    part = Fraction(units, DEVICE_UNITS)
    rounded = part.limit_denominator(_DENOMINATOR)
    return f"{fraction_words(rounded)} GPU" if rounded == part else f"{float(part):.2f} GPU"


def _magic_remedies(request: Request, wanted: int, free: int) -> list[str]:
    """Return lines to type, each the same request: with its devices, model and memory."""
    devices, memory = ",".join(request.devices), request.min_free_memory_bytes
    kept = "" if request.model is None else f" --model {shlex.quote(request.model)}"
    kept += "" if memory is None else f" --min-free-memory {as_text(memory)}"
    out_of = f" --devices {shlex.quote(devices)}" if devices else ""
    what = f" {request.amount if request.gpus in (1, 'all') else wanted}{out_of}"
    if devices and request.gpus == len(request.devices):
        # A number alone is how many: one device is named by the option, a list by itself.
        what = out_of if len(request.devices) == 1 else f" {shlex.quote(devices)}"
    lines = [f"To wait for them:  %gpu use{what}{kept} --wait 30m"]
    if 0 < free < wanted:
        lines.append(f"Or take {free}:  %gpu use {free}{out_of}{kept}")
    return lines


def _remedies(
    request: Request, kind: LeaseKind, wanted: int, free: int, *, mine: bool
) -> list[str]:
    """Return what this reader can do, in the words of where they asked."""
    fewer = 0 < free < wanted
    if kind == "command":
        return ["To wait for them:  --wait 30m", *([f"Or take {free}:  --gpus {free}"] * fewer)]
    if kind == "api":
        return ['To wait for them:  wait="30m"', *([f"Or take {free}:  gpus={free}"] * fewer)]
    lines = []
    if mine:
        lines.append("A kernel of yours holds one: shut it down; closing its tab does not.")
    if fewer:
        lines.append(f"Or take {free}: pick a kernel with {in_words(free)}.")
    lines.append("For an entry that waits:")
    amount = str(request.amount) if wanted == 1 else str(wanted)
    name = re.sub("[^0-9a-z.]+", "-", amount)
    lines.append(f"  jupyter gpu install --gpus {amount} --wait 30m --name wait-{name}")
    return lines


_SILENT = "leased by a process that has left no record; as root, doctor names it"


def _of(request: Request, pool: tuple[Device, ...], *, whole: bool) -> str:
    where = "on this machine" if whole else "in this pool"
    of_all = f"{sum(device.kind == 'gpu' for device in pool)} {where}"
    return of_all if not request.devices else f"{request.in_words()}; {of_all}"


def _lease_line(lease: Lease, now: datetime) -> str:
    record = lease.record
    indices = ", ".join(map(str, record.indices))
    words = f"  {indices}  {lease.user or 'unknown user'}  {holder_in_words(record.owner)}"
    words += f"  {record.share_words}" if record.share_words else ""
    words += f"  since {since_in_words(record.since, now)}"
    if lease.state == "draining":
        words += ", draining"
    elif lease.state == "idle":
        words += f", {idle_in_words(record.owner.idle_since, now)}"
    return f"{words} ({lease.note})" if lease.note else words
