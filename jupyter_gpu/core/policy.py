"""The policy: a pure, deterministic choice among devices, with its reasons.

Who may be chosen at all is told by the caller, device by device, in words; here only the order
of preference is decided: the devices asked for by name in their order, else those this notebook
had last time, the display's GPU last, then by physical index.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.request import Request

# Why devices that a notebook had before come first, and those that a kernel has already.
HAD_LAST_TIME = "what this notebook had last time"
HELD_ALREADY = "what this kernel has already"
# The reason where nothing else decided.
USUAL_REASON = "free at that moment, lowest physical index first"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of the pool; ``reason`` says why it cannot be had now, None when it can.

    ``passing`` marks a reason that ends by itself within moments, such as the driver tidying up.
    """

    device: Device
    reason: str | None = None
    passing: bool = False


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
    """Return whether a name of a request (physical index or UUID, or its start) means a device."""
    if name.isdigit():
        return device.index == int(name)
    uuid = (device.uuid or "").lower()
    return uuid.startswith(name.lower())


def leasable(device: Device) -> bool:
    """Return whether a device is of the kind that is leased whole, whatever its state."""
    return device.kind == "gpu" and not device.mig_mode and device.uuid is not None


def eligible(request: Request, pool: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices of the pool that could ever serve the request, in order of preference."""
    fitting = tuple(
        device
        for device in pool
        if leasable(device)
        and (request.model is None or request.model.lower() in device.name.lower())
        and _large_enough(device, request.min_free_memory_bytes)
    )
    if not request.devices:
        return fitting
    chosen = (next((d for d in fitting if named(d, name)), None) for name in request.devices)
    return tuple(dict.fromkeys(device for device in chosen if device is not None))


def _large_enough(device: Device, wanted_bytes: int | None) -> bool:
    if wanted_bytes is None or device.memory_total_bytes is None:
        return True
    return device.memory_total_bytes >= wanted_bytes


def count_wanted(request: Request, devices: tuple[Device, ...]) -> int:
    """Return how many devices the request means, given those that could serve it."""
    if request.gpus != "all":
        return request.gpus
    return sum(device.problem is None for device in devices) or len(devices)


def require_possible(
    request: Request, inventory: Inventory, pool: tuple[Device, ...], limited_by: str | None = None
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
    return f"{_asked(request)}, and " if len(eligible(request, pool)) < wanted else None


def _asked(request: Request) -> str:
    plural = request.gpus == "all" or request.gpus > 1
    words = request.in_words()
    return f"{words[0].upper()}{words[1:]} {'are' if plural else 'is'} asked for"


def _what_there_is(
    inventory: Inventory, pool: tuple[Device, ...], limited_by: str | None = None
) -> str:
    if not inventory.gpus:
        return f"this machine has no GPU that can be seen. {inventory.problem or ''}".strip()
    listed = ", ".join(_alike(tuple(group)) for _, group in groupby(inventory.gpus, _described))
    words = f"this machine has {in_words(len(inventory.gpus))}: {listed}."
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
    """
    reasons = {candidate.device: candidate.reason for candidate in candidates}
    serving = eligible(request, tuple(reasons))
    free = [device for device in serving if reasons[device] is None]
    wanted = count_wanted(request, serving)
    if len(free) < wanted:
        return None
    order = {device: place for place, device in enumerate(serving)}
    ranked = sorted(free, key=lambda d: (d.uuid not in recent, d.display, order[d]))
    taken = tuple(sorted(ranked[:wanted], key=order.__getitem__))
    because = _because(request, taken, ranked[wanted:])
    again = tuple(device for device in taken if device.uuid in recent)
    if again:
        because.append(f"{_which(again, taken)}{recent_words}")
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
