"""One listener of a feed: when it is called, and how often it may fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_gpu.core.live import Moment

Listener = Callable[["Moment"], None]
_CALL_SPACING_SECONDS = 0.5  # between two calls, however short the cells are
_MOST_FAILURES = 3  # in a row: a front end that is just going away may fail once


class Watching:
    """One listener of a feed, until ``close``; ``ended`` is called when the feed is dismissed."""

    def __init__(
        self,
        end: Callable[[Watching], None],
        listener: Listener,
        interval: float,
        uuids: tuple[str, ...],
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._end = end
        self.listener, self.interval, self.uuids = listener, interval, uuids
        self.due = math.inf
        self.called_at = -math.inf
        self._failures = 0
        self.ended = ended

    def close(self) -> None:
        """Call the listener no more, but for a call that has begun; may be called twice."""
        self._end(self)

    def is_due_at(self, now: float) -> None:
        """Have it called then, or a little later where it has just been called."""
        spacing = min(self.interval, _CALL_SPACING_SECONDS)
        self.due = min(self.due, max(now, self.called_at + spacing))

    def was_called_at(self, now: float) -> None:
        """Put the next call on the beat, after any that were missed."""
        due = min(self.due, now)
        self.due = due + self.interval * (math.floor((now - due) / self.interval) + 1)
        self.called_at = now

    def tell(self, moment: Moment) -> None:
        """Call the listener; one that fails again and again is called no more."""
        try:
            self.listener(moment)
            self._failures = 0
        except BaseException:  # noqa: BLE001 - one listener's error, or exit, is not the others'
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self.close()
