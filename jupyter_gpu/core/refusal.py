"""The words of a refusal: what was asked, who holds what, what to do. Pure.

Short lines, because JupyterLab's dialog does not wrap them, and no percent sign, because it is
doubled on the way there.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import PurePath

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.leases import Holdings, Lease, Owner
from jupyter_gpu.core.policy import Candidate, count_wanted, eligible
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.request import Request


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


def refusal(
    request: Request,
    candidates: tuple[Candidate, ...],
    holdings: Holdings,
    now: datetime,
    notes: tuple[str, ...] = (),
) -> str:
    """Return the message for a request that cannot be met now; ``now`` in the reader's zone."""
    pool = tuple(candidate.device for candidate in candidates)
    serving = eligible(request, pool)
    wanted = count_wanted(request, serving)
    by_device = {candidate.device: candidate for candidate in candidates}
    free = [device for device in serving if by_device[device].reason is None]
    asked = "No GPU is free" if wanted == 1 else f"No {in_words(wanted)} are free"
    lines = [f"{asked} ({_of(request, pool)})."]
    told: set[str] = set()
    for device in serving:
        leases = holdings.on(device.uuid)
        reason = by_device[device].reason
        for lease in leases:
            if lease.record.id not in told:
                told.add(lease.record.id)
                lines.append(_lease_line(lease, now))
        if not leases and reason is not None:
            silent = device.uuid in holdings.unclaimed
            lines.append(f"  {device.index}  {_SILENT if silent else reason}")
    if free:
        indices = ", ".join(str(device.index) for device in free)
        lines.append(f"  {indices}  free, but {wanted} are needed")
    if holdings.waiters:
        lines.append(f"Waiting before this one: {len(holdings.waiters)}.")
    lines.extend(notes)
    lines.append('To wait for a device: "wait": "30m" in the kernelspec, or  --wait 30m')
    if 0 < len(free) < wanted:
        lines.append(f"Or take {len(free)}: pick a kernel with {in_words(len(free))}.")
    return "\n".join(lines)


_SILENT = "leased by a process that has left no record; as root, doctor names it"


def _of(request: Request, pool: tuple[Device, ...]) -> str:
    of_all = f"{len(pool)} on this machine"
    return of_all if not request.devices else f"{request.in_words()}; {of_all}"


def _lease_line(lease: Lease, now: datetime) -> str:
    record = lease.record
    indices = ", ".join(map(str, record.indices))
    words = f"  {indices}  {lease.user or 'unknown user'}  {holder_in_words(record.owner)}"
    words += f"  since {since_in_words(record.since, now)}"
    if lease.state == "draining":
        words += ", draining"
    return f"{words} ({lease.note})" if lease.note else words
