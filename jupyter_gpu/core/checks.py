"""A check of ``doctor``: what was looked at, what was found, and the one thing that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``fix`` is a command or a short instruction, None where nothing is wrong."""

    name: str
    status: CheckStatus
    found: str
    fix: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the check of interface.md."""
        return {"name": self.name, "status": self.status, "found": self.found, "fix": self.fix}
