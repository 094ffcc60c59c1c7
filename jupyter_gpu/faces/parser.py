"""Reads the words of a subcommand with argparse, whose errors become ours."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from functools import partial
from types import SimpleNamespace
from typing import NoReturn, Protocol

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.render_text import WIDTH, wrapped
from jupyter_gpu.core.spelling import did_you_mean


class _Described(Protocol):
    """What a subcommand tells about itself: ``%gpu``'s and the command line's alike."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def example(self) -> str: ...
    @property
    def usage(self) -> str | None: ...
    @property
    def hint(self) -> str: ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...


class _Parser(argparse.ArgumentParser):
    """Raises our error where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")

    def options(self) -> Collection[str]:
        return self._option_string_actions

    def refuse(self, word: str, hint: str) -> NoReturn:
        if word.startswith("-"):
            hint = did_you_mean(word.partition("=")[0], self.options())
        self.error(f"{word!r} is not understood.{hint}")


def parse(
    command: _Described, words: list[str], *, program: str = "jupyter gpu"
) -> SimpleNamespace | None:
    """Return the options of a command line, or None when its help was asked for and shown.

    Parameters
    ----------
    command
        The subcommand, which adds its own options.
    words
        What stands after its name.
    program
        How it is called, for its help.

    Raises
    ------
    UsageError
        When a word is not understood or a value is missing.
    """
    parser = _Parser(
        prog=f"{program} {command.name}",
        usage=command.usage,
        description="\n".join(wrapped(command.about.replace("\n", " "), indent="")),
        epilog=f"Example:\n{command.example}",
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=WIDTH),
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    options = words[: words.index("--")] if "--" in words else words
    for word in options:  # before a complaint about what is missing
        if word.startswith("--") and word.partition("=")[0] not in parser.options():
            parser.refuse(word, command.hint)
    try:
        known, unknown = parser.parse_known_args(words)
    except SystemExit:  # the help
        return None
    if unknown:
        parser.refuse(unknown[0], command.hint)
    return SimpleNamespace(**vars(known))
