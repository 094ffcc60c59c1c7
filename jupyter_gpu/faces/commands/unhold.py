"""``jupyter gpu unhold``: puts devices back into service."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from jupyter_gpu.adapters.holds_file import change_holds
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.holds import Hold, Holds, device_name, held_name, hold_meant
from jupyter_gpu.core.view import View
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.faces.commands.hold import require_leases
from jupyter_gpu.overview import read_overview


class TakeOffHold(Command):
    """Ends holds, also those on devices that the machine no longer has."""

    name = "unhold"
    about = "Put devices that are on hold back into service. Needs what  hold  needs."
    example = "  sudo jupyter gpu unhold 3"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the devices."""
        parser.add_argument(
            "device",
            nargs="+",
            metavar="DEVICE",
            help="a physical index, a UUID or its start; a MIG device by its UUID",
        )

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """End the hold on every device or on none."""
        del rest
        require_leases()
        inventory = read_overview(os.environ, sensors=False).inventory

        def meant(holds: Holds) -> tuple[Hold, ...]:
            found = (hold_meant(name, holds, inventory) for name in options.device)
            return tuple(dict.fromkeys(found))

        place = find_place(os.environ, simulated=is_simulated(os.environ))
        before = change_holds(place, lambda holds: holds.without(meant(holds)))
        ended = meant(before)
        after = before.without(ended)
        data = {
            "schema": 1,
            "ended": [hold.as_json() for hold in ended],
            "holds": [hold.as_json() for hold in after.entries],
        }
        return answer(options, data, _view(ended, after, inventory))


def _view(ended: tuple[Hold, ...], after: Holds, inventory: Inventory) -> View:
    names = ", ".join(held_name(hold, inventory) for hold in ended)
    lines = [f"{held_name(hold, inventory)} was {hold.words}" for hold in ended]
    for device in inventory.devices:
        gpu = after.on(device.parent) if device.parent is not None else None
        if gpu is not None and any(hold.uuid == device.uuid for hold in ended):
            name = device_name(device)
            lines.append(f"{name} stays out of service with its GPU, which is {gpu.words}")
    verb = "is" if len(ended) == 1 else "are"
    return View(f"{names} {verb} no longer on hold", lines=tuple(lines))


COMMAND = TakeOffHold()
