"""The view of ``doctor`` and ``%gpu check``: the sum in a line, then every check. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.view import View


def checks_view(checks: Sequence[Check], machine: str = "") -> View:
    """Return the view of some checks; ``machine`` says what machine they are about."""
    return View(title=summary(checks), machine=machine, checks=tuple(checks))


def summary(checks: Sequence[Check]) -> str:
    """Return ``"14 checks: 1 failed, 2 with a warning"``."""
    failed = sum(check.status == "fail" for check in checks)
    warned = sum(check.status == "warn" for check in checks)
    if not failed and not warned:
        return f"{in_words(len(checks), 'check')}: all is well"
    return f"{in_words(len(checks), 'check')}: {failed} failed, {warned} with a warning"
