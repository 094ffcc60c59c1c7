"""Watches a kernel's cells: which one imported what, changed the variable, or initialised CUDA."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.driver import DriverWatch
from jupyter_gpu.adapters.imports import ImportWatch
from jupyter_gpu.core.frameworks import BY_MODULE, MODULES
from jupyter_gpu.core.history import Change, Frozen, History, Imported
from jupyter_gpu.core.variables import VISIBLE

if TYPE_CHECKING:
    from jupyter_gpu.adapters.launch import Launch

_CHANGES_KEPT = 100


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
        self._value = environ.get(VISIBLE)
        self._changes: deque[Change] = deque(maxlen=_CHANGES_KEPT)
        self._imported: dict[str, Imported] = {}
        self._missing = list(MODULES)
        self._frozen: Frozen | None = None
        self._frozen_at_fork: bool | None = None
        self._ran_any = False
        self._last: int | None = None
        self._current: tuple[int | None, str] | None = None
        self._inside = 0
        self._frozen_before = False
        if self._driver.is_frozen():
            self._frozen = Frozen(None, "before")
        self._note_imports(None)
        _watch_forks(weakref.ref(self))

    def close(self) -> None:
        """End an import watch that is running."""
        self._imports_watched.stop()

    @property
    def failure(self) -> Exception | None:
        """What went wrong inside an import, where it must not be raised; else None."""
        return self._imports_watched.failure

    def begin(self, cell: int | None, source: str) -> None:
        """Note that a cell begins; ``cell`` is its number, None where it has none."""
        if os.getpid() != self.launch.pid:
            return
        self._inside += 1
        if self._inside > 1:
            return
        self._look(self._last, "after" if self._ran_any else "before")
        self._frozen_before = self._frozen is not None
        self._current = (cell, source)
        if self._frozen is None:
            self._imports_watched.start()

    def end(self) -> CellEnd | None:
        """Note that it has ended; None for a cell inside another one."""
        if os.getpid() != self.launch.pid or not self._inside:
            return None
        self._inside -= 1
        if self._inside or self._current is None:
            return None
        self._imports_watched.stop()
        cell, _ = self._current
        change = self._look(cell, "during")
        self._current, self._last, self._ran_any = None, cell, True
        return CellEnd(change, self._frozen_before)

    def history(self) -> History:
        """Return what is known now, the running cell included."""
        if os.getpid() != self.launch.pid:
            forked = bool(self._frozen_at_fork)
        else:
            forked = None
            if self._current is not None:
                self._look(self._current[0], "during")
            else:
                self._look(self._last, "after" if self._ran_any else "before")
        return History(
            tuple(self._imported.values()), self._frozen, tuple(self._changes), forked
        )

    def _look(self, cell: int | None, when: str) -> Change | None:
        """Note what is new; it happened during this cell, or after it had ended."""
        if self._frozen is None and self._driver.is_frozen():
            self._frozen = self._freeze(cell, when)
        self._note_imports(cell)
        value = self._environ.get(VISIBLE)
        if value == self._value:
            return None
        change = Change(cell, self._value, value, self._how())
        self._value = value
        self._changes.append(change)
        return change

    def _freeze(self, cell: int | None, when: str) -> Frozen:
        if when != "during" or self._current is None:
            return Frozen(cell, "after" if when == "after" else "before")
        chain = self._imports_watched.chain or ()
        call = None
        if not chain:
            from jupyter_gpu.core.cell_text import freezing_call  # noqa: PLC0415 - once a kernel

            call = freezing_call(self._current[1])
        return Frozen(cell, "during", chain, call)

    def _how(self) -> str:
        if self._current is None:
            return "a thread or a callback"
        from jupyter_gpu.core.cell_text import how_set  # noqa: PLC0415 - only after a change

        return how_set(self._current[1])

    def _note_imports(self, cell: int | None) -> None:
        modules = sys.modules
        found = [module for module in self._missing if module in modules]
        for module in found:
            self._missing.remove(module)
            self._imported[module] = Imported(
                module,
                BY_MODULE[module].name,
                _version_of(module),
                cell,
                frozen_after=self._frozen is not None,
            )

    def _note_fork(self) -> None:
        if os.getpid() == self.launch.pid:
            self._frozen_at_fork = self._frozen is not None or self._driver.is_frozen()


def _version_of(module: str) -> str | None:
    """Return a loaded module's version without waking a lazy one."""
    top = sys.modules.get(module.partition(".")[0])
    try:
        version = object.__getattribute__(top, "__dict__").get("__version__")
    except AttributeError:
        return None
    # torch's is a str of its own kind.
    return str.__str__(version) if isinstance(version, str) else None


def _watch_forks(watch: weakref.ref[CellWatch]) -> None:
    """Have the state noted before each fork: the child must not ask the driver itself."""

    def note() -> None:
        living = watch()
        if living is not None:
            living._note_fork()  # noqa: SLF001 - this module's own

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=note)
