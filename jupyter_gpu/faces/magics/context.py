"""The kernel as the subcommands of ``%gpu`` see it: its shell, its past, and an open machine."""

from __future__ import annotations

import dataclasses
import os
from datetime import datetime
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.machine import SIMULATE, Machine, find_machine
from jupyter_gpu.kernel_process import look_at_kernel, remember_leased
from jupyter_gpu.overview import read_overview

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.cell_watch import CellWatch
    from jupyter_gpu.core.overview import Overview


class Context:
    """The kernel that asks. Keeps its machine open, so that a second ``%gpu`` is quick.

    Parameters
    ----------
    shell
        The IPython shell whose magic this is.
    watch
        What has been seen of its cells.
    """

    def __init__(self, shell: InteractiveShell, watch: CellWatch) -> None:
        self.shell, self.watch = shell, watch
        self._opened_for: tuple[int, str | None] | None = None
        self._machine: Machine | None = None

    def close(self) -> None:
        """Close the machine; the next question opens it again."""
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

    @staticmethod
    def now() -> datetime:
        """Return the present in the reader's time zone."""
        return datetime.now().astimezone()
