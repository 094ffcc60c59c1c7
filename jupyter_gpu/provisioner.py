"""The kernel provisioner: leases devices before the kernel starts, keeps them while it lives.

jupyter_client calls ``pre_launch`` → ``launch_kernel`` → ``post_launch`` for a start, the same
again on the same object for a restart (after ``cleanup(restart=True)``), and
``cleanup(restart=False)`` at the end; after a failed start or a crash loop it calls nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import threading
import time
import weakref
from string import Template
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.environment import merged
from jupyter_gpu.core.errors import GPUError, StoreError, UnknownOption
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.refusal import short_lines
from jupyter_gpu.core.request import OPTIONS, PLANNED, Request
from jupyter_gpu.core.variables import PROVISIONED
from jupyter_gpu.faces import server
from jupyter_gpu.faces.following import follow
from jupyter_gpu.faces.options import WAIT_HELP, OptionBesideMethod, RequestOptions
from jupyter_gpu.faces.refused import KernelRefused, without_our_traces
from jupyter_gpu.lease import HeldLease
from jupyter_gpu.pool import limits_of

# A kernel that is told to end is killed after five seconds (KernelManager.shutdown_wait_time).
_HAND_OVER_SECONDS = 12.0


class GPUProvisioner(LocalProvisioner, RequestOptions):  # type: ignore[misc] # untyped base
    """Starts kernels on this machine, each with the GPUs that its kernelspec asks for."""

    wait = OptionBesideMethod(LocalProvisioner.wait, WAIT_HELP).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - jupyter_client's signature
        known = set(self.class_trait_names())
        self._unknown_options = tuple(name for name in kwargs if name not in known)
        super().__init__(**{name: value for name, value in kwargs.items() if name in known})
        self._lease: HeldLease | None = None
        self._ending_on_purpose = False
        self._taken_over: tuple[HeldLease, float] | None = None
        self._watched_restarter: object = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Lease the devices and put them into the kernel's environment.

        Called by the kernel manager before every start and restart. A restart keeps the lease: it
        is never given up and taken again.

        Raises
        ------
        KernelRefused
            When the request is wrong, or its devices cannot be had; the message is for people.
        """
        self._ending_on_purpose = False
        first_start = self._lease is None or self._lease.released
        try:
            if first_start:
                self._lease = await self._acquire(kwargs.get("env"))
            else:
                self._require_not_handed_on()
                await asyncio.to_thread(self._name_lingering_workers)
            prepared: dict[str, Any] = await super().pre_launch(**kwargs)
        except GPUError as error:
            raise self._refused(error) from None
        except BaseException:
            if first_start:
                self._release("the start failed")
            server.forget_start(self.parent, self.kernel_id)
            raise
        assert self._lease is not None, "leased above"
        prepared["env"] = merged(prepared["env"], self._lease.environment, self._notice())
        prepared["env"][PROVISIONED] = str(os.getpid())
        prepared["pass_fds"] = (*prepared.get("pass_fds", ()), *self._lease.pass_fds)
        return prepared

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401
        """Start the process, which inherits the lease, and write its pid into the record.

        Called by the kernel manager after ``pre_launch``; when it fails nothing else is called,
        so the lease of a first start ends here.
        """
        restarted = self._lease is not None and bool(self._lease_processes())
        try:
            information = await super().launch_kernel(cmd, **kwargs)
        except BaseException:
            if not restarted:
                self._release("the kernel could not be started")
            server.forget_start(self.parent, self.kernel_id)
            raise
        await asyncio.to_thread(self._name_kernel_process)
        return information

    async def post_launch(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Learn when the kernel is given up, and follow its notebook's name.

        Called by the kernel manager when the process runs and the restarter has begun to watch.
        """
        await super().post_launch(**kwargs)
        if self._lease is None or self._lease.claim is None:
            return
        restarter = getattr(self.parent, "_restarter", None)
        if restarter is None:
            self._release_when_process_ends()
        elif restarter is not self._watched_restarter:
            self._watched_restarter = restarter
            myself = weakref.ref(self)
            self.parent.add_restart_callback(lambda: _give_up(myself), "dead")
            if server.has_sessions(self.parent):
                follow(myself, asyncio.get_running_loop())

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that the kernel ends on purpose; called before it is asked to."""
        self._ending_on_purpose = True
        await super().shutdown_requested(restart=restart)

    async def kill(self, restart: bool = False) -> None:
        """Kill the process. Called by the manager; ``restart`` is not to be trusted here."""
        self._ending_on_purpose = True
        await super().kill(restart=restart)

    async def terminate(self, restart: bool = False) -> None:
        """Terminate the process. Called by the manager; ``restart`` is not to be trusted here."""
        self._ending_on_purpose = True
        await super().terminate(restart=restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Give the devices up when the kernel has ended for good.

        Called by the kernel manager after the process has ended; with ``restart`` a new start
        follows. Some managers call it twice.
        """
        try:
            await super().cleanup(restart=restart)
        finally:
            if not restart:
                # Not in a thread: it is a few system calls on local memory, and while the
                # interpreter ends (nbclient, jupyter run) there are no threads to be had.
                self._release("the kernel has ended")

    async def _acquire(self, launch_env: dict[str, str] | None) -> HeldLease:
        request = self._request()
        base = dict(os.environ if launch_env is None else launch_env)
        # As jupyter_client does for the kernel itself: ${NAME} is the launch environment's.
        written = {} if self.kernel_spec is None else self.kernel_spec.env
        spec_env = {name: Template(text).safe_substitute(base) for name, text in written.items()}
        notebook = server.notebook_at_start(self.parent, base)
        owner = Owner(
            "kernel",
            kernel_id=self.kernel_id,
            notebook=notebook,
            keeper=reference(os.getpid()),
        )
        takeover = await self._lease_to_take_over(base) if request.gpus != 0 else None
        acquisition = Acquisition(
            request,
            owner,
            {**base, **spec_env},
            limits=limits_of(base, spec_env),
            takeover=takeover,
        )
        try:
            lease = await self._step_to_the_end(acquisition)
        finally:
            await asyncio.shield(asyncio.to_thread(acquisition.close))
        if takeover is not None and lease.claim is not None and lease.claim.shared:
            self._taken_over = (takeover, time.monotonic())
        self._log_grant(lease, takeover)
        return lease

    def _request(self) -> Request:
        section = self.config.get(type(self).__name__, {})
        for name in (*self._unknown_options, *section):
            if name not in self.trait_names():
                raise UnknownOption(name, OPTIONS, planned=name in PLANNED)
        return Request.parse(self.given_options())

    async def _step_to_the_end(self, acquisition: Acquisition) -> HeldLease:
        told = False
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(acquisition.step))
            try:
                lease = await asyncio.shield(step)
            except asyncio.CancelledError:
                step.add_done_callback(_release_result)
                raise
            if server.is_stopping(self.parent):
                if lease is not None:
                    lease.release()
                raise GPUError("The server is ending.")
            if lease is not None:
                return lease
            if acquisition.waiting and not told:
                told = True
                server.forget_start(self.parent, self.kernel_id)
                words = acquisition.request.in_words()
                self.log.info("GPU: kernel %s waits for %s", self.kernel_id, words)
            await asyncio.sleep(acquisition.pause_seconds)

    async def _lease_to_take_over(self, environ: dict[str, str]) -> HeldLease | None:
        old_id = await server.kernel_being_changed(self.parent, environ)
        if old_id is None or old_id == self.kernel_id:
            return None
        try:
            old = server.kernels_of(self.parent).get_kernel(old_id).provisioner
        except KeyError:
            return None
        if not isinstance(old, GPUProvisioner) or not old.parent.ready.done():
            return None  # not ours, or in the middle of a restart of its own
        lease = old._lease  # noqa: SLF001 - our own
        return None if lease is None or lease.released else lease

    @property
    def lease(self) -> HeldLease | None:
        """What the kernel holds, None before its first start."""
        return self._lease

    def was_handed_in_vain(self) -> bool:
        """Return whether the kernel whose devices this one took over lives on long after."""
        lease, since = self._taken_over or (None, 0.0)
        waited = time.monotonic() - since
        return lease is not None and not lease.released and waited > _HAND_OVER_SECONDS

    def _require_not_handed_on(self) -> None:
        """Refuse to restart a kernel whose notebook has changed to another one meanwhile."""
        claim = None if self._lease is None else self._lease.claim
        if claim is not None and claim.handed_on:
            self._release("its notebook has changed to another kernel")
            raise GPUError("This kernel's GPUs were handed to the one that replaces it.")

    def _refused(self, error: GPUError) -> KernelRefused:
        # A percent sign would be doubled on its way through the server.
        message = short_lines(str(error)).replace("%", "\N{FULLWIDTH PERCENT SIGN}")
        self.log.warning(
            "GPU: kernel %s was refused: %s", self.kernel_id, " · ".join(message.splitlines())
        )
        self.log.addFilter(without_our_traces)
        server.forget_start(self.parent, self.kernel_id)
        return KernelRefused(message)

    def _log_grant(self, lease: HeldLease, takeover: HeldLease | None) -> None:
        if not lease.devices:
            self.log.info("GPU: kernel %s gets no GPU", self.kernel_id)
            return
        indices = ", ".join(str(device.index) for device in lease.devices)
        reasons = lease.record.because if lease.record is not None else ("not exclusive here",)
        if takeover is not None:
            reasons = ("taken over from the kernel before", *reasons)
        self.log.info(
            "GPU: kernel %s got physical %s after %.1f s (%s)",
            self.kernel_id,
            indices,
            lease.waited_seconds,
            "; ".join((*reasons, *(f"limited by {limit}" for limit in lease.limits))),
        )

    def _notice(self) -> str | None:
        lease = self._lease
        assert lease is not None, "called after leasing"
        words = [f"The pool of GPUs is limited by {limit}." for limit in lease.limits]
        words += [] if lease.caution is None else [lease.caution]
        return "\n".join(words) or None

    def _lease_processes(self) -> tuple[object, ...]:
        record = None if self._lease is None else self._lease.record
        return () if record is None else record.owner.processes

    def _name_kernel_process(self) -> None:
        pid = self.pid
        if pid is not None:
            self._describe(lambda owner: _with_kernel(owner, pid))

    def _name_lingering_workers(self) -> None:
        """Before a restart, keep in the record who of the old kernel still holds the lease."""
        lease = self._lease
        lingering = () if lease is None else lease.kept_by_others()
        self._describe(lambda owner: dataclasses.replace(owner, processes=lingering))
        for process in lingering:
            self.log.warning(
                "GPU: process %s of kernel %s before its restart still holds its devices",
                process.pid,
                self.kernel_id,
            )

    def _describe(self, change: Any) -> None:  # noqa: ANN401 - a callable on Owner
        try:
            if self._lease is not None:
                self._lease.describe(change)
        except StoreError as error:
            self.log.warning("GPU: %s", error)

    def _release(self, why: str) -> None:
        lease = self._lease
        if lease is None or lease.released:
            return
        lease.release()
        indices = ", ".join(str(device.index) for device in lease.devices)
        self.log.info("GPU: kernel %s gave back physical %s: %s", self.kernel_id, indices, why)

    def _release_when_process_ends(self) -> None:
        """Watch the process where no restarter does (nbclient, papermill): nobody restarts it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # ended already, or a system without pidfd
            return
        thread = threading.Thread(
            target=_await_end, args=(weakref.ref(self), descriptor), daemon=True
        )
        thread.start()


def _with_kernel(owner: Owner, pid: int) -> Owner:
    lingering = tuple(process for process in owner.processes if process.pid != pid)
    return dataclasses.replace(owner, processes=(reference(pid), *lingering))


def _await_end(myself: weakref.ref[GPUProvisioner], descriptor: int) -> None:
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)
    provisioner = myself()
    # An end on purpose is followed by cleanup(), which knows whether a restart comes.
    if provisioner is not None and not provisioner._ending_on_purpose:  # noqa: SLF001
        provisioner._release("its process has ended")  # noqa: SLF001


def _give_up(myself: weakref.ref[GPUProvisioner]) -> None:
    provisioner = myself()
    if provisioner is not None:
        provisioner._release("it kept dying and is not restarted")  # noqa: SLF001


def _release_result(step: asyncio.Future[HeldLease | None]) -> None:
    if not step.cancelled() and step.exception() is None:
        lease = step.result()
        if lease is not None:
            lease.release()
