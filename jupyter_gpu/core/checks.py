"""A check of ``doctor`` and ``%gpu check``: what was looked at and found, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["ok", "warn", "fail"]
# How a fix begins that is there to be copied: it stays in one piece, however long.
_COMMANDS = ("/", "'/", "jupyter ", "sudo ", "kill ", "nvidia-smi ", "python", "%")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``fix`` is a command or a short instruction, None where nothing is wrong."""

    name: str
    status: CheckStatus
    found: str
    fix: str | None = None

    @property
    def fix_is_command(self) -> bool:
        """Whether the fix is one command, to be shown in one piece."""
        return self.fix is not None and self.fix.startswith(_COMMANDS)

    def as_json(self) -> dict[str, object]:
        """Return the check of interface.md."""
        return {"name": self.name, "status": self.status, "found": self.found, "fix": self.fix}


def checks_answer(checks: Iterable[Check]) -> dict[str, object]:
    """Return the answer of ``doctor`` and ``%gpu check`` for programs."""
    return {"schema": 1, "checks": [check.as_json() for check in checks]}


def halves(problem: str) -> tuple[str, str]:
    """Part a driver's sentence into what is so and what to do about it."""
    found, _, fix = problem.partition("; ")
    return found.removesuffix("."), fix.removesuffix(".")
