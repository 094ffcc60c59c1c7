"""The kernel as the subcommands of ``%gpu`` see it: its shell, its past, and an open machine."""

from __future__ import annotations

import dataclasses
import os
import threading
from datetime import datetime
from typing import TYPE_CHECKING, cast

from jupyter_gpu.adapters.machine import SIMULATE, Machine, find_machine
from jupyter_gpu.kernel_process import look_at_kernel, remember_leased
from jupyter_gpu.overview import read_overview

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.cell_watch import CellWatch
    from jupyter_gpu.core.history import History
    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.faces.hooks import CellHooks
    from jupyter_gpu.feed import Feed


class Context:
    """The kernel that asks. Keeps its machine open, so that a second ``%gpu`` is quick.

    Parameters
    ----------
    shell
        The IPython shell whose magic this is.
    watch
        What has been seen of its cells.
    hooks
        Tell when cells begin and end; without them a feed takes it that none runs.
    """

    def __init__(
        self, shell: InteractiveShell, watch: CellWatch, hooks: CellHooks | None = None
    ) -> None:
        self.shell, self.watch, self._hooks = shell, watch, hooks
        self._feed: Feed | None = None
        self._opened_for: tuple[int, str | None] | None = None
        self._machine: Machine | None = None

    def close(self) -> None:
        """Close the machine and the feed; the next question opens them again."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
        machine, self._machine, self._opened_for = self._machine, None, None
        if machine is not None:
            machine.__exit__(None, None, None)

    def overview(self, *, sensors: bool = False) -> Overview:
        """Return the machine now, with this process as the kernel that asks.

        Parameters
        ----------
        sensors
            Also read utilisation, temperature and power, which is slow.
        """
        overview = read_overview(os.environ, machine=self.machine(), sensors=sensors)
        remember_leased(self.watch, overview.holdings)
        process = look_at_kernel(os.environ, overview.inventory, self.watch)
        return dataclasses.replace(overview, process=process)

    def machine(self) -> Machine:
        """Return the machine that is meant now: another one after a fork or a new simulation."""
        wanted = (os.getpid(), os.environ.get(SIMULATE))
        if self._machine is None or self._opened_for != wanted:
            if self._opened_for is not None and self._opened_for[0] == wanted[0]:
                self.close()
            self._machine, self._opened_for = find_machine(os.environ), wanted
        return self._machine

    def feed(self) -> Feed:
        """Return the feed of this kernel's monitors, made at the first call.

        It reads a machine of its own: a driver that hangs in its thread does not hold up ours.
        """
        if self._feed is not None:
            return self._feed
        from jupyter_gpu.feed import Feed  # noqa: PLC0415 - only for a monitor

        seen = _SeenFromOutside(self.watch)

        def read(machine: Machine) -> Overview:
            overview = read_overview(os.environ, machine=machine)
            remember_leased(self.watch, overview.holdings)
            process = look_at_kernel(os.environ, overview.inventory, cast("CellWatch", seen))
            return dataclasses.replace(overview, process=process)

        self._feed = Feed(read, lambda: find_machine(os.environ), lambda: os.environ.get(SIMULATE))
        if self._hooks is not None:
            self._hooks.tell(seen)
            self._hooks.tell(self._feed)
        return self._feed

    @staticmethod
    def now() -> datetime:
        """Return the present in the reader's time zone."""
        return datetime.now().astimezone()


class _SeenFromOutside:
    """What has been seen of the cells, as another thread may ask for it while one runs.

    Only the cell's own thread can tell which of its lines imported or initialised something. Were
    another one to take note of it first, the cell's end would find nothing new.
    """

    def __init__(self, watch: CellWatch) -> None:
        self._watch = watch
        self.launch, self.known_devices = watch.launch, watch.known_devices
        self._running: tuple[int, History] | None = None

    def cell_begins(self, number: int | None) -> None:  # noqa: ARG002 - what hooks tell
        """Keep what is known until now; called in the cell's thread."""
        self._running = threading.get_ident(), self._watch.history()

    def cells_end(self) -> None:
        """Let everything be asked again."""
        self._running = None

    def history(self) -> History:
        """Return what is known; while a cell runs, in other threads, what was known before it."""
        running = self._running
        if running is None or running[0] == threading.get_ident():
            return self._watch.history()
        return running[1]
