"""The waiting rule: nobody takes a device that an earlier waiter could use. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.leases import Waiter
from jupyter_gpu.core.policy import Candidate, choose, count_wanted, eligible
from jupyter_gpu.core.request import Request


def keep_for_earlier(
    candidates: tuple[Candidate, ...], waiters: Iterable[Waiter]
) -> tuple[Candidate, ...]:
    """Return the candidates with those kept back that earlier waiters could use.

    A waiter who could start now needs only what it would choose, and the rest is open to others;
    one who needs more than is free keeps all of it that would serve, so that small requests never
    push a large one back. A waiter whose process has stopped looking keeps nothing.
    """
    for waiter in waiters:
        if not waiter.stalled:
            candidates = _keep_for(candidates, waiter)
    return candidates


def _enough_memory(device: Device, request: Request) -> bool:
    """Return whether a waiter's own limit lets it use the device: else it holds nobody back."""
    wanted, free = request.min_free_memory_bytes, device.memory_free_bytes
    return wanted is None or free is None or free >= wanted


def _keep_for(candidates: tuple[Candidate, ...], waiter: Waiter) -> tuple[Candidate, ...]:
    record = waiter.record
    named = tuple(c.device for c in candidates if c.device.uuid in record.could_use)
    serving = eligible(record.request, named)
    useful = tuple(
        c for c in candidates if c.device in serving and _enough_memory(c.device, record.request)
    )
    choice = choose(record.request, useful)
    free = tuple(c.device for c in useful if c.reason is None)
    kept = free if choice is None else choice.devices
    if count_wanted(record.request, tuple(c.device for c in useful)) == 0:
        kept = ()
    reason = f"kept for {waiter.user}, who waits for {record.request.in_words()}"
    return tuple(
        dataclasses.replace(c, reason=reason) if c.reason is None and c.device in kept else c
        for c in candidates
    )
