"""Watches imports while a cell runs, to name the one whose code initialised CUDA.

A finder at the head of ``sys.meta_path`` lets the others find a module and marks the spec they
give: importlib sets ``_initializing`` on it before the module's code runs and clears it after, and
the mark turns both into a look at the driver. Nothing else of an import changes: the loader, the
module and tracebacks are what they are without us. Where an implementation has no such attribute,
nothing is named.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportWatch:
    """Follows the imports of one thread between ``start`` and ``stop``.

    Parameters
    ----------
    look
        Asked at every boundary between modules; when it has answered true once, ``chain`` holds
        the modules whose code was running then, outermost first, and nothing is asked any more.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._running: list[str] = []
        self._thread: int | None = None
        self._marked = _marked_spec(self._enter, self._leave)
        self.chain: tuple[str, ...] | None = None
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to watch this thread's imports."""
        self._thread = threading.get_ident()
        self._running.clear()
        self.chain = None
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """End it; calling it twice does nothing more."""
        self._thread = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the finders after this one give, marked; importlib calls this."""
        ours = threading.get_ident() == self._thread and self.chain is None
        if ours:
            self._see(())
        found = self._found_by_others(name, path, target)
        if ours and type(found) is ModuleSpec:
            found.__class__ = self._marked
        return found

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        past = False
        for finder in list(sys.meta_path):
            if finder is self:
                past = True
            elif past and hasattr(finder, "find_spec"):
                found: ModuleSpec | None = finder.find_spec(name, path, target)
                if found is not None:
                    return found
        return None

    def _enter(self, name: str) -> None:
        # What a compiled module does while it is loaded, it does before its code runs.
        self._see((name,))
        self._running.append(name)

    def _leave(self, name: str) -> None:
        self._see(())
        if name in self._running:
            del self._running[self._running.index(name) :]

    def _see(self, entering: tuple[str, ...]) -> None:
        if threading.get_ident() != self._thread or self.chain is not None:
            return
        try:
            if self._look():
                self.chain = (*self._running, *entering)
        except Exception as error:  # noqa: BLE001 - raised here it would end the person's import
            self.failure, self._thread = error, None


def _marked_spec(enter: Callable[[str], None], leave: Callable[[str], None]) -> type[ModuleSpec]:
    class MarkedSpec(ModuleSpec):
        """A spec that tells when its module's code begins and ends, and is a plain one then."""

        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__.get("_initializing", False))

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if value:
                enter(self.name)
            else:
                self.__class__ = ModuleSpec  # type: ignore[assignment] # plain again
                leave(self.name)

    return MarkedSpec
