"""``jupyter gpu map``: what the CUDA driver makes of a value of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.core.answers import map_answer
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.machine_view import map_view
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.overview import read_value


class Map(Command):
    """Reads a value as the driver does, without asking the driver."""

    name = "map"
    about = (
        "What the CUDA driver makes of a value of CUDA_VISIBLE_DEVICES on this machine;\n"
        "without VALUE, of the one in this environment. Exits 0 whatever that is."
    )
    example = "  jupyter gpu map 1,0\n  jupyter gpu map ''\n  jupyter gpu map -- -1"
    takes_rest = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the value."""
        parser.add_argument(
            "value", nargs="?", metavar="VALUE", help="after -- if it starts with -"
        )

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer for the value, from before or after ``--``."""
        values = [*([] if options.value is None else [options.value]), *(rest or ())]
        if len(values) > 1:
            raise UsageError(f"map takes one value, not {len(values)}: quote it if it has blanks")
        value = values[0] if values else os.environ.get(VISIBLE)
        with find_machine(os.environ) as machine:
            inventory = machine.read(sensors=False)
        found = read_value(value, inventory, os.environ)
        return answer(options, map_answer(found), map_view(found, inventory))


COMMAND = Map()
