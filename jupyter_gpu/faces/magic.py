"""The magic ``%gpu``: reads its line, and asks the subcommand for the answer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast, runtime_checkable

from jupyter_gpu.core.errors import GPUError, UsageError
from jupyter_gpu.core.spelling import did_you_mean
from jupyter_gpu.faces.extension import HELP, SUBCOMMANDS
from jupyter_gpu.faces.monitor_arguments import show_as_sentence
from jupyter_gpu.faces.parser import parse
from jupyter_gpu.faces.shown import Shown

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context
    from jupyter_gpu.faces.magics.subcommand import Options, Subcommand


@runtime_checkable
class Shows(Protocol):
    """A subcommand that shows something by itself, where its answer is not asked for as JSON."""

    def show(self, context: Context, options: Options) -> None:
        """Show it."""


# What is called otherwise on the command line, or stands in another answer.
_ELSEWHERE = {
    "doctor": "%gpu check makes the same checks here.",
    "list": "%gpu lists this kernel's GPUs, %gpu who everybody's.",
    "release": "%gpu use 0 gives this kernel's GPUs back.",
    "run": "jupyter gpu run leases GPUs for a command.",
}


def answer_line(context: Context, line: str) -> Shown | Mapping[str, object] | None:
    """Answer ``%gpu …``."""
    try:
        answer = _answer(context, _split(line.rstrip().removesuffix(";")))
    except UsageError as error:
        _refuse(error, "%gpu", line)
    except GPUError as error:
        show_as_sentence(error)
        raise
    if isinstance(answer, Shown) and _is_lost(context.watch.source, line):
        from IPython.display import display  # noqa: PLC0415 - only inside IPython

        display(answer)
        return None
    return answer


def _is_lost(source: str, line: str) -> bool:
    """Return whether nobody would see the value: it stands alone, and not at the cell's end."""
    rows = [row for row in source.split("\n") if row.strip() and not row.lstrip().startswith("#")]
    wanted = ["%gpu", *line.split()]
    for number, row in enumerate(rows, 1):
        words = row.split()
        filled_in = words[:1] == ["%gpu"] and ("{" in row or "$" in row)
        if (words == wanted or filled_in) and (number < len(rows) or row[0] in " \t"):
            return True
    return False


def answer_cell(context: Context, line: str, cell: str) -> object:
    """Answer ``%%gpu …``."""
    from jupyter_gpu.faces.magics import measure  # noqa: PLC0415 - what a line never needs

    try:
        options = parse(measure.COMMAND, _split(line, "%%gpu"), program="%%gpu")
        if options is None:
            return None
        inner = measure.prepare(context, options, cell)
    except UsageError as error:
        _refuse(error, "%%gpu")
    # Outside: what the cell itself raises is its own, an error of ours too.
    return None if inner is None else measure.measure(context, options, inner)


def _answer(context: Context, words: list[str]) -> Shown | Mapping[str, object] | None:
    if words[:1] in (["-h"], ["--help"]):
        print(HELP)  # noqa: T201 - a magic's help goes to the cell's output
        return None
    if not words or words[0].startswith("-"):
        words = ["status", *words]
    name, *rest = words
    if name in _ELSEWHERE:
        raise UsageError(f"%gpu has no {name!r}. {_ELSEWHERE[name]}")
    if name not in SUBCOMMANDS:
        known = ", ".join(SUBCOMMANDS)
        raise UsageError(
            f"%gpu has no {name!r}.{did_you_mean(name, SUBCOMMANDS)} "
            f"There are: {known}; %gpu --help shows each."
        )
    subcommand = _subcommand(name)
    options = parse(subcommand, rest, program="%gpu")
    if options is None:
        return None
    if isinstance(subcommand, Shows) and not options.json:
        subcommand.show(context, options)
        return None
    answer = subcommand.answer(context, options)
    return answer.data if options.json else Shown(answer.view)


def _subcommand(name: str) -> Subcommand:
    module = import_module(f"jupyter_gpu.faces.magics.{name}")
    return cast("Subcommand", module.SUBCOMMAND)


def _split(line: str, program: str = "%gpu") -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{program}: {error} in {line!r}") from None


def _refuse(error: UsageError, program: str, line: str = "") -> NoReturn:
    """Refuse in one line: the usage that follows the sentence is in the help."""
    sentence, *usage = str(error).splitlines()
    if usage:
        sentence = sentence if sentence.endswith((".", "?")) else f"{sentence}."
        named = [word for word in line.split()[:1] if word in SUBCOMMANDS]
        sentence += f" See  {' '.join((program, *named))} --help"
    from IPython.core.error import UsageError as Refusal  # noqa: PLC0415 - only inside IPython

    # IPython shows this without a traceback, as wrong use of a magic.
    raise Refusal(sentence) from None
