"""What every subcommand is: options, one answer, and a help that teaches with an example."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

from jupyter_gpu.core.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.core.view import View

Options = SimpleNamespace


class Command(ABC):
    """One subcommand.

    ``takes_rest`` is true where words after ``--`` mean something, ``has_arguments`` where there is
    more than ``--json``; ``hint`` follows the complaint about a word that is not understood, and
    ``example`` closes the help.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    example: ClassVar[str]
    usage: ClassVar[str | None] = None
    takes_rest: ClassVar[bool] = False
    hint: ClassVar[str] = ""
    has_arguments: ClassVar[bool] = True

    def main(self, words: list[str]) -> int:
        """Read the command line and answer; called by the entry point.

        Raises
        ------
        UsageError
            When the command line is not understood.
        """
        rest: tuple[str, ...] | None = None
        if "--" in words:
            at = words.index("--")
            words, rest = words[:at], tuple(words[at + 1 :])
            if not self.takes_rest:
                raise UsageError(f"{self.name} takes nothing after --")
        options = Options(json=True) if words == ["--json"] else Options(json=False)
        if words not in ([], ["--json"]) or self.has_arguments:
            # argparse costs as much as the answer of ``status``: only where there is work for it.
            from jupyter_gpu.faces.parser import parse  # noqa: PLC0415

            parsed = parse(self, words)
            if parsed is None:  # the help has been shown
                return 0
            options = parsed
        return self.run(options, rest)

    def add_arguments(self, parser: ArgumentParser) -> None:  # noqa: B027 - optional
        """Add the options that only this command has; none by default."""

    @abstractmethod
    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Do it, and return the exit code; ``rest`` are the words after ``--``, None without."""


def answer(options: Options, data: Mapping[str, object], view: View) -> int:
    """Write the answer to standard output, as JSON where that is asked for; returns 0."""
    if options.json:
        write_json(data)
    else:
        from jupyter_gpu.core.render_text import as_text  # noqa: PLC0415 - not for JSON

        sys.stdout.write(f"{as_text(view)}\n")
    return 0


def write_json(data: Mapping[str, object]) -> None:
    """Write one JSON object to standard output."""
    sys.stdout.write(f"{json.dumps(data, indent=2)}\n")


def explain(sentence: str) -> None:
    """Write a sentence beside the answer, to standard error."""
    from jupyter_gpu.core.render_text import wrapped_lines  # noqa: PLC0415 - not for every answer

    sys.stderr.write(f"{wrapped_lines(sentence)}\n")
