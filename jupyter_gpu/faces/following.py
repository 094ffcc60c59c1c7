"""Follows a kernel from its server: what its lease's record says is kept true.

People rename notebooks under a running kernel, leave kernels idle, and change them. The
provisioner of a kernel under a server with sessions begins this; it ends with the lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol

from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.faces import server
from jupyter_gpu.lease import HeldLease

EVERY_SECONDS = 1.0
# Who works in a notebook pauses for less, so that hardly anything is ever written.
IDLE_AFTER_SECONDS = 60.0


class FollowedKernel(Protocol):
    """The part of a provisioner that is looked at."""

    parent: Any
    kernel_id: str
    log: logging.Logger

    @property
    def lease(self) -> HeldLease | None:
        """What the kernel holds now."""

    def was_handed_in_vain(self) -> bool:
        """Return whether the kernel that this one was to replace lives on."""


def follow(
    myself: Callable[[], FollowedKernel | None],
    loop: asyncio.AbstractEventLoop,
    every_seconds: float = EVERY_SECONDS,
) -> None:
    """Look at a kernel again and again while it has a lease; ``myself`` is a weak reference."""
    kernel = myself()
    if kernel is None or kernel.lease is None or kernel.lease.released:
        return
    task = loop.create_task(look_once(kernel))
    task.add_done_callback(
        lambda _: loop.call_later(every_seconds, follow, myself, loop, every_seconds)
    )


async def look_once(kernel: FollowedKernel) -> None:
    """Bring the record up to date, and end a kernel that a failed change has left behind."""
    lease = kernel.lease
    if lease is not None:
        await asyncio.to_thread(lease.settle)
    session = await server.session_of(kernel.parent, kernel.kernel_id)
    notebook = server.notebook_of(kernel.parent, session)
    idle_since = idle_time(kernel.parent, datetime.now(timezone.utc), IDLE_AFTER_SECONDS)
    if lease is not None:
        try:
            lease.describe(
                lambda owner: dataclasses.replace(
                    owner, notebook=notebook or owner.notebook, idle_since=idle_since
                )
            )
        except StoreError as error:
            kernel.log.warning("GPU: %s", error)
    if session is None and kernel.was_handed_in_vain():
        # The change of kernel failed after this kernel began: its notebook has the old one still,
        # on the same devices, and nobody uses this one.
        kernel.log.warning(
            "GPU: kernel %s ends: the change to it failed, and the kernel before it lives on",
            kernel.kernel_id,
        )
        await server.kernels_of(kernel.parent).shutdown_kernel(kernel.kernel_id, now=True)


def idle_time(kernel_manager: object, now: datetime, after_seconds: float) -> str | None:
    """Return since when a kernel has been idle, in ISO 8601; None where not yet for that long."""
    last = server.last_used(kernel_manager)
    if last is None or (now - last).total_seconds() < after_seconds:
        return None
    return last.astimezone(timezone.utc).isoformat(timespec="seconds")
