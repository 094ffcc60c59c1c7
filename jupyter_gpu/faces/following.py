"""Follows a kernel from its server: what its lease's record says is kept true.

People rename notebooks under a running kernel, leave kernels idle, and change them. The
provisioner of a kernel under a server with sessions begins this; it ends with the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol

from jupyter_client.session import Session

from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.idleness import Cells, Idleness
from jupyter_gpu.faces import server
from jupyter_gpu.idle import LOOK_EVERY_SECONDS, LoadMeter
from jupyter_gpu.lease import HeldLease

EVERY_SECONDS = 1.0
# Who works in a notebook pauses for less, so that hardly anything is ever written.
IDLE_AFTER_SECONDS = 60.0
# Where a server's application keeps the one meter of all its kernels, and what is known of the use
# of each, by kernel id.
METER = "jupyter_gpu_load_meter"
USES = "jupyter_gpu_uses"


class FollowedKernel(Protocol):
    """The part of a provisioner that is looked at."""

    parent: Any
    kernel_id: str
    log: logging.Logger

    @property
    def pid(self) -> int | None:
        """The kernel's process, another one after a restart."""

    @property
    def lease(self) -> HeldLease | None:
        """What the kernel holds now."""

    def was_handed_in_vain(self) -> bool:
        """Return whether the kernel that this one was to replace lives on."""


