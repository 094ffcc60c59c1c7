"""The extension of IPython: puts ``%gpu`` into a shell and takes it out again.

Every kernel of ours loads it, most never call ``%gpu``: loading remembers how this process was
launched and begins to watch its cells; the magic itself is imported at its first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch
from jupyter_gpu.core.variables import IDLE_WARNING
from jupyter_gpu.faces.hooks import CellHooks

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.faces.idle_notice import IdleNotice
    from jupyter_gpu.faces.magics.context import Context
    from jupyter_gpu.faces.monitor_ends import CellEnds

NAME = "gpu"
HELP = """\
%gpu              this kernel's GPUs, what CUDA does, and who has the rest
%gpu status       the same
%gpu who          every lease on this machine, and who waits
%gpu map VALUE    what CUDA makes of CUDA_VISIBLE_DEVICES=VALUE; without VALUE,
                  of the one that is set now
%gpu check        everything that can be wrong here, and what to do about it
%gpu use 2        ask for other devices: two;  %gpu use 1,3  for these,
                  %gpu use --devices 3  for that one
%gpu monitor      watch them while cells run: memory, load, power, processes
%gpu free         free GPU memory that nothing uses, and say what holds the rest
%gpu limit 50%    cap what this kernel takes of its GPUs' memory
%gpu topo         how the GPUs are connected
%gpu export       the environment as a line for a shell
%%gpu             on top of a cell: its memory, utilisation, energy and time
  --json          return a dictionary instead
  -h, --help      this text; after a subcommand, its own

Example:  %gpu map 1,0
          state = %gpu --json"""
SUBCOMMANDS = (
    "status",
    "who",
    "map",
    "check",
    "use",
    "monitor",
    "free",
    "limit",
    "topo",
    "export",
)
_MATCHER = "jupyter_gpu.subcommands"
CELL_HELP = """\
%%gpu             run the cell and show what it took: memory of each visible
                  GPU, load, energy in joules, time
  -o NAME         keep the result in this variable
  --json          return a dictionary instead
  -h, --help      more; the cell must have a line for it

Example:  %%gpu -o step
          loss = model(batch).sum(); loss.backward()"""
_EVERY_ONES = ("--json", "--help")
_WORDS = (*SUBCOMMANDS, *_EVERY_ONES)
# What each takes beside those: here, because completion must not load the subcommands.
OPTIONS = {
    "use": ("--devices", "--model", "--min-free-memory", "--wait", "--restart"),
    "limit": ("off",),
    "monitor": ("--interval", "--devices", "--compact", "-o"),
}


class Gate:
    """Stands for the magic of one shell until it is called, and has its cells watched."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._watch = CellWatch(Launch.of_this_process())
        self._hooks = CellHooks(
            shell, self._watch, lambda: self.context().overview(), _idle_notice(shell)
        )
        self._opened: Context | None = None
        self._cell_ends: CellEnds | None = None

    def open(self) -> None:
        """Begin to watch the cells."""
        self._hooks.register()

    def close(self) -> None:
        """Close what the magic has opened, and stop watching."""
        self._hooks.unregister()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def line(self, line: str) -> Any:  # noqa: ANN401 - what the magic returns
        """Answer ``%gpu …``; IPython calls this, and shows its docstring for ``%gpu?``."""
        from jupyter_gpu.faces.magic import answer_line  # noqa: PLC0415 - see the module

        return answer_line(self.context(), line)

    line.__doc__ = HELP

    def cell(self, line: str, cell: str) -> Any:  # noqa: ANN401
        """Answer ``%%gpu``; IPython calls this, and shows its docstring for ``%%gpu?``."""
        from jupyter_gpu.faces.magic import answer_cell  # noqa: PLC0415 - see the module

        return answer_cell(self.context(), line, cell)

    cell.__doc__ = CELL_HELP

    def context(self) -> Context:
        """Return the kernel as the subcommands see it."""
        if self._opened is None:
            from jupyter_gpu.faces.magics.context import Context  # noqa: PLC0415 - see the module

            self._opened = Context(self._shell, self._watch, self._hooks)
        return self._opened

    def cell_ends(self) -> CellEnds:
        """Return who is called when a cell has ended."""
        if self._cell_ends is None:
            from jupyter_gpu.faces.monitor_ends import CellEnds  # noqa: PLC0415 - rarely

            self._cell_ends = CellEnds()
            self._hooks.tell(self._cell_ends)
        return self._cell_ends


def load(shell: InteractiveShell) -> None:
    """Register ``%gpu``, its completion and its hooks; IPython calls this once per shell."""
    gate = Gate(shell)
    shell.register_magic_function(gate.line, "line", NAME)
    shell.register_magic_function(gate.cell, "cell", NAME)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(_matcher())
    gate.open()


def gate_of(shell: InteractiveShell) -> Gate:
    """Return the gate of a shell, which loads the extension if it has not."""
    if _gate(shell) is None:
        shell.extension_manager.load_extension("jupyter_gpu")
    gate = _gate(shell)
    assert gate is not None, "it is loaded"
    return gate


def unload(shell: InteractiveShell) -> None:
    """Take ``%gpu`` out again and close what it opened; IPython calls this."""
    for kind in ("line", "cell"):
        function = shell.magics_manager.magics[kind].pop(NAME, None)
        gate = getattr(function, "__self__", None)
        if isinstance(gate, Gate):
            gate.close()
    if shell.Completer is not None:
        shell.Completer.custom_matchers[:] = [
            matcher
            for matcher in shell.Completer.custom_matchers
            if getattr(matcher, "matcher_identifier", None) != _MATCHER
        ]


def _gate(shell: InteractiveShell) -> Gate | None:
    function = shell.magics_manager.magics["line"].get(NAME)
    gate = getattr(function, "__self__", None)
    return gate if isinstance(gate, Gate) else None


def _idle_notice(shell: InteractiveShell) -> IdleNotice | None:
    if IDLE_WARNING not in os.environ:
        return None
    from jupyter_gpu.faces.idle_notice import notice_for  # noqa: PLC0415 - few kernels have it

    return notice_for(shell, os.environ)


def _offered(words: list[str]) -> tuple[str, ...]:
    """Return what may follow these words on a line."""
    called, rest = words[:1], words[1:]
    if called == [f"%%{NAME}"]:
        return ("-o", *_EVERY_ONES)
    if called != [f"%{NAME}"]:
        return ()
    named = next((word for word in rest if word in SUBCOMMANDS), None)
    return _WORDS if named is None else (*OPTIONS.get(named, ()), *_EVERY_ONES)


def _matcher() -> Callable[[CompletionContext], SimpleMatcherResult]:
    from IPython.core.completer import (  # noqa: PLC0415 - only inside IPython
        SimpleCompletion,
        context_matcher,
    )

    def complete(context: CompletionContext) -> SimpleMatcherResult:
        """Offer what may follow ``%gpu`` on its line, and nothing anywhere else."""
        before, _, token = context.line_with_cursor[: context.cursor_position].rpartition(" ")
        offered = _offered(before.split())
        found = [SimpleCompletion(word) for word in offered if word.startswith(token)]
        return {"completions": found, "suppress": bool(found)}

    decorated: Callable[[CompletionContext], SimpleMatcherResult] = context_matcher(
        identifier=_MATCHER
    )(complete)
    return decorated
