"""``%gpu who``: every lease on this machine, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.answers import who_answer
from jupyter_gpu.core.machine_view import who_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class Who(Subcommand):
    """Shows who holds what."""

    name = "who"
    about = "Every lease on this machine: whose, since when, how long idle; and who waits."
    example = "  %gpu who"

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer, whatever of it cannot be read."""
        del options
        overview = context.overview()
        return Answer(who_view(overview, context.now()), who_answer(overview))


SUBCOMMAND = Who()
