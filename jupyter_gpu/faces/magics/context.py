"""The kernel as the subcommands of ``%gpu`` see it: its shell, its past, and an open machine."""

from __future__ import annotations

import dataclasses
import os
from datetime import datetime
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.machine import SIMULATE, Machine, find_machine
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.kernel_process import look_at_kernel, remember_leased
from jupyter_gpu.overview import read_overview

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.cell_watch import CellWatch
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
            feed.dismiss()
        self._close_machine()

    def _close_machine(self) -> None:
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
        return self._with_kernel(
            read_overview(os.environ, machine=self.machine(), sensors=sensors)
        )

    def _with_kernel(self, overview: Overview) -> Overview:
        remember_leased(self.watch, overview.holdings)
        process = look_at_kernel(os.environ, overview.inventory, self.watch)
        return dataclasses.replace(overview, process=process)

    def machine(self) -> Machine:
        """Return the machine that is meant now: another one after a fork or a new simulation."""
        wanted = (os.getpid(), os.environ.get(SIMULATE))
        if self._machine is None or self._opened_for != wanted:
            if self._opened_for is not None and self._opened_for[0] == wanted[0]:
                self._close_machine()
            self._machine, self._opened_for = find_machine(os.environ), wanted
        return self._machine

    def feed(self) -> Feed:
        """Return the feed of this kernel's monitors, made at the first call.

        It reads a machine of its own: a driver that hangs in its thread does not hold up ours.
        """
        if self._feed is not None:
            return self._feed
        from jupyter_gpu.feed import Feed  # noqa: PLC0415 - only for a monitor

        def read(machine: Machine) -> Overview:
            return self._with_kernel(read_overview(os.environ, machine=machine))

        self._feed = Feed(read, lambda: find_machine(os.environ), _machine_meant)
        if self._hooks is not None:
            self._hooks.tell(self._feed)
        return self._feed

    @staticmethod
    def now() -> datetime:
        """Return the present in the reader's time zone."""
        return datetime.now().astimezone()


def _machine_meant() -> tuple[str | None, str | None]:
    """Return what tells one machine, and what is visible of it, from another."""
    return os.environ.get(SIMULATE), os.environ.get(VISIBLE)
