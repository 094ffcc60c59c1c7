"""The kernel provisioner: leases devices before the kernel starts, keeps them while it lives.

jupyter_client calls ``pre_launch`` → ``launch_kernel`` → ``post_launch`` for a start, the same
again on the same object for a restart (after ``cleanup(restart=True)``), and
``cleanup(restart=False)`` at the end; after a failed start or a crash loop it calls nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import weakref
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

from jupyter_gpu.adapters.cpu_affinity import bind
from jupyter_gpu.adapters.process_end import call_at_end
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.asking import Asked, asked_for
from jupyter_gpu.core.environment import merged
from jupyter_gpu.core.errors import GPUError, StoreError, UnknownOption
from jupyter_gpu.core.leases import Origin, Owner
from jupyter_gpu.core.refusal import short_lines
from jupyter_gpu.core.request import OPTIONS, Request
from jupyter_gpu.core.variables import IDLE_WARNING, POOL, PROVISIONED, STARTER, STARTS_AGAIN
from jupyter_gpu.faces import server
from jupyter_gpu.faces.following import follow
from jupyter_gpu.faces.options import WAIT_HELP, OptionBesideMethod, RequestOptions
from jupyter_gpu.faces.refused import KernelRefused, without_our_traces
from jupyter_gpu.faces.spec_launch import environments, origin_of, program_of
from jupyter_gpu.faces.stepping import step_to_the_end
from jupyter_gpu.granting import Caller
from jupyter_gpu.idle import idle_warning_seconds
from jupyter_gpu.lease import HeldLease, notice_of
from jupyter_gpu.pool import Limit, limits_of, written_limits
from jupyter_gpu.renewal import renew
from jupyter_gpu.wish import Wish, announced, devices_in_words, drop_wish, not_granted, take_wish

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
        self._launched = False
        self._limits: tuple[Limit, ...] = ()
        self._granted_wish: Request | None = None

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
            notice = await self._lease_for_start(kwargs.get("env"))
            prepared: dict[str, Any] = await super().pre_launch(**kwargs)
            idle_warning = await asyncio.to_thread(
                idle_warning_seconds, self.config, prepared["env"]
            )
        except GPUError as error:
            raise self._refused(error) from None
        except BaseException:
            if first_start:
                self._release("the start failed")
            server.forget_start(self.parent, self.kernel_id)
            raise
        assert self._lease is not None, "leased above"
        told = notice_of(self._lease.limits, self._lease.caution)
        environ = merged(prepared["env"], self._lease.environment, told)
        restarts = f" {STARTS_AGAIN}" if server.has_restarter(self.parent) else ""
        environ |= {PROVISIONED: str(os.getpid()), STARTER: f"{os.getpid()}{restarts}"}
        for name in (POOL, IDLE_WARNING):
            environ.pop(name, None)
        if self._limits:
            environ[POOL] = written_limits(self._limits)
        if idle_warning is not None and self._lease.devices:
            environ[IDLE_WARNING] = f"{idle_warning:g}"
        prepared["env"] = announced(environ, notice)
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
        self._launched = True
        self._bind_to_cpus()
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
                drop_wish(self.parent.connection_file)

    async def _lease_for_start(self, launch_env: dict[str, str] | None) -> str | None:
        """Lease for a first start, keep for a restart, or grant the wish that the kernel has left.

        Returns what the person must be told where a wish could not be granted.
        """
        held = self._lease is not None and not self._lease.released
        wish = trouble = None
        if self._launched:
            wish = await asyncio.to_thread(take_wish, self.parent.connection_file)
        if held:
            self._require_not_handed_on()
            await asyncio.to_thread(self._look_at_lease, launch_env)
        if wish is not None:
            trouble = await self._grant(wish, launch_env)
        notices: tuple[str, ...] = ()
        if not held and (wish is None or trouble is not None):
            asked = await asyncio.to_thread(self._asked, launch_env)
            try:
                self._lease = await self._acquire(launch_env, asked.request, origin=asked.origin)
            except GPUError as error:
                raise asked.explained(error) from error
            notices = asked.notices
        if wish is None or trouble is None:
            return "\n".join(notices) or None
        self.log.warning("GPU: kernel %s did not get what it wished: %s", self.kernel_id, trouble)
        assert self._lease is not None, "leased above"
        return not_granted(wish, trouble, devices_in_words(self._lease.devices))

    async def _grant(self, wish: Wish, launch_env: dict[str, str] | None) -> GPUError | None:
        """Take the devices of a wish first, and let the old ones go after; or say why not."""
        old = self._lease
        try:
            if wish.request is None:
                return wish.trouble
            lease = await self._acquire(launch_env, wish.request, origin="magic")
        except GPUError as error:
            return error
        self._lease, self._granted_wish = lease, wish.request
        if old is not None:
            await asyncio.to_thread(old.release)
        return None

    def _look_at_lease(self, launch_env: dict[str, str] | None) -> None:
        """Before a restart, learn what the kernel has made of the lease, and who still keeps it."""
        lease = self._lease
        assert lease is not None, "called for a restart"
        before = lease.devices, None if lease.record is None else lease.record.units
        try:
            base, spec_env = environments(self.kernel_spec, launch_env)
            identifiers = Request.parse(self.given_options()).identifiers
            renew(lease, {**base, **spec_env}, identifiers, program_of(self.kernel_spec))
        except StoreError as error:
            self.log.warning("GPU: %s", error)
        if lease.record is not None and (lease.devices, lease.record.units) != before:
            self._granted_wish = lease.record.request
            words = devices_in_words(lease.devices)
            self.log.info("GPU: kernel %s has %s by now", self.kernel_id, words)
        self._name_lingering_workers()

    async def _acquire(
        self, launch_env: dict[str, str] | None, request: Request, *, origin: Origin
    ) -> HeldLease:
        wished = origin == "magic"
        base, spec_env = environments(self.kernel_spec, launch_env)
        self._limits = limits_of(base, spec_env)
        notebook = server.notebook_at_start(self.parent, base)
        owner = Owner(
            "kernel", kernel_id=self.kernel_id, notebook=notebook, keeper=reference(os.getpid())
        )
        takeover = None
        if wished and self._lease is not None and self._lease.record is not None:
            takeover = None if self._lease.released else self._lease
            owner = dataclasses.replace(owner, notebook=self._lease.record.owner.notebook)
        elif request.gpus != 0:
            takeover = await self._lease_to_take_over(base)
        acquisition = Acquisition(
            request,
            owner,
            {**base, **spec_env},
            limits=self._limits,
            takeover=takeover,
            caller=Caller(origin, program_of(self.kernel_spec)),
        )
        try:
            lease = await step_to_the_end(acquisition, self)
        finally:
            await asyncio.shield(asyncio.to_thread(acquisition.close))
        if takeover is not None and lease.claim is not None and lease.claim.shared and not wished:
            self._taken_over = (takeover, time.monotonic())
        self._log_grant(lease, takeover)
        return lease

    def _asked(self, launch_env: dict[str, str] | None) -> Asked:
        """Return what this start asks for, once every option is known."""
        section = self.config.get(type(self).__name__, {})
        for name in (*self._unknown_options, *section):
            if name not in self.trait_names():
                raise UnknownOption(name, OPTIONS)
        if self._granted_wish is not None:
            return Asked(self._granted_wish, "magic")
        base, spec_env = environments(self.kernel_spec, launch_env)
        notebook = server.notebook_at_start(self.parent, base)
        origin = origin_of(self.kernel_spec)
        return asked_for(self.given_options(), {**base, **spec_env}, notebook, origin)

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

    def _bind_to_cpus(self) -> None:
        """Keep the kernel on the CPUs near its devices, before it has begun to work."""
        cpus = None if self._lease is None else self._lease.cpus
        trouble = None if cpus is None or self.pid is None else bind(self.pid, cpus)
        if trouble is not None:
            self.log.warning("GPU: kernel %s runs on any CPU: %s", self.kernel_id, trouble)

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
        indices = ", ".join(map(str, lease.recorded_indices()))
        lease.release()
        self.log.info("GPU: kernel %s gave back physical %s: %s", self.kernel_id, indices, why)

    def _release_when_process_ends(self) -> None:
        """Watch the process where no restarter does (nbclient, papermill): nobody restarts it."""
        myself = weakref.ref(self)
        call_at_end(self.pid, lambda: _ended(myself))


def _with_kernel(owner: Owner, pid: int) -> Owner:
    lingering = tuple(process for process in owner.processes if process.pid != pid)
    return dataclasses.replace(owner, processes=(reference(pid), *lingering), idle_since=None)


def _ended(myself: weakref.ref[GPUProvisioner]) -> None:
    provisioner = myself()
    # An end on purpose is followed by cleanup(), which knows whether a restart comes.
    if provisioner is not None and not provisioner._ending_on_purpose:  # noqa: SLF001
        provisioner._release("its process has ended")  # noqa: SLF001


def _give_up(myself: weakref.ref[GPUProvisioner]) -> None:
    provisioner = myself()
    if provisioner is not None:
        provisioner._release("it kept dying and is not restarted")  # noqa: SLF001
