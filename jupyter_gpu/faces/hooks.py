"""The hooks around every cell: cheap while nothing is wrong, and never in the person's way.

IPython calls them for each cell that it runs, those that other cells run included. What there is to
say is shown as the cell's own output, below what the cell and its traceback have shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jupyter_gpu.core.variables import VISIBLE

if TYPE_CHECKING:
    from IPython.core.interactiveshell import (
        ExecutionInfo,
        ExecutionResult,
        InteractiveShell,
    )

    from jupyter_gpu.cell_watch import CellEnd, CellWatch
    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.faces.idle_notice import IdleNotice

_BEFORE, _AFTER = "pre_run_cell", "post_run_cell"
# What a misspelt name of the variable has in common with it.
_NAME_BEGINS = VISIBLE[:6]


class CellListener(Protocol):
    """Who wants to know when the kernel works."""

    def cell_begins(self, number: int | None) -> None:
        """Take note that a cell begins; its number is None where it has none."""

    def cells_end(self) -> None:
        """Take note that it has ended, with all that ran inside it."""


class CellHooks:
    """The hooks of one shell.

    Parameters
    ----------
    shell
        Whose cells they are.
    watch
        Told of every cell.
    read
        Reads the machine, as the kernel that asks; called only when there is something to say.
    notice
        Told when cells begin and when the last one has ended, where an idle time is set.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        watch: CellWatch,
        read: Callable[[], Overview],
        notice: IdleNotice | None = None,
    ) -> None:
        self._shell, self._watch, self._read, self._notice = shell, watch, read, notice
        self._running: list[ExecutionInfo] = []
        self._inner: list[tuple[str, BaseException]] = []
        self._ahead = _counts_ahead(shell)
        self._listeners: tuple[CellListener, ...] = ()
        # The cell that runs and whose beginning was not seen, because it has loaded us.
        self._unseen: ExecutionInfo | None = None

    def tell(self, listener: CellListener) -> None:
        """Tell a listener of every cell from now on, the one that runs now included.

        Cells that other cells run are not told of. A listener that raises is told nothing more.
        """
        self._listeners = (*self._listeners, listener)
        if not self._running and self._unseen is None:
            result = getattr(self._shell.displayhook, "exec_result", None)
            info = getattr(result, "info", None)
            # Of the end of a silent one nobody is told.
            self._unseen = None if info is None or info.silent else info
        current = self._running[0] if self._running else self._unseen
        if current is not None:
            self._tell((listener,), begins=True, number=self._number_of(current))

    def register(self) -> None:
        """Ask IPython to call the hooks from the next cell on."""
        self._shell.events.register(_BEFORE, self.pre_run_cell)
        self._shell.events.register(_AFTER, self.post_run_cell)

    def unregister(self) -> None:
        """Ask IPython not to call them any more; calling it twice does nothing more."""
        for event, hook in ((_BEFORE, self.pre_run_cell), (_AFTER, self.post_run_cell)):
            if hook in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, hook)
        if self._notice is not None:
            self._notice.close()
        listeners, self._listeners = self._listeners, ()
        # Of the end of the cell that runs now they would not hear.
        self._tell(listeners, begins=False)
        self._watch.close()

    def pre_run_cell(self, info: ExecutionInfo) -> None:
        """Note that a cell begins; IPython calls this."""
        try:
            self._running.append(info)
            if self._notice is not None:
                self._notice.cell_begins()
            number = self._number_of(info)
            self._watch.begin(number, info.raw_cell or "")
            if self._listeners and len(self._running) == 1 and self._unseen is None:
                self._tell(self._listeners, begins=True, number=number)
        except Exception as error:  # noqa: BLE001 - the person's cell runs whatever we do
            self._give_up(error)

    def post_run_cell(self, result: ExecutionResult | None) -> None:
        """Note that it has ended, and say what there is to say; IPython calls this."""
        try:
            self._end(result)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _end(self, result: ExecutionResult | None) -> None:
        info = result.info if result is not None else (self._running or [None])[-1]
        if not any(info is running for running in self._running):
            self._end_unseen(info)
            return  # an empty cell, or the one that has loaded us: its beginning was not seen
        # Without a result something has ended the cell that IPython does not catch.
        error = None if result is None else result.error_before_exec or result.error_in_exec
        whole = result is not None and error is None
        stopped_at = None if whole else _line_of(error, self._shell.user_ns)
        while self._running:
            ended = self._watch.end(stopped_at)
            if self._running.pop() is info:
                break
        if not self._running:
            self._end_all()
        source = info.raw_cell or ""
        if self._watch.failure is not None:
            self._give_up(self._watch.failure)
            return
        if self._running and error is not None:
            # What the cell around it does with its output is not ours to guess: %%capture keeps it.
            self._inner.append((source, error))
        elif error is not None or self._inner or _NAME_BEGINS in source or _has_news(ended):
            inner, self._inner = self._inner, []
            for told, raised in (*inner, (source, error)):
                self._report(ended if told is source else None, told, raised)

    def _end_all(self) -> None:
        """Note that no cell runs any more of those that were seen to begin."""
        if self._notice is not None:
            self._notice.cells_end()
        if self._listeners and self._unseen is None:
            self._tell(self._listeners, begins=False)

    def _end_unseen(self, info: ExecutionInfo | None) -> None:
        """Note that the cell has ended which a listener was told of while it ran already."""
        if self._unseen is not None and info in (None, self._unseen):
            self._unseen = None
            self._tell(self._listeners, begins=False)

    def _number_of(self, info: ExecutionInfo) -> int | None:
        """Return the number of a cell that runs now, None where it has none."""
        return self._shell.execution_count - self._ahead if info.store_history else None

    def _tell(
        self, listeners: tuple[CellListener, ...], *, begins: bool, number: int | None = None
    ) -> None:
        for listener in listeners:
            try:
                if begins:
                    listener.cell_begins(number)
                else:
                    listener.cells_end()
            except Exception as error:  # noqa: BLE001, PERF203 - the person's cell runs on
                self._listeners = tuple(one for one in self._listeners if one is not listener)
                _say(f"jupyter_gpu no longer follows the cells for a monitor ({_words(error)}).")

    def _report(self, ended: CellEnd | None, source: str, error: BaseException | None) -> None:
        if os.getpid() != self._watch.launch.pid:
            return  # a forked child: its parent's notebook is not its own
        from jupyter_gpu.cell_report import report  # noqa: PLC0415 - only with something to say

        views = report(ended, source, error, self._read)
        if views:
            from IPython.display import display  # noqa: PLC0415 - only inside IPython

            from jupyter_gpu.faces.shown import Shown  # noqa: PLC0415

            for view in views:
                display(Shown(view))

    def _give_up(self, error: Exception) -> None:
        with contextlib.suppress(Exception):  # the hooks are off in any case
            self.unregister()
        _say(
            f"jupyter_gpu no longer watches this kernel's cells ({_words(error)}).\n"
            "Your own code is not affected.  %reload_ext jupyter_gpu  begins anew."
        )


def _words(error: Exception) -> str:
    what = type(error).__name__
    with contextlib.suppress(Exception):  # its own words may fail
        what = f"{what}: {error}"
    return what


def _say(text: str) -> None:
    """Print under the person's cell."""
    with contextlib.suppress(Exception):  # a stream that is closed
        print(text, file=sys.stderr)  # noqa: T201


def _has_news(ended: CellEnd | None) -> bool:
    return ended is not None and ended.change is not None


def _line_of(error: BaseException | None, names: object) -> int:
    """Return the line of the cell at which an error was raised; 0 where that is not known."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is not names:
        trace = trace.tb_next
    return 0 if trace is None else trace.tb_lineno


def _counts_ahead(shell: InteractiveShell) -> int:
    """Return 1 where the shell's number is the next cell's already while a cell runs.

    IPython from 9.8 on counts before the hooks are called, and keeps the cell's own number in a
    variable of this name; earlier ones count at the cell's end. A shell may wrap what it inherits.
    """
    codes = (
        getattr(vars(kind).get("run_cell_async"), "__code__", None) for kind in type(shell).__mro__
    )
    names = {
        name
        for code in codes
        if code is not None
        for name in (*code.co_varnames, *code.co_cellvars)
    }
    return int("execution_count" in names)
