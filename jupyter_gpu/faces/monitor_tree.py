"""The widgets of one live monitor, and what of them is sent when.

They are ipywidgets' own and hold HTML that the pure renderer makes; only their traits are set, from
whichever thread has news. The fast numbers of all devices are one widget that lies over the
cards, so that a tick is one small message and a card follows when it is its turn.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_gpu.core.monitor_html import parts
from jupyter_gpu.core.monitor_style import COMPACT, FOLDED, GRID, OVERLAY, ROOT
from jupyter_gpu.faces.monitor_turns import FAST, URGENT, Turns, message_bytes

if TYPE_CHECKING:
    from jupyter_gpu.core.live import Moment
    from jupyter_gpu.core.monitor_html import Parts
    from jupyter_gpu.core.monitor_view import Choice

# What of ipywidgets is used here.
PARTS = ("Box", "Button", "Checkbox", "HTML", "Layout", "VBox")
VIEW = "application/vnd.jupyter.widget-view+json"
_AGAIN = "Look again"
_BUSY = "Live: the kernel is busy"
_STATE, _BUTTON = URGENT
# Wide enough for either, so that nothing moves.
_BUTTON_WIDTH = "16em"


class Tree:
    """The widgets of one monitor.

    Parameters
    ----------
    widgets
        ipywidgets.
    more_style
        CSS beside the renderer's own.
    look_again
        Called when the button is clicked.
    views_change
        Called with how many views there are more, or fewer, than before.
    compact
        One line for each device.
    """

    def __init__(
        self,
        widgets: ModuleType,
        more_style: str,
        look_again: Callable[[], None],
        views_change: Callable[[int], None],
        *,
        compact: bool = False,
    ) -> None:
        self._widgets, self._more_style = widgets, more_style
        self._lock = threading.RLock()
        self._turns = Turns()
        self._closed = False
        self._style = widgets.HTML()
        self._shared = {"layout": self._style.layout, "style": self._style.style}
        self._state, self._now, self._rest = self._html(), self._html(), self._html()
        self._cards: tuple[Any, ...] = ()
        self._grid = self._box(GRID)
        self._stack = self._box(OVERLAY, self._grid, self._now)
        layout = self._style.layout
        # A check box can be reached by the keyboard, and the style sheet unfolds what follows it;
        # ipywidgets' Accordion cannot.
        self._rest.add_class(FOLDED)
        self._fold = widgets.Checkbox(indent=False, layout=layout)
        self._button = widgets.Button(
            description=_AGAIN, layout=widgets.Layout(width=_BUTTON_WIDTH)
        )
        self._button.on_click(lambda _: look_again())
        self._upper = (self._style, self._state, self._stack)
        self.root = widgets.VBox(
            children=(*self._upper, self._button),
            layout=layout,
            _dom_classes=(ROOT, COMPACT) if compact else (ROOT,),
            _view_count=0,
        )
        for widget in (self.root, self._button):
            widget.comm.on_close(partial(_open_again, widget.comm))
        self.root.observe(
            lambda change: views_change((change["new"] or 0) - (change["old"] or 0)), "_view_count"
        )

    @property
    def view(self) -> dict[str, Any]:
        """What tells a front end to show the widgets."""
        return {"version_major": 2, "version_minor": 0, "model_id": self.root.model_id}

    @property
    def is_gone(self) -> bool:
        """Whether somebody has closed the widgets, as ``Widget.close_all`` does."""
        return self.root.comm is None

    def show(self, moment: Moment, choice: Choice, *, whole: bool = False) -> None:
        """Show a moment; any thread may call this.

        Parameters
        ----------
        moment, choice
            What is shown.
        whole
            All of it at once, however many bytes that are: nobody waits for the next tick.
        """
        shown = parts(moment, choice)
        with self._lock:
            if self._closed:
                return
            self._fit(shown)
            differing = dict(self._differing(shown, running=moment.running))
            if whole:
                self._turns.all_sent()
                chosen = tuple(differing)
            else:
                sizes = {part: message_bytes(value) for part, (value, _) in differing.items()}
                chosen = self._turns.choose(sizes)
            for part in chosen:
                value, put = differing[part]
                put(value)

    def end(self, words: str) -> None:
        """Say why nothing moves any more, in place of what is told while it does."""
        with self._lock:
            if not self._closed:
                self._state.value = f"<div class='gs'><p><b>{html.escape(words)}</b></p></div>"
                self.root.children = self._upper

    def close(self) -> None:
        """Take the widgets away, in every front end; calling it twice does nothing more."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            boxes = (self.root, self._stack, self._grid, self._fold, self._button)
            values = (self._state, self._now, self._rest, *self._cards)
            for widget in (*boxes, *values, self._style):
                widget.close()
            styles = (self._button.style, self._fold.style, self._button.layout)
            for shared in (*self._shared.values(), *styles):
                shared.close()

    def _html(self, value: str = "") -> Any:  # noqa: ANN401 - ipywidgets'
        return self._widgets.HTML(value, **self._shared)

    def _box(self, name: str, *children: Any) -> Any:  # noqa: ANN401
        layout = self._style.layout
        return self._widgets.Box(children=children, layout=layout, _dom_classes=(name,))

    def _fit(self, shown: Parts) -> None:
        """Have the style, a card for each device, and the rest where there is one.

        They hardly ever change.
        """
        style = shown.style + self._more_style
        if self._style.value != style:
            self._style.value = style
        folded = (self._fold, self._rest) if shown.rest_title else ()
        lower = (*folded, self._button)
        if self.root.children != (*self._upper, *lower):
            self.root.children = (*self._upper, *lower)
        if len(self._cards) == len(shown.cards):
            return
        kept = self._cards[: len(shown.cards)]
        added = tuple(map(self._html, shown.cards[len(kept) :]))
        gone, self._cards = self._cards[len(kept) :], (*kept, *added)
        self._grid.children = self._cards
        for card in gone:
            card.close()

    def _differing(
        self, shown: Parts, *, running: bool
    ) -> Iterator[tuple[str, tuple[str, Callable[[str], None]]]]:
        """Yield by name each part that differs from what is shown, and what shows it."""
        htmls = {FAST: (self._now, shown.now), _STATE: (self._state, shown.state)}
        for number, value in enumerate(shown.cards):
            htmls[f"card {number}"] = (self._cards[number], value)
        htmls["rest"] = (self._rest, shown.rest)
        for part, (widget, value) in htmls.items():
            if widget.value != value:
                yield part, (value, partial(setattr, widget, "value"))
        if self._button.disabled != running:
            yield _BUTTON, (_BUSY if running else _AGAIN, self._say)
        if self._fold.description != shown.rest_title:
            yield "title", (shown.rest_title, partial(setattr, self._fold, "description"))

    def _say(self, words: str) -> None:
        with self._button.hold_sync():
            self._button.description, self._button.disabled = words, words == _BUSY


def _open_again(comm: Any, message: object) -> None:  # noqa: ANN401, ARG001 - the comm's own
    """Go on hearing a front end; called when another page has closed the comm in its name.

    Notebook 7's list of files keeps a connection to the kernels that it has started, and closes
    each comm that it does not know.
    """
    from comm import get_comm_manager  # noqa: PLC0415 - comes with ipywidgets

    comm._closed = False  # noqa: SLF001 - the package has no other way
    get_comm_manager().register_comm(comm)
