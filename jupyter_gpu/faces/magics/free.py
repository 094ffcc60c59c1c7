"""``%gpu free``: gives back GPU memory that nothing uses, and says what holds the rest."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.framework_memory import empty_caches, torch_memory
from jupyter_gpu.adapters.held_tensors import held_tensors
from jupyter_gpu.core.held import Held
from jupyter_gpu.core.memory_report import MemoryReport, free_answer, free_view, nothing_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class Free(Subcommand):
    """Empties the caches of the frameworks that use CUDA in this kernel."""

    name = "free"
    about = "Give back GPU memory that nothing uses, and say by name what holds the rest."
    example = "  %gpu free"

    def answer(self, context: Context, options: Options) -> Answer:
        """Free what can be freed; where CUDA is not frozen nothing is touched."""
        del options
        before = context.overview()
        assert before.process is not None, "a kernel asks"
        process = before.process
        if process.state != "frozen":
            report = MemoryReport(before, before)
            return Answer(nothing_view(process), free_answer(report, process))
        ordinals = tuple(device.ordinal for device in process.in_force or ())
        torch_before = torch_memory(ordinals)
        gc.collect()
        emptied = empty_caches(process.contexts)
        report = MemoryReport(
            before,
            context.overview(),
            torch_before,
            torch_memory(ordinals),
            emptied,
            self._held(context),
        )
        return Answer(free_view(report, process), free_answer(report, process))

    @staticmethod
    def _held(context: Context) -> Held:
        shell = context.shell
        outputs = shell.history_manager.output_hist
        return held_tensors(
            shell.user_ns, outputs, stops=(shell, shell.user_ns, outputs, context, context.watch)
        )


SUBCOMMAND = Free()
