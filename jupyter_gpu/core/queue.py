"""The waiting rule: nobody takes a device that an earlier waiter could use. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Waiter
from jupyter_gpu.core.policy import Candidate, choose, count_wanted, eligible
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology


def keep_for(
    candidates: tuple[Candidate, ...], waiter: Waiter, topology: Topology | None = None
) -> tuple[Candidate, ...]:
    """Return the candidates with that kept back which an earlier waiter could use.

    One who could start now needs only what it would choose, and the rest is open to others; one
    who needs more than is free keeps all of it that would serve, so that small requests never push
    a large one back. A waiter whose process has stopped looking keeps nothing, nor does one that no
    end of a lease would help, because devices are out of service.
    """
    if waiter.stalled:
        return candidates
    record, request = waiter.record, waiter.record.request
    named = tuple(c.device for c in candidates if c.device.uuid in record.could_use)
    serving = eligible(request, named)
    useful = tuple(
        c for c in candidates if c.device in serving and _enough_memory(c.device, request)
    )
    wanted = count_wanted(request, tuple(c.device for c in useful))
    # One that waits for devices which are out of service keeps nobody from the others.
    if wanted == 0 or sum(not c.out for c in useful) < wanted <= len(useful):
        return candidates
    if not any(c.reason is None for c in useful):
        return candidates
    choice = choose(request, useful, topology=topology)
    kept = tuple(c.device for c in useful) if choice is None else choice.devices
    reason = f"kept for {waiter.user}, who waits for {request.in_words()}"

    def less(candidate: Candidate) -> Candidate:
        left = 0 if choice is None else candidate.free_units - request.units
        why = reason if left <= 0 else None
        return dataclasses.replace(candidate, reason=why, free_units=max(left, 0))

    return tuple(
        less(c) if c.reason is None and c.device in kept else c for c in candidates
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """What the locks alone leave open to a request, counted: enough to know that it has to wait.

    ``room`` is how many times each device that would serve it has room for it, by UUID, ``wanted``
    how many of those it needs. ``beside`` are further devices that are open to others.
    """

    request: Request
    ancestors: tuple[str, ...]
    wanted: int
    room: Mapping[str, int]
    beside: frozenset[str] = frozenset()

    def is_left_by(self, earlier: Iterable[Waiter | None]) -> bool:
        """Return whether there may be enough when those who came earlier have what they keep.

        They are counted for the least that ``keep_for`` keeps for them, and asked for only until
        too little is left. One who is not known, None, counts for one device: ask again later,
        knowing more, because it may want others.
        """
        left = sum(self.room.values()) - self.wanted
        kept, aside = 0, frozenset[str]()
        for waiter in earlier if left >= 0 else ():
            if waiter is None:
                kept += 1
            elif self._surely_takes(waiter):
                request = waiter.record.request
                every = sum(self.room.values()) + len(self.beside)
                kept += every if request.gpus == "all" else request.gpus
                aside |= self.beside.intersection(waiter.record.could_use)
            # All of them together find no more than these elsewhere.
            if kept - len(aside) > left:
                return False
        return left >= 0

    def _surely_takes(self, waiter: Waiter) -> bool:
        """Return whether a waiter finds what it wants here, or keeps all of it until it does.

        One who could use only some of it may want the same as another, so that both together keep
        no more than one.
        """
        record, request = waiter.record, waiter.record.request
        # Whether free memory is its own limit is not known from the locks.
        if waiter.stalled or record.ancestors != self.ancestors or request.min_free_memory_bytes:
            return False
        if not self.room.keys() <= set(record.could_use):
            return False
        if self.request.units == request.units == DEVICE_UNITS:
            return True
        # A smaller share may fit where this request does not, and several on one device beside.
        return request.units >= self.request.units and self.beside.isdisjoint(record.could_use)


def _enough_memory(device: Device, request: Request) -> bool:
    """Return whether a waiter's own limit lets it use the device: else it holds nobody back."""
    wanted, free = request.min_free_memory_bytes, device.memory_free_bytes
    return wanted is None or free is None or free >= wanted
