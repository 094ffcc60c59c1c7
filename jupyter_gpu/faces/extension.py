"""The extension of IPython: puts ``%gpu`` into a shell and takes it out again.

Every kernel of ours loads it, most never call ``%gpu``: loading remembers how this process was
launched and imports nothing else, and the magic itself is imported at its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_gpu.adapters.launch import Launch

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.faces.magic import GPUMagic

NAME = "gpu"
HELP = """\
%gpu              this kernel's GPUs, what CUDA does, and who has the rest
%gpu status       the same
%gpu who          every lease on this machine, and who waits
%gpu map VALUE    what CUDA makes of CUDA_VISIBLE_DEVICES=VALUE; without VALUE,
                  of the one that is set now
  --json          return a dictionary instead
  -h, --help      this text, as  %gpu?  shows it

Example:  %gpu map 1,0
          state = %gpu --json"""
SUBCOMMANDS = ("status", "who", "map")
_MATCHER = "jupyter_gpu.subcommands"
_WORDS = (*SUBCOMMANDS, "--json", "--help")


class Gate:
    """Stands for the magic of one shell until it is called."""

    def __init__(self) -> None:
        self._launch = Launch.of_this_process()
        self._magic: GPUMagic | None = None

    def line(self, line: str) -> Any:  # noqa: ANN401 - what the magic returns
        """Answer ``%gpu …``; IPython calls this, and shows its docstring for ``%gpu?``."""
        return self._opened().line(line)

    line.__doc__ = HELP

    def cell(self, line: str, cell: str) -> Any:  # noqa: ANN401
        """Answer ``%%gpu``; IPython calls this."""
        return self._opened().cell(line, cell)

    def _opened(self) -> GPUMagic:
        if self._magic is None:
            from jupyter_gpu.faces.magic import GPUMagic  # noqa: PLC0415 - see the module

            self._magic = GPUMagic(self._launch)
        return self._magic

    def close(self) -> None:
        """Close what the magic has opened."""
        if self._magic is not None:
            self._magic.close()
            self._magic = None


def load(shell: InteractiveShell) -> None:
    """Register ``%gpu`` and its completion; IPython calls this once per shell."""
    gate = Gate()
    shell.register_magic_function(gate.line, "line", NAME)
    shell.register_magic_function(gate.cell, "cell", NAME)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(_matcher())


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


def _matcher() -> Callable[[CompletionContext], SimpleMatcherResult]:
    from IPython.core.completer import (  # noqa: PLC0415 - only inside IPython
        SimpleCompletion,
        context_matcher,
    )

    def complete(context: CompletionContext) -> SimpleMatcherResult:
        """Offer the subcommands of ``%gpu`` on its line, and nothing anywhere else."""
        before, _, token = context.line_with_cursor[: context.cursor_position].rpartition(" ")
        words = before.split()
        if words[:1] != [f"%{NAME}"] or any(word in SUBCOMMANDS for word in words):
            return {"completions": []}
        found = [SimpleCompletion(word) for word in _WORDS if word.startswith(token)]
        return {"completions": found, "suppress": bool(found)}

    decorated: Callable[[CompletionContext], SimpleMatcherResult] = context_matcher(
        identifier=_MATCHER
    )(complete)
    return decorated
