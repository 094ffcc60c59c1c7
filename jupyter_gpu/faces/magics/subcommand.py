"""What every subcommand of ``%gpu`` is: options, and one answer as a view and as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.core.view import View
    from jupyter_gpu.faces.magics.context import Context

Options = SimpleNamespace


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: the view for a person, and the JSON (``schema`` included) for a program."""

    view: View
    data: Mapping[str, object]


class Subcommand(ABC):
    """One subcommand; ``example`` closes its help, ``hint`` a complaint about an unknown word."""

    name: ClassVar[str]
    about: ClassVar[str]
    example: ClassVar[str]
    usage: ClassVar[str | None] = None
    hint: ClassVar[str] = ""

    def add_arguments(self, parser: ArgumentParser) -> None:  # noqa: B027 - optional
        """Add the options that only this subcommand has; ``--json`` is every one's."""

    @abstractmethod
    def answer(self, context: Context, options: Options) -> Answer:
        """Answer in this kernel.

        Raises
        ------
        GPUError
            What cannot be done becomes one sentence under the cell.
        """
