"""``jupyter gpu run``: leases, runs a command on the devices, and releases when it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import partial
from shutil import which

from jupyter_gpu.adapters.child import Child
from jupyter_gpu.adapters.cpu_affinity import bind
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.environment import merged
from jupyter_gpu.core.errors import CommandError, StoreError, UsageError
from jupyter_gpu.core.leases import Owner, clean
from jupyter_gpu.core.request import Request
from jupyter_gpu.faces.commands.command import Command, Options, explain
from jupyter_gpu.faces.commands.request_options import add_request_arguments, given_options
from jupyter_gpu.granting import Caller
from jupyter_gpu.lease import HeldLease
from jupyter_gpu.pool import limits_of

_PROGRESS_SECONDS = 0.5
_COMMAND_LENGTH = 200
_SIGNALLED = 128


class Run(Command):
    """Runs a command that inherits the lease, which lives as long as the command does."""

    name = "run"
    usage = (
        "jupyter gpu run [--gpus N] [--wait T] [other request options]\n"
        "                       -- COMMAND [ARGUMENT …]"
    )
    about = (
        "Run a command on GPUs that nobody else has. Its exit status is the command's own,\n"
        "128+n when signal n ended it, 127 when there is no such command, 126 when it cannot\n"
        "be started, 75 when no device could be had. TERM, INT and HUP are passed on to it.\n"
        "Without --wait, devices are asked for once. Nothing is printed on success; --json writes\n"
        "what was leased to standard error."
    )
    example = (
        "  jupyter gpu run --gpus 2 --wait 30m -- python train.py --epochs 3\n"
        "  jupyter gpu run --gpus 4 -- jupyter lab     (its kernels part the four)"
    )
    takes_rest = True
    hint = " The command stands after --"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the request's options."""
        add_request_arguments(parser, without=("on_unavailable",))

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Lease, run, release; returns the command's exit status."""
        if not rest:
            raise UsageError(f"run needs a command after --\nusage: {self.usage}")
        request = Request.parse(given_options(options), default_wait=0)
        if which(rest[0]) is None and not os.path.exists(rest[0]):  # noqa: PTH110 - a name
            raise CommandError(rest[0])
        with self._acquire(request, rest) as lease:
            if lease.caution is not None:
                explain(lease.caution)
            if options.json:
                devices = [{"index": d.index, "uuid": d.uuid} for d in lease.devices]
                told = {"schema": 1, "lease": lease.id, "devices": devices}
                sys.stderr.write(f"{json.dumps(told)}\n")
            environment = merged(os.environ, lease.environment)
            if lease.cpus is not None:
                bind(os.getpid(), lease.cpus)  # the command inherits it
            with Child(rest, environment, lease.pass_fds) as child:
                # Nothing hangs on the record: a full disk must not end the command.
                with contextlib.suppress(StoreError):
                    lease.describe(partial(_with_process, child.pid))
                return child.wait()

    def _acquire(self, request: Request, command: tuple[str, ...]) -> HeldLease:
        owner = Owner(
            "command",
            command=clean(" ".join(command))[:_COMMAND_LENGTH],
            processes=(reference(os.getpid()),),
        )
        limits = limits_of(os.environ)
        caller = Caller("command", command[0])
        acquiring = Acquisition(request, owner, os.environ, limits=limits, caller=caller)
        with _ended_by_signals(), acquiring as acquisition, _line() as show:
            began = time.monotonic()
            while True:
                lease = acquisition.step()
                if lease is not None:
                    return lease
                show(f"Waiting for {request.in_words()}: {time.monotonic() - began:.0f} s")
                time.sleep(acquisition.pause_seconds)


def _with_process(pid: int, owner: Owner) -> Owner:
    return dataclasses.replace(owner, processes=(*owner.processes, reference(pid)))


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave the queue in order when TERM or HUP end the wait, as INT does by itself."""

    def end(number: int, _: object) -> None:
        sys.exit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """Give a function that shows one line of progress, if a person looks; it is gone at the end."""
    shown, next_look = False, time.monotonic() + _PROGRESS_SECONDS
    watched = sys.stderr.isatty()

    def show(text: str) -> None:
        nonlocal shown, next_look
        if watched and time.monotonic() >= next_look:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            shown, next_look = True, time.monotonic() + _PROGRESS_SECONDS

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


COMMAND = Run()
