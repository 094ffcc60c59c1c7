"""``%gpu export``: the environment as a line for a shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_gpu.core.export import export_view, exported
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class Export(Subcommand):
    """Shows how a script gets to see this kernel's devices."""

    name = "export"
    about = "The environment as a line for a shell, so that a script sees the same GPUs."
    example = '  %gpu export\n  line = (%gpu export --json)["line"]'

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer with what is in force, or else with what is set."""
        del options
        overview = context.overview()
        assert overview.process is not None, "a kernel asks"
        export = exported(overview, overview.process, os.environ)
        return Answer(export_view(export), export.as_json())


SUBCOMMAND = Export()
