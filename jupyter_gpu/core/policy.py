"""The policy: a pure, deterministic choice among devices, with its reasons.

Who may be chosen at all is told by the caller, device by device, in words; here only the order
of preference is decided. Whole devices: those asked for by name in their order, else those this
notebook had last time, the display's GPU last, then by physical index. Shares: on the device with
the least room that is enough, so that whole ones stay free. Neighbours come before all of this
where they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from jupyter_gpu.core import neighbours
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology

if TYPE_CHECKING:
    from fractions import Fraction

# Why devices that a notebook had before come first, and those that a kernel has already.
HAD_LAST_TIME = "what this notebook had last time"
HELD_ALREADY = "what this kernel has already"
# Why a share lands beside others.
SHARED_ALREADY = "shared already, so that whole GPUs stay free"
# The reason where nothing else decided.
USUAL_REASON = "free at that moment, lowest physical index first"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of the pool; ``reason`` says why it cannot be had now, None when it can.

    ``passing`` marks a reason that ends by itself within moments, such as the driver tidying up.
    ``free_units`` is how much of it nobody has, out of ``DEVICE_UNITS``; ``out`` marks a reason
    that no end of a lease takes away: on hold, or broken.
    """

    device: Device
    reason: str | None = None
    passing: bool = False
    free_units: int = DEVICE_UNITS
    out: bool = False

    def serves(self, request: Request) -> bool:
        """Return whether it can be had now, as far as the request needs it."""
        return self.reason is None and self.free_units >= request.units


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices in visible order, and why these."""

    devices: tuple[Device, ...]
    because: tuple[str, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of the devices, in visible order."""
        return tuple(device.uuid for device in self.devices if device.uuid is not None)


def named(device: Device, name: str) -> bool:
    """Return whether a name of a request means a device.

    A name is a physical index, a UUID or its start, or a MIG device's older form,
    ``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``.
    """
    if name.isdigit():
        return device.kind == "gpu" and device.index == int(name)
    older = f"MIG-{device.parent}/{device.gpu_instance}/{device.compute_instance}"
    if device.kind == "mig" and name.lower() == older.lower():
        return True
    uuid = (device.uuid or "").lower()
    return uuid.startswith(name.lower())


def leasable(device: Device) -> bool:
    """Return whether a device can be leased at all, whatever its state.

    A GPU in MIG mode cannot: its MIG devices can.
    """
    return device.uuid is not None and not device.mig_mode


