"""Watches a kernel's cells: which one imported what, changed the variable, or initialised CUDA."""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.driver import DriverWatch
from jupyter_gpu.adapters.imports import ImportWatch
from jupyter_gpu.adapters.loaded import is_torch_without_gpus, names_in
from jupyter_gpu.core.frameworks import BY_MODULE, MODULES
from jupyter_gpu.core.history import Change, Frozen, History, Imported, When
from jupyter_gpu.core.variables import VISIBLE

if TYPE_CHECKING:
    from jupyter_gpu.adapters.launch import Launch

_CHANGES_KEPT = 100
# Names of threads that wait for others' work: IPython's loop for %%bash, executors, queues.
_WAITING_THREADS = re.compile(
    r"run_forever|jupyter-gpu|ThreadPoolExecutor|asyncio_|QueueFeeder|QueueManager|ExecutorManager|_watch_pipe"
)
_OUTSIDE = "a thread or a callback"
# What IPython calls the code of a cell.
_CELL_CODE = ("<module>", "<cell line")
# A variable that, set to 1, keeps a call from initialising CUDA.
_HARMLESS_WITH = {"PYTORCH_NVML_BASED_CUDA_CHECK": "torch.cuda.is_available"}


@dataclass(frozen=True, slots=True)
class CellEnd:
    """What a cell did to the variable, and whether the driver had been frozen before the cell."""

    change: Change | None
    frozen_before: bool


