"""Which parts of a monitor go over the wire with a tick, so that it stays within its bytes.

Each part is a widget, and each change of a widget a message of its own. The fast numbers of all
devices are one part and go with every tick; the rest, a part for each device, takes turns: whose
picture is the most outdated comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

LIMIT_BYTES = 4096
# What stands around the value of a widget in a message on its way, measured with ipykernel 7.4
# under JupyterLab: headers of itself and of the cell, signature, ids, and the comm's own words.
MESSAGE_BYTES = 640
# Where nothing fits beside the fast numbers, they stay behind once in so many ticks.
PATIENCE_TICKS = 3


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

    def choose(self, first: Mapping[str, int], rest: Mapping[str, int]) -> tuple[str, ...]:
        """Return which of the parts that differ go with this tick, in the order to send them.

        Parameters
        ----------
        first
            Bytes by part of those that go before all others: the fast numbers, the state.
        rest
            Bytes by part of those that take turns.
        """
        self._tick += 1
        self._since = {part: self._since.get(part, self._tick) for part in rest}
        chosen, left = list(first), self._limit - sum(first.values())
        waiting = sorted(rest, key=lambda part: self._since[part])
        for part in waiting:
            if rest[part] <= left:
                chosen.append(part)
                left -= rest[part]
        if waiting and len(chosen) == len(first):
            oldest = waiting[0]
            if not first or self._tick - self._since[oldest] >= PATIENCE_TICKS:
                chosen = [oldest]
        self.sent(chosen)
        return tuple(chosen)

    def sent(self, parts: Iterable[str]) -> None:
        """Note that these parts are up to date."""
        for part in parts:
            self._since.pop(part, None)