def follow(
    myself: Callable[[], FollowedKernel | None],
    loop: asyncio.AbstractEventLoop,
    every_seconds: float = EVERY_SECONDS,
    use: Use | None = None,
) -> None:
    """Look at a kernel again and again while it has a lease; ``myself`` is a weak reference.

    Called in the loop of the server. ``use`` is what is known from the looks before.
    """
    kernel = myself()
    if kernel is None or kernel.lease is None or kernel.lease.released:
        if use is not None:
            use.close()
        return
    seen = Use(kernel) if use is None else use
    task = loop.create_task(look_once(kernel, seen))

    def go_on(done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            seen.log.warning("GPU: a kernel could not be followed: %r", error)
        loop.call_later(every_seconds, follow, myself, loop, every_seconds, seen)

    task.add_done_callback(go_on)


async def look_once(kernel: FollowedKernel, use: Use) -> None:
    """Bring the record up to date, and end a kernel that a failed change has left behind."""
    lease = kernel.lease
    idle_since = use.idle_since(kernel)
    if lease is not None:
        await asyncio.to_thread(lease.settle)
    session = await server.session_of(kernel.parent, kernel.kernel_id)
    notebook = server.notebook_of(kernel.parent, session)
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


class Use:
    """What is known of the use of a kernel's lease, from one look to the next.

    Made in the loop of the server; ``close`` it when the lease has ended.
    """

    def __init__(self, kernel: FollowedKernel) -> None:
        self.log, self._kernel_id = kernel.log, kernel.kernel_id
        settings = _settings_of(kernel.parent)
        self._meter: LoadMeter = settings.setdefault(
            METER, LoadMeter(os.environ, LOOK_EVERY_SECONDS)
        )
        self._uses: dict[str, Use] = settings.setdefault(USES, {})
        self._uses[kernel.kernel_id] = self
        self._look: asyncio.Task[None] | None = None
        self._process: tuple[object, ...] = ()
        self._ear = Ear(None)
        self._idleness = Idleness.begins(_now())
        self._uuids: tuple[str, ...] | None = None
        self._begin(kernel)

    def close(self) -> None:
        """Stop listening to the kernel."""
        self._ear.close()
        if self._uses.get(self._kernel_id) is self:
            del self._uses[self._kernel_id]

    def idle_since(self, kernel: FollowedKernel) -> str | None:
        """Return since when the lease is idle now, in ISO 8601; None while it is used, or unknown.

        Called at every look, and before the kernel is ended for it: what the record says may be
        old where it cannot be written. The devices are looked at in a thread that nobody waits for.
        """
        if self._process != _process_of(kernel):
            self._begin(kernel)
        now, cells = _now(), self._ear.cells
        if cells.ended is not None and cells.ended > self._idleness.active:
            self._idleness = self._idleness.used(cells.ended)
            self._uuids = None
        if cells.running:
            self._idleness = self._idleness.used(now)
            return None
        # Until the kernel has told something itself nothing is known of it, and the server's own
        # word for it is "busy" while a message to it has no answer yet.
        if not cells.heard or server.last_used(kernel.parent) is None:
            return None
        if self._uuids is None:  # a cell may have changed the lease
            self._uuids = _recorded_uuids(kernel.lease)
        if self._uuids is None:
            return None
        if self._meter.want(self._uuids):
            self._begin_look()
        look = self._meter.latest(self._uuids)
        if look is not None:
            self._idleness = self._idleness.looked(look.at, look.percents)
        since = self._idleness.since(now, IDLE_AFTER_SECONDS)
        return None if since is None else since.isoformat(timespec="seconds")

    def _begin(self, kernel: FollowedKernel) -> None:
        """Begin anew: at first, and with each new process of the kernel."""
        self._ear.close()
        self._process, self._uuids = _process_of(kernel), None
        self._idleness = Idleness.begins(_now())
        self._ear = Ear(kernel.parent)

    def _begin_look(self) -> None:
        if self._look is not None and not self._look.done():
            return  # a driver that does not answer: what is known grows old meanwhile
        self._look = asyncio.create_task(asyncio.to_thread(self._meter.look))
        self._look.add_done_callback(self._has_looked)

    def _has_looked(self, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.log.warning("GPU: the load of the GPUs could not be read: %r", error)


class Ear:
    """Hears from a kernel itself which of its cells run.

    The server's own word for a kernel is the state of its last message: "idle" while a cell runs,
    as soon as a subshell has answered a widget.
    """

    def __init__(self, kernel_manager: Any) -> None:  # noqa: ANN401 - jupyter_client is untyped here
        self.cells = Cells()
        self._stream: Any = None
        connect = getattr(kernel_manager, "connect_iopub", None)
        if connect is None:
            return
        self._stream = connect()
        if not hasattr(self._stream, "on_recv"):  # a manager without a loop: nobody would read
            self.close()
            return
        session = kernel_manager.session
        self._session = Session(config=session.config, key=session.key)
        self._stream.on_recv(self._hear)

    def close(self) -> None:
        """Stop listening; calling it twice does nothing more."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _hear(self, frames: list[bytes]) -> None:
        """Take note of a message; called by the loop for each that the kernel publishes."""
        try:
            _, parts = self._session.feed_identities(frames)
            if b'"status"' not in parts[1]:  # the header; outputs are many, and are not unpacked
                return
            message = self._session.deserialize(parts)
            state = message["content"]["execution_state"]
            parent = message.get("parent_header") or {}
        except (ValueError, KeyError, IndexError, TypeError):  # no message, or not this kernel's
            return
        self.cells = self.cells.told(state, parent, _now())


def _process_of(kernel: FollowedKernel) -> tuple[object, ...]:
    # A kernel that ends at once again and again is given other ports.
    return kernel.pid, getattr(kernel.parent, "iopub_port", None)


def _recorded_uuids(lease: HeldLease | None) -> tuple[str, ...] | None:
    """Return the devices that a lease is on by now; None while that cannot be known."""
    if lease is None or lease.id is None:
        return None
    record = None
    with contextlib.suppress(StoreError), lease.changing() as witness:
        record = None if witness is None else witness.own_record(lease.id)
    return None if record is None else record.uuids


def _settings_of(kernel_manager: object) -> dict[str, Any]:
    """Return where a kernel's server keeps what its parts share; a new place where it has none."""
    app = getattr(server.kernels_of(kernel_manager), "parent", None)
    settings = getattr(getattr(app, "web_app", None), "settings", None)
    return settings if isinstance(settings, dict) else {}


def _now() -> datetime:
    return datetime.now(timezone.utc)
