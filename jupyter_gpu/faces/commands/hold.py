"""``jupyter gpu hold``: takes devices out of service."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from dataclasses import replace
from datetime import datetime

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.holds_file import change_holds
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import SETUP_COMMAND, find_place
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.holds import Hold, Holds, device_meant, device_name, reason_of
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.standing import holder_words, innermost
from jupyter_gpu.core.view import View
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.overview import read_overview


class PutOnHold(Command):
    """Takes devices out of service: what is leased goes on, nothing new is granted."""

    name = "hold"
    about = (
        "Take devices out of service: what is leased goes on, and nothing new is granted. A GPU\n"
        "is held with its MIG devices. After  setup  a hold outlives a restart of the machine and\n"
        "needs root; in any other lease directory it needs its owner or root."
    )
    # The reason is asked for in run, whose words are better than argparse's.
    usage = "jupyter gpu hold [-h] [--json] --reason TEXT DEVICE [DEVICE ...]"
    example = '  sudo jupyter gpu hold 3 --reason "fan is loud"\n  jupyter gpu unhold 3'

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the devices and the reason."""
        parser.add_argument(
            "device",
            nargs="+",
            metavar="DEVICE",
            help="a physical index, a UUID or its start; a MIG device by its UUID",
        )
        parser.add_argument("--reason", metavar="TEXT", help="why, for everybody to see")

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Put every device on hold or none, and say who goes on using them."""
        del rest
        require_leases()
        overview = read_overview(os.environ, sensors=False)
        devices = tuple(
            dict.fromkeys(device_meant(name, overview.inventory) for name in options.device)
        )
        reason = reason_of(options.reason)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        by = processes.user_name(os.geteuid())

        def changed(holds: Holds) -> Holds:
            return holds.changed(_held(device, holds, reason, by, now) for device in devices)

        place = find_place(os.environ, simulated=is_simulated(os.environ))
        before = change_holds(place, changed)
        after = changed(before)
        rows = [
            {**hold.as_json(), "already": before.on(hold.uuid) is not None}
            for hold in map(after.on, (device.uuid for device in devices))
            if hold is not None
        ]
        view = _view(devices, before, overview)
        if place.kind == "shared":
            view = replace(view, notes=(_UNTIL_RESTART,))
        return answer(options, {"schema": 1, "holds": rows}, view)


def require_leases() -> None:
    """Refuse where nothing is leased, so that nothing can be on hold.

    Raises
    ------
    StoreError
        On such a system.
    """
    if not locks.possible():
        raise StoreError("There are no leases on this system, so nothing can be on hold.")


def _held(device: Device, holds: Holds, reason: str, by: str, now: str) -> Hold:
    """Return the hold on a device; one that is on hold already stays so since it was."""
    old = holds.on(device.uuid)
    return Hold(device.uuid or "", device.index, reason, by, now if old is None else old.since)


def _view(devices: tuple[Device, ...], before: Holds, overview: Overview) -> View:
    lines = []
    for device in devices:
        name, old = device_name(device), before.on(device.uuid)
        if old is not None:
            lines.append(f"{name} was {old.words}. It stays so, and the reason is new.")
        lines += [
            f"{name}: {holder_words(lease)} goes on until that lease ends."
            for lease in innermost(overview.holdings.leases)
            if any(_is_on(device, overview.inventory.find(uuid)) for uuid in lease.record.uuids)
        ]
    verb = "is" if len(devices) == 1 else "are"
    title = f"{', '.join(map(device_name, devices))} {verb} out of service"
    return View(title, lines=tuple(lines))


def _is_on(held: Device, leased: Device | None) -> bool:
    return leased is not None and held.uuid in (leased.uuid, leased.parent)


_UNTIL_RESTART = (
    "In this lease directory a hold ends with a restart of the machine. For holds that stay, "
    f"first run  {SETUP_COMMAND}"
)
COMMAND = PutOnHold()