class CellWatch:
    """What has been seen of one kernel's cells since it was made.

    ``begin`` and ``end`` are called around every cell and cost some ten microseconds; a cell that
    runs inside another one belongs to it. In a forked child nothing is looked at any more.

    Parameters
    ----------
    launch
        The start of this process.
    environ
        Where the variable is set: this process's own.
    """

    def __init__(self, launch: Launch, environ: Mapping[str, str] = os.environ) -> None:
        self.launch = launch
        self._environ = environ
        self._driver = DriverWatch()
        self._imports_watched = ImportWatch(self._driver.is_frozen)
        # Other threads may ask for the history while a cell ends.
        self._lock = threading.RLock()
        self._value = launch.visible
        self._changes: deque[Change] = deque(maxlen=_CHANGES_KEPT)
        self._imported: dict[str, Imported] = {}
        self._missing = list(MODULES)
        self._frozen: Frozen | None = None
        self._frozen_at_fork: bool | None = None
        self._when: When = "before"
        self._last: int | None = None
        self._current: tuple[int | None, str] | None = None
        self._thread: int | None = None
        self._inside = 0
        self._frozen_before = False
        self._had_company = False
        # Devices by the digits of their UUID, from every look at the machine.
        self.known_devices: dict[str, tuple[int, str | None]] = {}
        self._threads: frozenset[threading.Thread] | None = None
        self._look(None, "before")
        self._began_with = self._value
        # What was changed before is no change that a cell has made.
        self._changes.clear()
        _watch_forks(weakref.ref(self))

    def close(self) -> None:
        """Watch no import any more, and close what is open."""
        self._imports_watched.close()
        self._driver.close()

    @property
    def failure(self) -> Exception | None:
        """What went wrong inside an import, where it must not be raised; else None."""
        return self._imports_watched.failure

    @property
    def source(self) -> str:
        """The text of the cell that runs now, empty where none does."""
        current = self._current
        return "" if current is None else current[1]

    def begin(self, cell: int | None, source: str) -> None:
        """Note that a cell begins; ``cell`` is its number, None where it has none."""
        if os.getpid() != self.launch.pid:
            return
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._look(self._last, self._when)
            self._frozen_before = self._frozen is not None
            if self._threads is None:  # those of the kernel itself, which has started by now
                self._threads = frozenset(threading.enumerate())
            self._had_company = self._frozen is None and _others_run(self._threads)
            self._began_with = self._value
            self._current, self._thread = (cell, source), threading.get_ident()
            if self._frozen is None:
                self._imports_watched.start()

    def end(self, stopped_at: int | None = None) -> CellEnd | None:
        """Note that it has ended; None for a cell inside another one.

        Parameters
        ----------
        stopped_at
            The line at which an error has ended it, 0 where that is not known; None after a cell
            that ran to its end.
        """
        if os.getpid() != self.launch.pid:
            return None
        with self._lock:
            if self._current is None:
                return None
            self._inside -= 1
            if self._inside:
                return None
            self._imports_watched.stop()
            cell, source = self._current
            self._look(cell, "during", stopped_at)
            self._current, self._last, self._when = None, cell, "after"
            change = None
            if self._value != self._began_with:  # though %gpu in the cell may have noted it
                change = Change(cell, self._began_with, self._value, _how(source))
            return CellEnd(change, self._frozen_before)

    def history(self) -> History:
        """Return what is known now, the running cell included."""
        if os.getpid() != self.launch.pid:
            return self._known(bool(self._frozen_at_fork))
        with self._lock:
            if self._current is None:
                self._look(self._last, self._when)
            else:
                self._look(self._current[0], "during", _line_now())
            return self._known(None)

    def _known(self, forked: bool | None) -> History:
        return History(tuple(self._imported.values()), self._frozen, tuple(self._changes), forked)

    def _look(self, cell: int | None, when: When, line: int | None = None) -> None:
        """Note what is new; it happened during this cell up to this line, or after its end.

        What a running cell does is left to the cell's own thread to find out: only there is it
        known which import has come to its end, and which value was set before CUDA was initialised.
        """
        if self._current is not None and threading.get_ident() != self._thread:
            return
        value = self._environ.get(VISIBLE)
        if self._frozen is None and self._driver.is_frozen():
            values = dict.fromkeys((self._value, value))
            self._frozen = self._freeze(cell, when, line, tuple(values))
        self._note_imports(cell, when)
        if value != self._value:
            how = _OUTSIDE if self._current is None else _how(self._current[1])
            self._changes.append(Change(cell, self._value, value, how))
            self._value = value

    def _freeze(
        self, cell: int | None, when: When, line: int | None, values: tuple[str | None, ...]
    ) -> Frozen:
        if when != "during" or self._current is None:
            return Frozen(cell, when, values=values)
        if self._had_company or _others_run(self._threads or ()):
            return Frozen(cell, "during", values=values, alone=False)
        chain = self._imports_watched.chain or ()
        call = None
        if not chain:
            from jupyter_gpu.core.cell_text import freezing_call  # noqa: PLC0415 - once a kernel

            harmless = [
                call for name, call in _HARMLESS_WITH.items() if self._environ.get(name) == "1"
            ]
            if is_torch_without_gpus():
                harmless.append("torch")
            call = freezing_call(self._current[1], line=line, harmless=harmless)
        return Frozen(cell, "during", chain, call, values)

    def _note_imports(self, cell: int | None, when: When) -> None:
        modules = sys.modules
        # None stands for a module that must not be imported.
        found = [module for module in self._missing if modules.get(module) is not None]
        for module in found:
            self._missing.remove(module)
            self._imported[module] = Imported(
                module,
                BY_MODULE[module].name,
                _version_of(module),
                cell,
                frozen_after=self._frozen is not None,
                when=when,
            )

    def _note_fork(self) -> None:
        if os.getpid() == self.launch.pid:
            self._frozen_at_fork = self._frozen is not None or self._driver.is_frozen()


def _others_run(known: Collection[threading.Thread]) -> bool:
    """Return whether threads of the person's run beside the asking one.

    Not those that were there at the start, nor the kinds that libraries of Jupyter's start for
    themselves and those that only wait for work.
    """
    own = threading.current_thread()
    return any(
        thread is not own
        and thread not in known
        and type(thread).__module__ == threading.__name__
        and _WAITING_THREADS.search(thread.name) is None
        for thread in threading.enumerate()
    )


def _version_of(module: str) -> str | None:
    """Return a loaded module's version without waking a lazy one."""
    version = (names_in(module.partition(".")[0]) or {}).get("__version__")
    # torch's is a str of its own kind.
    return str.__str__(version) if isinstance(version, str) else None


def _how(source: str) -> str:
    from jupyter_gpu.core.cell_text import how_set  # noqa: PLC0415 - only after a change

    return how_set(source)


def _line_now() -> int:
    """Return the line of the cell at which this is asked, 0 where it is not asked in its code."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to the running code
    while frame is not None and not frame.f_code.co_name.startswith(_CELL_CODE):
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


def _watch_forks(watch: weakref.ref[CellWatch]) -> None:
    """Have the state noted before each fork: the child must not ask the driver itself."""

    def note() -> None:
        living = watch()
        if living is not None:
            living._note_fork()  # noqa: SLF001 - this module's own

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=note)
