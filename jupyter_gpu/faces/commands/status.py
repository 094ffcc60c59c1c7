"""``jupyter gpu status``: every GPU with its memory, its load and its holder."""

from __future__ import annotations

import os
import sys

from jupyter_gpu.adapters.ahead import AheadMachine
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.faces.commands.command import Command, Options, write_json


class Status(Command):
    """Shows the machine as anybody sees it."""

    name = "status"
    about = "Every GPU of this machine: memory, load, who has it, and what is visible here."
    example = "  jupyter gpu status\n  jupyter gpu status --json | jq '.devices[].leases'"
    has_arguments = False

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer, whatever of it cannot be read."""
        del rest
        with AheadMachine(find_machine(os.environ)) as machine:
            from jupyter_gpu.overview import read_overview  # noqa: PLC0415 - loads meanwhile

            overview = read_overview(os.environ, machine=machine)
        if options.json:
            from jupyter_gpu.core.answers import status_answer  # noqa: PLC0415 - one of two

            write_json(status_answer(overview))
            return 0
        from datetime import datetime  # noqa: PLC0415 - one of two

        from jupyter_gpu.core.machine_view import status_view  # noqa: PLC0415
        from jupyter_gpu.core.render_text import as_text  # noqa: PLC0415

        view = status_view(overview, datetime.now().astimezone())
        sys.stdout.write(f"{as_text(view)}\n")
        return 0


COMMAND = Status()
