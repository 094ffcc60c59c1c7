"""A place in the queue: who waits is seen to wait, and looks more often the nearer its turn is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

from jupyter_gpu.adapters.claim import CROWD, Claim
from jupyter_gpu.adapters.records import looks
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Look
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.policy import eligible
from jupyter_gpu.core.request import Request

HEAD_LOOKS_EVERY_SECONDS = 0.05
_SIGN_OF_LIFE_SECONDS = 1.0
# Well below the time after which a waiter that does not look counts as stopped.
_LONGEST_PAUSE = 1.9
# Who comes earlier is taken to want what is open. After so long it is time to read whether.
_PATIENCE_SECONDS = 1.0
# While the queue moves on, one look in so many is not left out.
_PASSED_AT_MOST = 4
# The first in the queue shows its life every second. One that is late has probably stopped: then
# something is open because it is kept for that one, until it is passed over.
_AWAKE_SECONDS = 2.5
# Who is as close as this follows the queue at every step, not to be late.
_CLOSE = 4 * CROWD
# A waiter looks at the locks alone, and at everything again after so many pauses.
_ALL_EVERY_PAUSES = 20


class Turn:
    """The turn of one request, from when it was made; ``pause_seconds`` is until its next look."""

    def __init__(self, request: Request, owner: Owner) -> None:
        self._request, self._owner = request, owner
        self._began = time.monotonic()
        self._last_sign = 0.0
        self._crowd: int | None = None
        self._passed = 0
        # Those with earlier tickets than this are gone, or have stopped.
        self._first = 0
        self._open: frozenset[str] = frozenset()
        self._open_since = self._asked = self._nearer_since = 0.0
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.pause_seconds = HEAD_LOOKS_EVERY_SECONDS

    @property
    def waited_seconds(self) -> float:
        """How long ago the request was made."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether the request waits no longer."""
        return self.waited_seconds >= self._request.wait_seconds

    def is_for_all(self, looked: float) -> bool:
        """Return whether it is time to look at everything again, looked at last at ``looked``."""
        since = max(looked, self._nearer_since)
        return time.monotonic() - since > _ALL_EVERY_PAUSES * self.pause_seconds

    def may_have_come(self, store: LeaseStore, claim: Claim, look: Look) -> bool:
        """Return whether there may be something to take: then it is time to look at everything.

        A waiter asks the locks alone what is open and how many come before it, as long as those
        take their turns. What stays open is perhaps of no use to them; so it reads what they want.
        """
        now = time.monotonic()
        if self._is_far(store, claim, now):
            return False
        self._asked = now
        opening = look.candidates.opening(claim)
        if opening is None:
            self._open = frozenset()
            return False
        known = look.around.known
        if look.candidates.inherits or opening.is_left_by(
            known.get(ticket) for ticket in self._before(store, claim)
        ):
            return True
        still = self._open.intersection(opening.room)
        if not still:
            self._open, self._open_since = frozenset(opening.room), now
            return False
        self._open = still
        if now - self._open_since < _PATIENCE_SECONDS:
            return False
        self._open = frozenset()
        # Whom only a limit holds back cannot be told from the queue.
        limited = look.around.site.rules.limits_anyone
        return limited or opening.is_left_by(store.waiters_before(claim.ticket, known))

    def _is_far(self, store: LeaseStore, claim: Claim, now: float) -> bool:
        """Return whether it is not worth a look, so far behind and so soon after the last one.

        As long as the first in the queue changes, others are served, and a look can be left out;
        not for ever, because they may want other devices.
        """
        if self._crowd is None or self._crowd <= CROWD:
            return False
        lately = now - self._asked < _PATIENCE_SECONDS
        if lately and self._crowd > _CLOSE:
            return True
        before = self._first
        first = next(self._before(store, claim), before)
        self._passed = 0 if first == before else (self._passed + 1) % _PASSED_AT_MOST
        return lately or self._passed > 0 or not looks(store.place, first, _AWAKE_SECONDS)

    def _before(self, store: LeaseStore, claim: Claim) -> Iterator[int]:
        """Yield the tickets before this one whose waiters still look."""
        first, nobody_yet = self._first, True
        while (found := claim.earliest_before(first)) is not None:
            first = found.start + found.length
            if found.length == 1 and looks(store.place, found.start):
                self._first = found.start if nobody_yet else self._first
                nobody_yet = False
                yield found.start
        if nobody_yet:
            self._first = claim.ticket or 0

    def wait(self, store: LeaseStore, claim: Claim, look: Look) -> None:
        """Stand in line, or go on standing there.

        Raises
        ------
        StoreError
            When somebody has locked the queue, or the record cannot be written.
        """
        now = time.monotonic()
        if claim.ticket is None:
            devices = eligible(self._request, look.pool.devices)
            record = Record(
                id=claim.id,
                owner=self._owner,
                since=self._since,
                request=self._request,
                ancestors=look.pool.ancestors,
                ticket=store.line_up(claim),
                could_use=tuple(device.uuid for device in devices if device.uuid is not None),
                notebooks=look.around.site.notebooks,
            )
            store.publish(claim, record)
            self._last_sign = now
        elif now - self._last_sign >= _SIGN_OF_LIFE_SECONDS:
            store.show_life(claim)
            self._last_sign = now
        crowd = claim.crowd_before(self._crowd, self._first)
        if crowd != self._crowd:
            self._crowd, self._nearer_since = crowd, now
        self.pause_seconds = min(HEAD_LOOKS_EVERY_SECONDS * crowd / CROWD, _LONGEST_PAUSE)
