"""Which parts of a monitor go over the wire with a tick, so that it stays within its bytes.

Each part is a widget, and each change of a widget a message of its own. The fast numbers of all
devices are one part and go with every tick; the rest, a part for each device, takes turns: whose
picture is the most outdated comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

LIMIT_BYTES = 4096
# What stands around the value of a widget in a message on its way, measured with ipykernel 7.4:
# headers of itself and of the cell, signature, ids, and the comm's own words.
MESSAGE_BYTES = 690
# Where nothing fits beside the fast numbers, they stay behind once in so many ticks.
PATIENCE_TICKS = 3

FAST = "now"
URGENT = ("state", "button")


def message_bytes(value: str) -> int:
    """Return what a message with a new value takes on the wire."""
    return len(json.dumps(value, ensure_ascii=False).encode()) + MESSAGE_BYTES


class Turns:
    """The turns of one monitor's parts.

    Parameters
    ----------
    limit
        The most bytes of a tick.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._tick = 0
        self._since: dict[str, int] = {}
        self._rest_sent = 0

    def choose(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return which of the parts that differ go with this tick, in the order to send them.

        Parameters
        ----------
        sizes
            Bytes by part: ``FAST``, the ``URGENT`` ones, and those that take turns.
        """
        self._tick += 1
        rest = [part for part in sizes if part != FAST]
        self._since = {part: self._since.get(part, self._tick) for part in rest}
        waiting = sorted(rest, key=lambda part: (part not in URGENT, self._since[part]))
        chosen = self._filled([FAST] if FAST in sizes else [], waiting, sizes)
        if waiting and chosen == [FAST] and self._is_impatient(waiting[0]):
            chosen = []
        if waiting and not chosen:
            chosen = self._filled([], waiting, sizes) or waiting[:1]
        for part in chosen:
            if self._since.pop(part, None) is not None:
                self._rest_sent = self._tick
        return tuple(chosen)

    def all_sent(self) -> None:
        """Note that every part is up to date."""
        self._since.clear()

    def _filled(self, begun: list[str], waiting: list[str], sizes: Mapping[str, int]) -> list[str]:
        """Return what is begun, with as many of the waiting as fit."""
        chosen, left = list(begun), self._limit - sum(sizes[part] for part in begun)
        for part in waiting:
            if sizes[part] <= left:
                chosen.append(part)
                left -= sizes[part]
        return chosen

    def _is_impatient(self, part: str) -> bool:
        waits_since = max(self._since[part], self._rest_sent)
        return part in URGENT or self._tick - waits_since >= PATIENCE_TICKS
