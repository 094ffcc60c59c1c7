"""Tells a person, under the last cell, that the kernel holds devices and has done nothing for long.

Begun only where an idle time is set. Nothing runs meanwhile but a timer of the kernel's own loop;
what is idle is read in the lease's record, which the server keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jupyter_gpu.core.variables import IDLE_WARNING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.idle import OwnUse

# Where the devices work, or it is not known, the record is read again after so long.
LOOK_AGAIN_SECONDS = 60.0


class IdleNotice:
    """The notice of one shell, at most one between two cells.

    Parameters
    ----------
    shell
        Whose last cell it stands under.
    seconds
        After how long.
    read
        Reads the lease of this process; called only when the time has come.
    now
        The present, in the reader's time zone.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        seconds: float,
        read: Callable[[], OwnUse | None],
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._shell, self._seconds, self._read, self._now = shell, seconds, read, now
        self._pid = os.getpid()
        self._timer: asyncio.TimerHandle | None = None
        self._off = False

    @property
    def pending(self) -> bool:
        """Whether there may be something to say later."""
        return self._timer is not None

    def cell_begins(self) -> None:
        """Say nothing while a cell runs; called before each."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def cells_end(self) -> None:
        """Begin to wait; called when a cell has ended and none runs around it."""
        self.cell_begins()
        if self._off:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a shell in a terminal: nobody could be told before the next prompt
            return
        self._wait(loop, self._seconds, self._parent_header())

    def close(self) -> None:
        """Say nothing more."""
        self._off = True
        self.cell_begins()

    def _wait(self, loop: asyncio.AbstractEventLoop, seconds: float, parent: object) -> None:
        self._timer = loop.call_later(seconds, self._time_is_up, loop, parent)

    def _time_is_up(self, loop: asyncio.AbstractEventLoop, parent: object) -> None:
        self._timer = None
        if self._off or os.getpid() != self._pid:
            return  # a forked child: its parent's notebook is not its own
        try:
            self._look(loop, parent)
        except Exception as error:  # noqa: BLE001 - the person's kernel runs whatever we do
            self._give_up(error)

    def _look(self, loop: asyncio.AbstractEventLoop, parent: object) -> None:
        from jupyter_gpu.core.idleness import idle_view, seconds_left  # noqa: PLC0415 - rarely

        use = self._read()
        if use is None:
            return  # it holds nothing, until a cell changes that
        now, since = self._now(), use.record.owner.idle_since
        left = min(LOOK_AGAIN_SECONDS, self._seconds)
        if since is not None:
            left = seconds_left(since, self._seconds, now)
        if left > 0:
            # The last cell is that long ago, but its devices have worked since, or nobody knows.
            self._wait(loop, max(left, 1.0), parent)
            return
        from jupyter_gpu.faces.shown import Shown  # noqa: PLC0415 - rarely

        with self._under_cell(parent):
            self._display(Shown(idle_view(use.record, use.waiting, now)))

    @staticmethod
    def _display(shown: object) -> None:
        from IPython.display import display  # noqa: PLC0415 - only inside IPython

        display(shown)

    def _parent_header(self) -> Any:  # noqa: ANN401 - ipykernel's
        """Return what ties an output to the cell that has ended, None outside of a kernel."""
        return getattr(self._shell.display_pub, "parent_header", None)

    @contextlib.contextmanager
    def _under_cell(self, parent: Any) -> Any:  # noqa: ANN401 - ipykernel's
        """Have what is displayed stand under a cell.

        ipykernel 7 finds it in the context, which a timer keeps; in ipykernel 6 any later request,
        such as one for completions, has taken its place.
        """
        publisher: Any = self._shell.display_pub
        kept = getattr(publisher, "parent_header", None)
        if not parent or kept == parent:
            yield
            return
        publisher.parent_header = parent
        try:
            yield
        finally:
            publisher.parent_header = kept

    def _give_up(self, error: Exception) -> None:
        self.close()
        what = type(error).__name__
        with contextlib.suppress(Exception):  # its own words may fail
            what = f"{what}: {error}"
        with contextlib.suppress(Exception):  # a stream that is closed
            print(  # noqa: T201 - under the person's cell
                f"jupyter_gpu no longer tells when this kernel is idle ({what}).\n"
                "Your own code is not affected.",
                file=sys.stderr,
            )


def seconds_from(environ: Mapping[str, str]) -> float | None:
    """Return the idle time that this kernel was started with, None where there is none."""
    try:
        seconds = float(environ.get(IDLE_WARNING, ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def notice_for(shell: InteractiveShell, environ: Mapping[str, str]) -> IdleNotice | None:
    """Return the notice of a kernel, None where no idle time is set."""
    seconds = seconds_from(environ)
    if seconds is None:
        return None

    def read() -> OwnUse | None:
        from jupyter_gpu.idle import own_use  # noqa: PLC0415 - only when the time has come

        return own_use(os.environ)

    return IdleNotice(shell, seconds, read)
