"""``%gpu use``: other devices for this kernel, at once or with its restart."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.launch import restarts_by_itself, starter
from jupyter_gpu.core.errors import GPUError, NoDeviceAvailable, UsageError
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.use_view import (
    Changed,
    Left,
    changed_answer,
    changed_view,
    count_note,
    left_answer,
    left_view,
)
from jupyter_gpu.core.variables import POOL, VISIBLE
from jupyter_gpu.faces import this_kernel
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand
from jupyter_gpu.pool import Limit, read_limits
from jupyter_gpu.switch import Switch
from jupyter_gpu.wish import drop_wish, leave_wish

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.faces.magics.context import Context

_UUID = ("GPU-", "MIG-")
_OPTIONS = ("min_free_memory", "model", "wait")
_FORKED = "This process was forked from a kernel: ask in the kernel itself."
_NOBODY = (
    "CUDA is initialised in this kernel, so its devices stay the same until a restart, and nobody "
    "would read a request then. Restart the kernel and run  %gpu use  first of all, or pick a "
    "PyTorch (n GPUs) kernel."
)
_NOT_NOW = (
    "CUDA is initialised in this kernel, so nothing changes now: a restart brings these devices, "
    "and the kernel keeps those it has if they cannot be had then."
)
_UNTIL_RESTART = "A restart of this kernel begins without them: run  %gpu use  again then."
_BY_KERNELSPEC = "A restart of this kernel begins with what its kernelspec asks for."
_BY_HAND = (
    "Nothing starts this kernel again when it ends. The request has been left: restart the kernel "
    "by hand, and it brings these devices."
)


class Use(Subcommand):
    """Changes the devices of this kernel."""

    name = "use"
    about = (
        "Other devices for this kernel: at once while CUDA is open, otherwise with the restart. "
        "The old ones are kept until the new ones are there."
    )
    example = (
        "  %gpu use 2\n  %gpu use 1,3\n  %gpu use --devices 3\n  %gpu use 0\n"
        "  %gpu use 1 --model H200 --wait 10m\n"
        "  %gpu use 1 --restart"
    )
    hint = " A list of devices has commas and no blanks."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add how many or which, the conditions, and the restart."""
        parser.add_argument(
            "what", nargs="?", metavar="N|LIST", help='how many, or "all"; a list names devices'
        )
        parser.add_argument("--devices", metavar="LIST", help="physical indices or UUIDs, by comma")
        parser.add_argument("--model", metavar="NAME", help='a part of the model\'s name: "H200"')
        parser.add_argument(
            "--min-free-memory", metavar="SIZE", help='memory free on each: "20GiB"'
        )
        parser.add_argument("--wait", metavar="T", help='how long to wait for them: "10m"')
        parser.add_argument(
            "--restart", action="store_true", help="restart the kernel where CUDA is frozen"
        )

    def answer(self, context: Context, options: Options) -> Answer:
        """Change the devices, or leave the request for the restart."""
        request = _request(options)
        overview = context.overview()
        assert overview.process is not None, "a kernel asks"
        if overview.process.state == "forked":
            raise GPUError(_FORKED)
        switch = Switch(
            request,
            this_kernel.owner(context.shell, os.environ),
            os.environ,
            _limits(context),
        )
        if overview.process.state == "frozen":
            return _later(context, overview, switch, options)
        return _at_once(context, request, switch, options)


def _request(options: Options) -> Request:
    what, devices = options.what, options.devices
    if what is None and devices is None and options.model is None:
        raise UsageError("%gpu use: say how many, or which:  %gpu use 2  or  %gpu use 1,3")
    if what is not None and ("," in what or what.upper().startswith(_UUID)):
        if devices is not None:
            raise UsageError("%gpu use: the devices are named twice; leave one out.")
        what, devices = None, what
    given: dict[str, object] = {name: getattr(options, name) for name in _OPTIONS}
    if devices is not None:
        given["devices"] = devices
        given["gpus"] = len(Request.parse({"devices": devices}).devices) if what is None else what
    else:
        given["gpus"] = 1 if what is None else what
    identifiers = "uuid" if os.environ.get(VISIBLE, "").startswith(_UUID) else "auto"
    return Request.parse({**given, "identifiers": identifiers}, default_wait=0)


def _limits(context: Context) -> tuple[Limit, ...]:
    """Return what this kernel's pool was cut down to when it started."""
    written = os.environ.get(POOL)
    if written is not None:
        return read_limits(written)
    if this_kernel.is_wrapper() or starter(os.environ) is not None:
        return ()
    launched_with = context.watch.launch.visible
    return () if launched_with is None else (Limit(launched_with, "the environment"),)


def _at_once(context: Context, request: Request, switch: Switch, options: Options) -> Answer:
    switched = switch.now()
    switch.put(switched, os.environ)
    path = this_kernel.connection_file(context.shell)
    drop_wish(path)
    own_only = switch.own is None or not switch.own.has_keeper
    if path is not None and own_only and starter(os.environ) is not None:
        # The server holds nothing for this kernel: it leases the same ones when it restarts it.
        named = tuple(device.uuid for device in switched.devices if device.uuid is not None)
        leave_wish(path, dataclasses.replace(request, gpus=len(named), devices=named))
    overview = context.overview()
    notes = [] if switched.caution is None else [switched.caution]
    notes += [f"The pool is limited by {limit}." for limit in switched.limits]
    count = count_note(options.what, switched.devices, overview.inventory)
    notes += [] if count is None else [count]
    if switched.devices and starter(os.environ) is None:
        notes.append(_BY_KERNELSPEC if this_kernel.is_wrapper() else _UNTIL_RESTART)
    if options.restart:
        notes.append("CUDA is open, so no restart was needed.")
    changed = Changed(switched.devices, switched.before, overview.lease, tuple(notes))
    view = changed_view(changed, overview.inventory, context.now())
    return Answer(view, changed_answer(changed, request))


def _later(context: Context, overview: Overview, switch: Switch, options: Options) -> Answer:
    path, request = this_kernel.connection_file(context.shell), switch.request
    started_by_us = starter(os.environ) is not None
    if path is None or not (started_by_us or this_kernel.is_wrapper()):
        raise GPUError(_NOBODY)
    notes = [_NOT_NOW]
    try:
        switch.try_out()
    except NoDeviceAvailable as error:
        if options.restart:
            raise  # a restart would lose the person's work for nothing
        notes.append(f"At this moment they could not be had. {error}")
    leave_wish(path, request)
    restarts = restarts_by_itself(os.environ)
    if options.restart and not restarts:
        raise GPUError(_BY_HAND)
    if options.restart:
        notes = ["The kernel ends now and is started again with these devices."]
        this_kernel.end_for_restart(context.shell)
    elif started_by_us:
        again = "  %gpu use … --restart  does that." if restarts else ""
        notes.append(f"Restart the kernel.{again}")
    else:
        notes.append(
            "Restart the kernel; where the front end starts it with another connection file, run  "
            "%gpu use  again, first of all."
        )
    left = Left(options.restart, tuple(notes))
    return Answer(left_view(request, left, overview.inventory), left_answer(request, left))


SUBCOMMAND = Use()
