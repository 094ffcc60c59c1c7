"""``%gpu``: this kernel's devices, what CUDA does, and who has the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.answers import status_answer
from jupyter_gpu.core.kernel_view import kernel_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class Status(Subcommand):
    """Shows what is true in this kernel."""

    name = "status"
    about = "This kernel's GPUs, what CUDA does, and who has the rest."
    example = "  %gpu\n  state = %gpu --json"

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer, whatever of it cannot be read."""
        del options
        overview = context.overview(sensors=True)
        assert overview.process is not None, "a kernel asks"
        view = kernel_view(overview, overview.process, context.now())
        return Answer(view, status_answer(overview))


SUBCOMMAND = Status()
