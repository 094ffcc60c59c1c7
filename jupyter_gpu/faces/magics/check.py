"""``%gpu check``: the whole diagnosis, each line with what was found and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_gpu.core.checks import checks_answer
from jupyter_gpu.core.checks_view import checks_view
from jupyter_gpu.doctor import examine
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class CheckEverything(Subcommand):
    """Looks for everything that can be wrong here."""

    name = "check"
    about = (
        "Everything that can be wrong here: the variables, the driver, the CUDA libraries, this "
        "kernel's past, its lease, and what is left on the GPUs. Initialises nothing."
    )
    example = "  %gpu check\n  checks = %gpu check --json"

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer, whatever of it cannot be read."""
        del options
        checks = examine(os.environ, context.overview())
        return Answer(checks_view(checks), checks_answer(checks))


SUBCOMMAND = CheckEverything()
