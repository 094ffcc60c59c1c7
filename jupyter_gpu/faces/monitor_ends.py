"""Tells monitors that stand still when cells have ended, as long as they want to know."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable


class CellEnds:
    """Those of one shell who are called when a cell has ended; the shell's hooks tell it."""

    def __init__(self) -> None:
        self._called: tuple[Callable[[], None], ...] = ()

    def add(self, callback: Callable[[], None]) -> None:
        """Call it from now on; adding it twice does nothing more."""
        if callback not in self._called:
            self._called = (*self._called, callback)

    def remove(self, callback: Callable[[], None]) -> None:
        """Call it no more, if it ever was."""
        self._called = tuple(one for one in self._called if one != callback)

    def cell_begins(self, number: int | None) -> None:
        """Do nothing; the hooks call this."""

    def cells_end(self) -> None:
        """Call them; one that fails is called no more, and the person's cell goes on."""
        for callback in self._called:
            try:
                callback()
            except Exception as error:  # noqa: BLE001, PERF203 - never in the way of a cell
                self.remove(callback)
                with contextlib.suppress(Exception):  # a stream that is closed
                    print(  # noqa: T201 - under the person's cell
                        f"The GPU monitor is no longer renewed ({type(error).__name__}: {error}).",
                        file=sys.stderr,
                    )
