"""``%gpu monitor``: this kernel's devices, live below the line that asks."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.monitor_view import Choice, monitor_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand
from jupyter_gpu.faces.monitor_arguments import chosen_uuids, device_names, interval_seconds
from jupyter_gpu.faces.monitor_history import answer_of, seen_in

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.faces.magics.context import Context


class MonitorMagic(Subcommand):
    """Shows a monitor at once, because it stands on top of the cell that trains."""

    name = "monitor"
    about = (
        "Watch this kernel's GPUs while cells run: memory, load, temperature, power and processes, "
        "and the last minutes as curves. When no cell runs it stands still. "
        "jupyter_gpu.Monitor() is the same in Python."
    )
    example = (
        "  %gpu monitor\n"
        "  %gpu monitor --interval 500ms --devices cuda:0,5 --compact\n"
        '  %gpu monitor -o seen      and later  seen.frame()  seen.save("run.svg")\n'
        "  look = %gpu monitor --json"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what to watch, how often, how much, and the name that keeps it."""
        parser.add_argument(
            "--interval", default="1s", metavar="T", help='between two looks: "1s", "500ms"'
        )
        parser.add_argument(
            "--devices",
            metavar="LIST",
            help='physical indices, UUIDs or "cuda:0", by comma; default: the visible ones',
        )
        parser.add_argument("--compact", action="store_true", help="one line each, no curves")
        parser.add_argument(
            "-o", dest="output", metavar="NAME", help="keep the monitor in this variable"
        )

    def answer(self, context: Context, options: Options) -> Answer:
        """Look once, and open nothing."""
        interval_seconds(options.interval)
        names, feed = device_names(options.devices), context.feed()
        moment = feed.look()
        uuids = None
        if names is not None:
            uuids = chosen_uuids(names, moment.overview)
            moment = feed.look(uuids)
        view = monitor_view(moment, Choice(uuids, options.compact))
        return Answer(view, answer_of(moment, seen_in(moment.overview, uuids)))

    def show(self, context: Context, options: Options) -> None:
        """Open a monitor, show it, and keep it where a name is given.

        Raises
        ------
        UsageError
            When the name is none.
        """
        name = options.output
        taken = name is not None and (keyword.iskeyword(name) or name.startswith("__"))
        if name is not None and (taken or not name.isidentifier()):
            raise UsageError(f"-o {name}: this is not the name of a variable.")
        from IPython.display import display  # noqa: PLC0415 - only inside IPython

        from jupyter_gpu.widget import Monitor  # noqa: PLC0415 - only to display one

        monitor = Monitor(options.devices, interval=options.interval, compact=options.compact)
        display(monitor)
        if name is not None:
            context.shell.push({name: monitor})
        elif not monitor.moves:
            monitor.close()  # nobody could ever ask it for anything


SUBCOMMAND = MonitorMagic()
