"""The words of a refusal: what was asked, who holds what, what to do. Pure.

Short lines, because JupyterLab's dialog does not wrap them, and no percent sign, because it is
doubled on the way there.
"""

from __future__ import annotations

from pathlib import PurePath

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


def since_in_words(since: str, now: str) -> str:
    """Return a time as a person on that machine says it: ``"09:12"`` today, else with the date.

    Both are ISO 8601 in local time, as the caller made them.
    """
    return since[11:16] if since[:10] == now[:10] else f"{since[:10]} {since[11:16]}"


def refusal(
    request: Request,
    candidates: tuple[Candidate, ...],
    holdings: Holdings,
    *,
    notes: tuple[str, ...] = (),
) -> str:
    """Return the message for a request that cannot be met now."""
    pool = tuple(candidate.device for candidate in candidates)
    serving = eligible(request, pool)
    wanted = count_wanted(request, serving)
    by_device = {candidate.device: candidate for candidate in candidates}
    free = [device for device in serving if by_device[device].reason is None]
    lines = [f"No {in_words(wanted)} {'is' if wanted == 1 else 'are'} free ({_of(request, pool)})."]
    told: set[str] = set()
    for device in serving:
        leases = holdings.on(device.uuid)
        reason = by_device[device].reason
        for lease in leases:
            if lease.record.id not in told:
                told.add(lease.record.id)
                lines.append(_lease_line(lease))
        if not leases and reason is not None:
            lines.append(f"  {device.index}  {reason}")
    if free:
        indices = ", ".join(str(device.index) for device in free)
        lines.append(f"  {indices}  free, but {wanted} are needed")
    if holdings.waiters:
        lines.append(f"Waiting before this one: {len(holdings.waiters)}.")
    lines.extend(notes)
    lines.append("To wait for a device, start it again with  wait: 30m")
    if 0 < len(free) < wanted:
        lines.append(f"Or take {len(free)}: pick a kernel with {in_words(len(free))}.")
    return "\n".join(lines)


def _of(request: Request, pool: tuple[object, ...]) -> str:
    of_all = f"{len(pool)} on this machine"
    return of_all if not request.devices else f"{request.in_words()}; {of_all}"


def _lease_line(lease: Lease) -> str:
    record = lease.record
    indices = ", ".join(map(str, record.indices))
    words = f"  {indices}  {lease.user or 'unknown user'}  {holder_in_words(record.owner)}"
    words += f"  since {record.since}" if record.since else ""
    if lease.state == "draining":
        words += ", draining"
    return f"{words} ({lease.note})" if lease.note else words
