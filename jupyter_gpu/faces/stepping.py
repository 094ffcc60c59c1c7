"""Steps an acquisition to its end on a server's event loop, without ever blocking it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.faces import server
from jupyter_gpu.lease import HeldLease


class StartedKernel(Protocol):
    """The part of a provisioner that is looked at."""

    parent: Any
    kernel_id: str
    log: logging.Logger


async def step_to_the_end(acquisition: Acquisition, kernel: StartedKernel) -> HeldLease:
    """Return what was granted; the steps run in threads.

    Called while a kernel is prepared. When it is cancelled, a step that runs gives back what it
    gets.

    Raises
    ------
    GPUError
        As ``Acquisition.step`` does, and when the server is told to end, or whoever asked has hung
        up, while it waits.
    """
    told, handler = False, server.current_handler()
    while True:
        step = asyncio.ensure_future(asyncio.to_thread(acquisition.step))
        try:
            lease = await asyncio.shield(step)
        except asyncio.CancelledError:
            step.add_done_callback(_release_result)
            raise
        if server.is_stopping(kernel.parent):
            if lease is not None:
                lease.release()
            raise GPUError("The server is ending.")
        if lease is not None and not (told and server.asker_has_gone(handler)):
            return lease
        if server.asker_has_gone(handler):
            if lease is not None:
                lease.release()
            raise GPUError("Whoever asked for this kernel has hung up, so it waits no longer.")
        if acquisition.waiting and not told:
            told = True
            server.forget_start(kernel.parent, kernel.kernel_id)
            words = acquisition.request.in_words()
            kernel.log.info("GPU: kernel %s waits for %s", kernel.kernel_id, words)
        await asyncio.sleep(acquisition.pause_seconds)


def _release_result(step: asyncio.Future[HeldLease | None]) -> None:
    if not step.cancelled() and step.exception() is None:
        lease = step.result()
        if lease is not None:
            lease.release()
