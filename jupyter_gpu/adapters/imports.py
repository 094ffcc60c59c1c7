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
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

# Until 3.11 importlib also asks finders that have only this, and warns: only it can do so.
_OLD_FINDER = "find_module" if sys.version_info < (3, 12) else None


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
        self._running.clear()
        self.chain = None
        self._thread = threading.get_ident()
        if not any(finder is self for finder in sys.meta_path):
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more until the next start; calling it twice does nothing more.

        The finder stays where it is and finds nothing: were it taken out after each cell, a thread
        that is importing at that moment would pass over the finder behind it.
        """
        self._thread = None

    def close(self) -> None:
        """Stop for good, and leave nothing behind; calling it twice does nothing more."""
        self.stop()
        for place, finder in enumerate(sys.meta_path):
            if finder is self:
                del sys.meta_path[place]
                break

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the finders after this one give, marked; importlib calls this.

        None, so that importlib goes on by itself, for everything but an import of the watched
        thread: a mere search for a module (``importlib.util.find_spec``) or a reload is left alone.
        """
        if threading.get_ident() != self._thread or self.chain is not None or not _importing():
            return None
        self._see(())
        try:
            found = self._found_by_others(name, path, target)
        except Exception:  # noqa: BLE001 - importlib asks that finder again, and raises it itself
            return None
        if type(found) is ModuleSpec and hasattr(found.loader, "exec_module"):
            found.__class__ = self._marked
        return found

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        past = False
        for finder in sys.meta_path:  # as importlib does, with what is put there meanwhile
            find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
            if finder is self:
                past = True
            elif past and find is not None:
                found = find(name, path, target)
                if found is not None:
                    return found
            elif past and _OLD_FINDER is not None and hasattr(finder, _OLD_FINDER):
                return None
        return None

    def _enter(self, spec: ModuleSpec) -> None:
        # What a compiled module does while it is loaded, it does before its code runs.
        if type(spec.loader) is not SourceFileLoader:
            self._see((spec.name,))
        self._running.append(spec.name)

    def _leave(self, spec: ModuleSpec) -> None:
        self._see(())
        if spec.name in self._running:
            while self._running.pop() != spec.name:
                pass

    def _see(self, entering: tuple[str, ...]) -> None:
        if threading.get_ident() != self._thread or self.chain is not None:
            return
        try:
            if self._look():
                self.chain = (*self._running, *entering)
        except Exception as error:  # noqa: BLE001 - raised here it would end the person's import
            self.failure, self._thread = error, None


def _importing() -> bool:
    """Return whether the finder was asked for an import, and not for a search or a reload."""
    frame = sys._getframe(1).f_back  # noqa: SLF001 - nothing else tells who asks, as quickly
    asking = None if frame is None else frame.f_back
    return asking is not None and asking.f_code.co_name == "_find_and_load_unlocked"


def _marked_spec(
    enter: Callable[[ModuleSpec], None], leave: Callable[[ModuleSpec], None]
) -> type[ModuleSpec]:
    class MarkedSpec(ModuleSpec):
        """A spec that tells when its module's code begins and ends, and is a plain one then."""

        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__.get("_initializing", False))

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if value:
                enter(self)
            else:
                self.__class__ = ModuleSpec  # type: ignore[assignment] # plain again
                leave(self)

        def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
            del protocol  # a copy is a plain one in all of them
            return ModuleSpec, (self.name, self.loader), dict(self.__dict__)

    # It shows itself as what it will be, in its repr too.
    MarkedSpec.__name__ = MarkedSpec.__qualname__ = ModuleSpec.__qualname__
    MarkedSpec.__module__ = ModuleSpec.__module__
    return MarkedSpec
