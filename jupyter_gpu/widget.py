"""The monitor: this kernel's devices, alive below the cell that asked for it.

Where a front end can show widgets they move while a cell runs. Everywhere else, in batch runs and
without ipywidgets, one picture stands in their place and is renewed when a cell ends; it is also
what a saved notebook shows. Nothing but this module imports ipywidgets, and only to display.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.monitor_html import page
from jupyter_gpu.core.monitor_view import Choice, monitor_view
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.faces.extension import gate_of
from jupyter_gpu.faces.monitor_arguments import (
    chosen_uuids,
    device_names,
    file_path,
    flag,
    interval_seconds,
    one_sentence,
)
from jupyter_gpu.faces.monitor_count import ViewCount
from jupyter_gpu.faces.monitor_history import Seen, answer_of, cells_of, frame_of, rows_of, seen_in
from jupyter_gpu.faces.monitor_place import Place, place_of
from jupyter_gpu.faces.monitor_tree import PARTS, VIEW, Tree
from jupyter_gpu.feed import AFTER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.core.live import Moment, Past
    from jupyter_gpu.feed import Feed
    from jupyter_gpu.watching import Watching

_OUTSIDE = (
    "The monitor needs IPython: run it in a notebook. In a terminal,  jupyter gpu status  shows "
    "the GPUs."
)
_NO_WIDGETS = "Renewed when a cell ends; live after  %pip install ipywidgets"
_UNLOADED = "jupyter_gpu was unloaded, so this stands still. Run its cell again."
_OLDEST = 8  # of ipywidgets
_ABOUT_SECONDS = 0.1


class Monitor:
    """Shows this kernel's devices while cells run, and keeps what it has seen.

    It shows itself where it is displayed: as the last line of a cell, by ``display(monitor)``, or
    with ``%gpu monitor``. Without IPython there is none: ``GPUError``.

    Parameters
    ----------
    devices
        Physical indices or UUIDs, one or several; ``"cuda:1"`` means a visible device. Left out:
        all that are visible in this kernel, whatever that will be.
    interval
        The time between two looks, in seconds or as ``"2s"``, from ``"100ms"`` to ``"60s"``.
    compact
        One line for each device, without curves.
    live
        Whether it moves. Left out: yes, but for batch runs, where it is renewed with each cell.
    """

    def __init__(
        self,
        devices: int | str | Sequence[int | str] | None = None,
        *,
        interval: float | str = 1.0,
        compact: bool = False,
        live: bool | None = None,
    ) -> None:
        with one_sentence():
            self._interval = interval_seconds(interval)
            names = device_names(devices)
            compact = flag("compact", compact)
            self._live = live if live is None else flag("live", live, unknown=True)
            self._shell = _shell()
            self._gate = gate_of(self._shell)
            self._feed: Feed = self._gate.context().feed()
            uuids = None if names is None else chosen_uuids(names, self._feed.look().overview)
        self._choice = Choice(uuids, compact)
        self._pid = os.getpid()
        self._since = time.time()  # what other monitors have seen before is theirs
        self._lock = threading.RLock()
        self._identity = secrets.token_hex(4)
        self._seen: dict[str, Seen] = {}
        self._watching: Watching | None = None
        self._views = ViewCount()
        self._tree: Tree | None = None
        self._place: Place | None = None
        self._cells_shown: set[str | None] = set()
        self._is_static = False
        self._last_cell: float | None = None
        self._last_page = ""

    def __repr__(self) -> str:
        return as_text(monitor_view(self._look(), self._choice))

    @property
    def history(self) -> list[dict[str, Any]]:
        """What has been read of each device since this was made, oldest first; memory in bytes."""
        return rows_of(self._past, tuple(self._seen.values()), self._since)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells that ran meanwhile, and when they began and ended."""
        return cells_of(self._past, self._since)

    def frame(self) -> Any:  # noqa: ANN401 - pandas' own
        """Return the history as a pandas DataFrame.

        Raises
        ------
        GPUError
            Where there is no pandas.
        """
        with one_sentence():
            return frame_of(self.history)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draw the history with its cells into a file: SVG, PNG, or what matplotlib knows.

        Raises
        ------
        GPUError
            Where there is no matplotlib, or the file cannot be written.
        """
        from jupyter_gpu.adapters.timeline import save_timeline  # noqa: PLC0415 - rarely asked for

        with one_sentence():
            save_timeline(self.history, self.cells, file_path(path))

    def as_json(self) -> dict[str, Any]:
        """Look once, and return what there is as JSON has it."""
        moment = self._look()
        return answer_of(moment, seen_in(moment.overview, self._choice.uuids), self._since)

    def refresh(self) -> None:
        """Look now, and show all of it."""
        self._renew(self._look())

    def close(self) -> None:
        """Take the monitor away; what it has seen stays, and it can be displayed again."""
        with self._lock:
            self._stop()
            if self._is_forked():
                return  # the widgets are the parent's
            tree, self._tree = self._tree, None
            self._views = ViewCount()
            self._is_static = False
            self._gate.cell_ends().remove(self._cell_ends)
        if tree is not None:
            tree.close()

    @property
    def moves(self) -> bool:
        """Whether what is displayed changes by itself: not in a terminal."""
        return self._is_static or self._tree is not None

    def _cell_ends(self) -> None:
        """Renew the picture where there is one; called when a cell has ended.

        A cell that was run again has lost its outputs, and with them whoever was shown there only.
        """
        if self._is_forked():
            return
        again = self._place is not None and place_of(self._shell).runs_again(self._place)
        if again and len(self._cells_shown) <= 1:
            self.close()
        elif self._is_static and not again:
            self._renew(self._look())

    def _ipython_display_(self) -> None:
        """Show it; IPython calls this to display the object."""
        forked = self._is_forked()
        place = self._place = Place("text") if forked else place_of(self._shell)
        self._cells_shown.add(place.cell)
        self._gate = gate_of(self._shell)
        moment = self._look()
        with self._lock:
            self._stop()  # it may belong to an extension that has been loaded anew since
            self._watch()
        if place.kind == "text":
            print(as_text(monitor_view(moment, self._choice)))  # noqa: T201 - a terminal's display
            return
        self._gate.cell_ends().add(self._cell_ends)
        if self._tree_for(place) is None:
            self._is_static = True
            self._publish(self._pictures(self._page(moment), moment))
            if self._is_live_in(place):
                print(_NO_WIDGETS)  # noqa: T201 - under the cell that asks
            return
        self._publish(self._repr_mimebundle_(moment=moment), named=False)
        # A place for the picture of a saved notebook: the first output cannot be renewed without
        # the front end drawing its widgets anew.
        self._publish({"text/html": "", "text/plain": ""})

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None, *, moment: Moment | None = None
    ) -> dict[str, Any]:
        """Return what displays it; IPython calls this where it does not display it by itself."""
        del include, exclude  # IPython filters the bundle itself
        moment = self._look() if moment is None else moment
        tree = self._tree_for(place_of(self._shell))
        picture = self._page(moment)
        if tree is None:
            return self._pictures(picture, moment)
        tree.show(moment, self._choice, whole=True)
        folded = (
            f"<details class='jgm-first-{self._identity}'><summary>GPU monitor at "
            f"{moment.at:%H:%M:%S}; it is not live here</summary>{picture}</details>"
        )
        return {VIEW: tree.view, **self._pictures(folded, moment)}

    @property
    def _past(self) -> Past:
        return self._feed.past

    def _look(self) -> Moment:
        moment = self._feed.look(self._choice.uuids or ())
        self._note(moment)
        return moment

    def _note(self, moment: Moment) -> None:
        """Remember which devices were shown: those of a restarted choice may be others."""
        for seen in seen_in(moment.overview, self._choice.uuids):
            self._seen[seen.uuid] = seen

    def _watch(self) -> None:
        feed = self._gate.context().feed()
        with self._lock:
            if self._watching is None:
                self._feed = feed
                self._watching = feed.watch(
                    self._hear, self._interval, self._choice.uuids or (), self._feed_ended
                )

    def _stop(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.close()

    def _feed_ended(self) -> None:
        """Say that it does not move any more; called when the extension is unloaded."""
        with self._lock:
            self._watching = None
        if self._tree is not None:
            self._tree.end(_UNLOADED)
        if self._is_static:
            self._is_static = False
            told = {"text/html": f"<p>{_UNLOADED}</p>", "text/plain": _UNLOADED}
            self._publish(told, update=True)

    def _hear(self, moment: Moment) -> None:
        """Show a moment; the feed's thread calls this while a cell runs, and just after it."""
        self._note(moment)
        tree = self._tree
        if tree is None:
            return
        if tree.is_gone:
            self.close()
            return
        if self._place is not None and place_of(self._shell).runs_again(self._place):
            # Its view is gone; the front end's word of it waits for the end of the cell.
            if len(self._cells_shown) > 1:
                self._stop()
            else:
                self.close()
            return
        ended = moment.past.cells[-1].ended if moment.past.cells else None
        idle_seconds = 0.0 if ended is None else moment.at.timestamp() - ended
        # The last of these calls: nothing follows that could bring what is left behind.
        last = not moment.running and idle_seconds > AFTER_SECONDS - _ABOUT_SECONDS
        tree.show(moment, self._choice, whole=last)
        if not moment.running and ended is not None and ended != self._last_cell:
            self._last_cell = ended
            self._keep(moment)

    def _renew(self, moment: Moment) -> None:
        if self._is_forked():
            return
        tree = self._tree
        if tree is not None:
            tree.show(moment, self._choice, whole=True)
        if self._is_static:
            self._publish(self._pictures(self._page(moment), moment), update=True)

    def _keep(self, moment: Moment) -> None:
        """Put the picture of a moment where a saved notebook shows it, in place of the first."""
        picture = self._page(moment)
        if picture == self._last_page:
            return
        self._last_page = picture
        kept = (
            f"<style>.jgm-first-{self._identity}{{display:none}}</style>"
            f"<div class='jgm-last-{self._identity}'>{picture}</div>"
        )
        self._publish(self._pictures(kept, moment), update=True)

    def _page(self, moment: Moment) -> str:
        return page(moment, self._choice)

    def _pictures(self, html: str, moment: Moment) -> dict[str, Any]:
        return {
            "text/html": html,
            "text/plain": as_text(monitor_view(moment, self._choice)),
        }

    def _publish(self, data: dict[str, Any], *, named: bool = True, update: bool = False) -> None:
        name = {"display_id": f"jupyter-gpu-{self._identity}"} if named else {}
        self._shell.display_pub.publish(data, {}, transient=name, update=update)

    def _is_forked(self) -> bool:
        """Whether this is a child of the kernel: its front end and its locks are not ours."""
        return os.getpid() != self._pid

    def _is_live_in(self, place: Place) -> bool:
        return place.kind == "notebook" if self._live is None else self._live

    def _tree_for(self, place: Place) -> Tree | None:
        """Return the widgets, made where they are to be had and wanted; else None."""
        if self._is_forked() or place.kind == "text" or not self._is_live_in(place):
            return None
        with self._lock:
            if self._tree is None or self._tree.is_gone:
                self._tree, widgets = None, _ipywidgets()
                if widgets is not None:
                    hidden = f".jgm-last-{self._identity}"
                    style = f"{hidden},.jp-OutputArea-child:has({hidden}){{display:none}}"
                    self._tree = Tree(
                        widgets,
                        f"<style>{style}</style>",
                        self.refresh,
                        self._views_change,
                        compact=self._choice.compact,
                    )
            return self._tree

    def _views_change(self, difference: int) -> None:
        """Watch while there is a view; a front end's count calls this, in the shell's thread."""
        with self._lock:
            views = self._views.change(difference, place_of(self._shell).page)
            if views == 0:
                self._stop()
                return
            was_still = self._watching is None
        if was_still:
            self._watch()
            self.refresh()


def _shell() -> InteractiveShell:
    """Return the shell that this runs in.

    Raises
    ------
    GPUError
        Where there is none.
    """
    import sys  # noqa: PLC0415

    ipython = sys.modules.get("IPython")
    shell: InteractiveShell | None = None if ipython is None else ipython.get_ipython()
    if shell is None:
        raise GPUError(_OUTSIDE)
    return shell


def _ipywidgets() -> ModuleType | None:
    """Return ipywidgets, None where it is missing or too old."""
    try:
        import ipywidgets  # noqa: PLC0415 - costs 60 ms, and only a display needs it

        version = int(ipywidgets.__version__.partition(".")[0])
        for part in PARTS:
            getattr(ipywidgets, part)
    except Exception:  # noqa: BLE001 - missing, or damaged in whatever way: there is a picture
        return None
    return ipywidgets if version >= _OLDEST else None
