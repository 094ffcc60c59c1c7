"""What becomes of a request that is not met.

It can never be met here, or not now, or leases do not work on this system at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.candidates import Look, Surroundings, on_card
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import ImpossibleRequest, NoDeviceAvailable
from jupyter_gpu.core.leases import Holdings
from jupyter_gpu.core.policy import (
    Candidate,
    choose,
    count_wanted,
    devices_asked,
    eligible,
    require_possible,
)
from jupyter_gpu.core.refusal import Reader, refusal
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.view import listed
from jupyter_gpu.lease import Grant, HeldLease
from jupyter_gpu.outfit import outfit
from jupyter_gpu.pool import Pool
from jupyter_gpu.site import Site

_NOT_EXCLUSIVE = "These GPUs are not exclusive here: this system has no suitable locks."
_NOT_CHOSEN = (
    "The kernel sees whatever there is. Nothing is exclusive here: this system has no\n"
    "suitable locks."
)
# Stands for a limit that cannot be counted at this moment, because another start of the same user
# is being counted.
LIMIT_BUSY = (
    "The count of your devices has been locked for seconds, by another start of yours or by "
    "another program: ask again."
)


def require_allowed(
    request: Request, inventory: Inventory, pool: Pool, around: Surroundings
) -> Pool:
    """Return the pool that this user may have, after checking that it could serve the request.

    Raises
    ------
    ImpossibleRequest
        When neither the machine nor the rules can ever meet it; the sentence says which.
    """
    devices = _within_mig_limit(request, pool.devices, around.site)
    topology = around.topology_for(request)
    require_possible(request, inventory, devices, pool.limited_by, topology)
    if request.units > pool.capacity:
        raise ImpossibleRequest(
            f"{request.in_words()}: the lease that this program runs under has only a share of "
            f"physical {listed(device.index for device in pool.devices)}."
        )
    allowed = tuple(d for d in devices if around.site.own.reserved_against(d) is None)
    wanted = count_wanted(request, eligible(request, devices))
    if len(eligible(request, allowed)) < (1 if request.gpus == "all" else wanted):
        raise ImpossibleRequest(_reserved(request, devices, around.site))
    asked = devices_asked(request, eligible(request, allowed))
    never = around.site.never(asked)
    if never is not None:
        raise ImpossibleRequest(f"{request.in_words()}: {never}")
    return dataclasses.replace(pool, devices=allowed)


def _within_mig_limit(
    request: Request, devices: tuple[Device, ...], site: Site
) -> tuple[Device, ...]:
    """Return the devices without MIG devices, for who wants more than a process may use of them."""
    limit = site.rules.mig_devices_per_kernel
    named = eligible(request, devices) if request.devices else ()
    parts = [device for device in named if device.kind == "mig"]
    if request.gpus != "all" and request.gpus <= limit:
        return devices
    left = tuple(device for device in devices if device.kind == "gpu")
    wanted = len(request.devices) if request.gpus == "all" else request.gpus
    if parts and wanted > limit and len(eligible(request, left)) < wanted:
        raise ImpossibleRequest(
            f"{request.in_words()}: a kernel gets {limit} MIG device{'s' * (limit != 1)} at most. "
            "NVIDIA's documents disagree on how many a process can use. Who knows that the driver "
            "here allows more sets mig_devices_per_kernel in the file of rules."
        )
    return left


def _reserved(request: Request, devices: tuple[Device, ...], site: Site) -> str:
    words: dict[str, list[int]] = {}
    for device in eligible(request, devices):
        why = site.own.reserved_against(device)
        if why is not None:
            words.setdefault(why, []).append(device.index)
    reasons = "; ".join(f"physical {listed(found)} {why}" for why, found in words.items())
    return f"{request.in_words()}: too few are open to {site.user}: {reasons} ({site.source})."


def refused(
    request: Request,
    candidates: tuple[Candidate, ...],
    look: Look,
    own: Collection[str],
    reader: Reader,
    limit: str | None,
) -> NoDeviceAvailable:
    """Return the error of a request that cannot be met now.

    Parameters
    ----------
    request, candidates, look
        What was asked for, and what was found.
    own
        The ids of leases that are no obstacle: those above, one's own, and the one in the making.
    reader
        Who reads it.
    limit
        The sentence of a limit that stands against it, None where devices are the matter.
    """
    pool = look.pool
    holdings = look.around.store.holdings([device.uuid or "" for device in pool.devices])
    above = pool.ancestors
    others = Holdings(
        tuple(
            one
            for one in holdings.leases
            if one.record.id not in own and one.record.ancestors[: len(above)] == above
        ),
        tuple(one for one in holdings.waiters if one.record.id not in own),
        holdings.unclaimed,
    )
    notes = () if pool.limited_by is None else (f"The pool is limited by {pool.limited_by}.",)
    return NoDeviceAvailable(refusal(request, candidates, others, reader, notes, limit))


def without_locks(
    request: Request,
    inventory: Inventory,
    pool: Pool,
    environ: Mapping[str, str],
    program: str | None,
) -> HeldLease:
    """Choose without leasing, where this system has no such locks: kernels still start."""
    simulated = is_simulated(environ)
    free = tuple(
        on_card(device, request, simulated=simulated, ours=pool.relatives)
        for device in pool.devices
    )
    choice = choose(request, free)
    if choice is not None:
        fitted = outfit(choice.devices, request, inventory, environ, program=program)
        return HeldLease(Grant(choice.devices, fitted.environment, caution=_NOT_EXCLUSIVE))
    try:
        require_possible(request, inventory, pool.devices, pool.limited_by)
        why = f"{request.in_words()}: not free now."
    except ImpossibleRequest as error:
        why = str(error)
    return HeldLease(Grant((), {}, caution=f"No GPU was chosen. {why}\n{_NOT_CHOSEN}"))
