"""What was found: rows of the table that is printed last, and the numbers behind them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

DETAIL_SHOWN = 260
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/'\",)]+/)+")
YES, NO, NOT_RUN, FAILED, MEASURED = "yes", "NO", "not run", "FAILED", "measured"


@dataclass(slots=True)
class Row:
    """One statement: whether it is so, in a few words, and the numbers."""

    part: str
    what: str
    outcome: str
    detail: str = ""
    numbers: dict[str, object] = field(default_factory=dict)


class Findings:
    """The rows so far. ``part`` runs one part: its failure is a row, and the next part runs.

    ``mask`` replaces what would name this machine; ``changed`` is called after every row.
    """

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        self.rows: list[Row] = []
        self.changed: Callable[[], None] = lambda: None
        self._mask = mask
        self.reports: list[dict[str, object]] = []
        self._part = ""

    def check(self, what: str, found: bool, detail: str = "", **numbers: object) -> None:
        """Add a statement that was put to the test."""
        self._add(what, YES if found else NO, detail, numbers)

    def not_run(self, what: str, why: str) -> None:
        """Add a statement that could not be put to the test here."""
        self._add(what, NOT_RUN, why, {})

    def failed(self, what: str, error: Exception) -> None:
        """Add a statement that could not be put to the test, because something broke."""
        self._add(what, FAILED, _words(error), {})

    def measured(self, what: str, detail: str) -> None:
        """Add a number that has no goal."""
        self._add(what, MEASURED, detail, {})

    def _add(self, what: str, outcome: str, detail: str, numbers: dict[str, object]) -> None:
        detail = _FOLDERS.sub("", " ".join(detail.split()))
        numbers = json.loads(self._mask(json.dumps(numbers)))
        row = Row(self._part, self._mask(what), outcome, self._mask(detail), numbers)
        self.rows.append(row)
        print(f"{row.part}  {row.outcome:8} {row.what}", flush=True)
        self.changed()

    @contextlib.contextmanager
    def part(self, name: str, seconds: int) -> Iterator[None]:
        """Run a part, for so many seconds at most."""
        self._part = name
        began = time.monotonic()
        try:
            with _alarm(seconds):
                yield
        except Exception as error:
            self._add("this part ran to its end", FAILED, _words(error), {})
        print(f"   part {name}: {time.monotonic() - began:.0f} s", flush=True)

    @property
    def good(self) -> bool:
        """Whether nothing spoke against us and nothing failed."""
        return not any(row.outcome in (NO, FAILED) for row in self.rows)

    def table(self) -> str:
        return "\n".join(line(row) for row in self.rows)


def line(row: Row) -> str:
    short = row.detail if len(row.detail) <= DETAIL_SHOWN else row.detail[:DETAIL_SHOWN] + "…"
    return f"{row.part}  {row.outcome:8} {row.what}" + (f": {short}" if short else "")


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _words(error: Exception) -> str:
    """Return the error and where it arose, by file names alone."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:600]} ({where})"
