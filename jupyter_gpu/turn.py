"""A place in the queue: who waits is seen to wait, and looks more often the nearer its turn is."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from jupyter_gpu.adapters.claim import CROWD, Claim
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Look
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.policy import eligible
from jupyter_gpu.core.request import Request

HEAD_LOOKS_EVERY_SECONDS = 0.05
_SIGN_OF_LIFE_SECONDS = 1.0
# Well below the time after which a waiter that does not look counts as stopped.
_LONGEST_PAUSE = 1.5
# A waiter looks at the locks alone, and at everything again after so many pauses.
_ALL_EVERY_PAUSES = 20


class Turn:
    """The turn of one request, from when it was made; ``pause_seconds`` is until its next look."""

    def __init__(self, request: Request, owner: Owner) -> None:
        self._request, self._owner = request, owner
        self._began = time.monotonic()
        self._last_sign = 0.0
        self._crowd: int | None = None
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
        return time.monotonic() - looked > _ALL_EVERY_PAUSES * self.pause_seconds

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
                ticket=claim.line_up(),
                could_use=tuple(device.uuid for device in devices if device.uuid is not None),
                notebooks=look.around.site.notebooks,
            )
            store.publish(claim, record)
            self._last_sign = now
        elif now - self._last_sign >= _SIGN_OF_LIFE_SECONDS:
            store.show_life(claim)
            self._last_sign = now
        self._crowd = claim.crowd_before(self._crowd)
        self.pause_seconds = min(HEAD_LOOKS_EVERY_SECONDS * self._crowd / CROWD, _LONGEST_PAUSE)