def eligible(request: Request, pool: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices of the pool that could ever serve the request, in order of preference.

    MIG devices serve those who ask for their profile, or for them by name.
    """
    fitting = tuple(device for device in pool if _fits(device, request))
    if not request.devices:
        return tuple(device for device in fitting if device.kind == "gpu" or request.profile)
    chosen = (next((d for d in fitting if named(d, name)), None) for name in request.devices)
    return tuple(dict.fromkeys(device for device in chosen if device is not None))


def _fits(device: Device, request: Request) -> bool:
    return (
        leasable(device)
        and (request.profile is None or request.profile == (device.profile or "").lower())
        and (request.model is None or request.model.lower() in device.name.lower())
        and _large_enough(device, request.min_free_memory_bytes)
        and _too_little(device, request) is None
    )


def _too_little(device: Device, request: Request) -> str | None:
    """Return why what would be had of a device is too little to work with, or None."""
    if request.share is None and not isinstance(request.memory_cap, int):
        return None
    from jupyter_gpu.core.share_caps import why_impossible  # noqa: PLC0415 - readers are quick

    return why_impossible(request.share, request.memory_cap, device)


def _large_enough(device: Device, wanted_bytes: int | None) -> bool:
    if wanted_bytes is None or device.memory_total_bytes is None:
        return True
    return device.memory_total_bytes >= wanted_bytes


def count_wanted(request: Request, devices: tuple[Device, ...]) -> int:
    """Return how many devices the request means, given those that could serve it."""
    if request.gpus != "all":
        return request.gpus
    return sum(device.problem is None for device in devices) or len(devices)


def devices_asked(request: Request, devices: tuple[Device, ...]) -> Fraction:
    """Return how many devices a request comes to, shares as their part."""
    from fractions import Fraction  # noqa: PLC0415 - few requests are counted

    return Fraction(request.units, DEVICE_UNITS) * count_wanted(request, devices)


def require_possible(
    request: Request,
    inventory: Inventory,
    pool: tuple[Device, ...],
    limited_by: str | None = None,
    topology: Topology | None = None,
) -> None:
    """Check that the machine could serve the request if nobody else used it.

    Raises
    ------
    ImpossibleRequest
        With what was asked for and what the machine has.
    """
    if request.gpus == 0:
        return
    trouble = _trouble(request, inventory, pool)
    if trouble is not None:
        raise ImpossibleRequest(f"{trouble}{_what_there_is(inventory, pool, limited_by)}")
    serving = eligible(request, pool)
    wanted = count_wanted(request, serving)
    if request.topology == "require" and wanted > 1:
        known = topology or Topology()
        if neighbours.closest(serving, wanted, known, require=True) is None:
            best = neighbours.best_words(serving, wanted, known)
            raise ImpossibleRequest(f"{_asked(request)}, and that cannot be met here: {best}.")


def _trouble(request: Request, inventory: Inventory, pool: tuple[Device, ...]) -> str | None:
    if not inventory.gpus:
        return f"{_asked(request)}, and "
    for name in request.devices:
        if not any(named(device, name) for device in inventory.devices):
            return f"There is no device {name} here: "
        if not any(named(device, name) for device in pool):
            return f"Device {name} is outside the pool: "
    if len({d.uuid for d in pool for n in request.devices if named(d, n)}) < len(request.devices):
        return "devices: two names mean the same device: "
    wanted = 1 if request.gpus == "all" else request.gpus
    if len(eligible(request, pool)) >= wanted:
        return None
    reasons = (_too_little(device, request) for device in pool)
    why = next((reason for reason in reasons if reason is not None), None)
    if request.profile is not None and not any(d.kind == "mig" for d in inventory.devices):
        why = "no GPU here is in MIG mode"
    return f"{_asked(request)}, and {f'{why}; ' if why else ''}"


def _asked(request: Request) -> str:
    plural = request.gpus == "all" or request.gpus > 1
    words = request.in_words()
    return f"{words[0].upper()}{words[1:]} {'are' if plural else 'is'} asked for"


def _profiles(inventory: Inventory) -> str:
    """Return the MIG profiles that the machine has, as the end of a sentence about it."""
    found = sorted({d.profile for d in inventory.devices if d.kind == "mig" and d.profile})
    return f" Its MIG profiles: {', '.join(found)}." if found else ""


def _what_there_is(
    inventory: Inventory, pool: tuple[Device, ...], limited_by: str | None = None
) -> str:
    if not inventory.gpus:
        return f"this machine has no GPU that can be seen. {inventory.problem or ''}".strip()
    listed = ", ".join(_alike(tuple(group)) for _, group in groupby(inventory.gpus, _described))
    words = f"this machine has {in_words(len(inventory.gpus))}: {listed}.{_profiles(inventory)}"
    if limited_by is not None:
        left = ", ".join(str(device.index) for device in pool) or "none"
        words += f" {limited_by[0].upper()}{limited_by[1:]} leaves {left}."
    return words


def _alike(gpus: tuple[Device, ...]) -> str:
    first, last = gpus[0].index, gpus[-1].index
    indices = str(first) if len(gpus) == 1 else f"{first} to {last}"
    return f"{indices} {_described(gpus[0])}"


def _described(device: Device) -> str:
    memory = in_gib(device.memory_total_bytes)
    words = f"{device.name} ({memory} GiB)"
    return f"{words}, in MIG mode" if device.mig_mode else words


def choose(
    request: Request,
    candidates: tuple[Candidate, ...],
    recent: tuple[str, ...] = (),
    recent_words: str = HAD_LAST_TIME,
    topology: Topology | None = None,
) -> Choice | None:
    """Choose devices for a request, or None when too few can be had now.

    Parameters
    ----------
    request
        What is asked for.
    candidates
        The pool in physical order, each with the reason why it cannot be had, if any.
    recent, recent_words
        UUIDs that come first, and what they are.
    topology
        How devices are joined, for a request that wants neighbours.
    """
    found = {candidate.device: candidate for candidate in candidates}
    serving = eligible(request, tuple(found))
    free = [device for device in serving if found[device].serves(request)]
    wanted = count_wanted(request, serving)
    if not wanted or len(free) < wanted:  # none at all, where all are asked for
        return None
    order = {device: place for place, device in enumerate(serving)}

    def rank(device: Device) -> tuple[bool, bool, int, int]:
        room = 0 if request.share is None else found[device].free_units
        return device.uuid not in recent, device.display, room, order[device]

    ranked = sorted(free, key=rank)
    near: tuple[Device, ...] | None = tuple(ranked[:wanted])
    if request.topology != "any" and wanted > 1:
        require = request.topology == "require"
        near = neighbours.closest(tuple(ranked), wanted, topology or Topology(), require=require)
        if near is None:
            return None
    taken = tuple(sorted(near or (), key=order.__getitem__))
    because = _because(request, taken, [device for device in ranked if device not in taken])
    again = tuple(device for device in taken if device.uuid in recent)
    if again:
        because.append(f"{_which(again, taken)}{recent_words}")
    if request.topology != "any" and wanted > 1:
        because.append(neighbours.joined_words(taken, topology or Topology()))
    if request.share is not None and any(found[d].free_units < DEVICE_UNITS for d in taken):
        because.append(SHARED_ALREADY)
    return Choice(taken, tuple(because) or (USUAL_REASON,))


def _because(request: Request, taken: tuple[Device, ...], rest: list[Device]) -> list[str]:
    reasons = []
    if request.devices:
        reasons.append("asked for by name")
    if request.model is not None:
        reasons.append(f"model {request.model}")
    if request.min_free_memory_bytes is not None:
        reasons.append(f"{in_gib(request.min_free_memory_bytes)} GiB of memory free")
    if any(device.display for device in taken):
        reasons.append("the display's GPU too, because too few others are free")
    elif any(device.display for device in rest):
        reasons.append("the display's GPU is left for last")
    return reasons


def _which(some: tuple[Device, ...], taken: tuple[Device, ...]) -> str:
    """Return which of the devices are meant, as the start of a sentence; empty for all of them."""
    if len(some) == len(taken):
        return ""
    indices = ", ".join(str(device.index) for device in some)
    return f"physical {indices} {'is' if len(some) == 1 else 'are'} "
