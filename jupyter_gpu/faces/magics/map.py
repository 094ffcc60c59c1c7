"""``%gpu map VALUE``: what CUDA makes of a value of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_gpu.core.answers import map_answer
from jupyter_gpu.core.machine_view import map_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand
from jupyter_gpu.overview import read_value

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.faces.magics.context import Context


class Map(Subcommand):
    """Shows what a value means on this machine."""

    name = "map"
    about = "What CUDA makes of CUDA_VISIBLE_DEVICES=VALUE; without VALUE, of what is set now."
    example = "  %gpu map 1,0\n  %gpu map GPU-2b1f\n  %gpu map -- -1"
    hint = " A value with blanks in it needs quotes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the value."""
        parser.add_argument("value", nargs="?", metavar="VALUE", help="as the variable would hold")

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer for the value, on whatever machine there is."""
        overview = context.overview()
        found = overview.visible
        if options.value is not None:
            found = read_value(options.value, overview.inventory, os.environ)
        return Answer(map_view(found, overview.inventory), map_answer(found))


SUBCOMMAND = Map()
