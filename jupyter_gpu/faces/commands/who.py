"""``jupyter gpu who``: every lease with its holder, and who waits."""

from __future__ import annotations

import os
from datetime import datetime

from jupyter_gpu.core.answers import who_answer
from jupyter_gpu.core.machine_view import who_view
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.overview import read_overview


class Who(Command):
    """Shows the leases of this machine, everybody's."""

    name = "who"
    about = "Every lease on this machine: whose, since when, how long idle; and who waits."
    example = "  jupyter gpu who"
    has_arguments = False

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer from the lease directory; the machine is read without its slow sensors."""
        del rest
        overview = read_overview(os.environ, sensors=False)
        view = who_view(overview, datetime.now().astimezone())
        return answer(options, who_answer(overview), view)


COMMAND = Who()
