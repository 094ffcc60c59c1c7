"""How many views a monitor has, from what front ends count.

ipywidgets has the front end add to ``_view_count`` for a view and take from it again. A page that
is reloaded adds its views without taking the old ones away, so only what the newest page has
counted is believed.
"""

from __future__ import annotations


class ViewCount:
    """The views of one monitor."""

    def __init__(self) -> None:
        self._page: str | None = None
        self._views = 0

    def change(self, difference: int, page: str | None) -> int:
        """Return how many views there are after a page has added or taken away some.

        Parameters
        ----------
        difference
            How many more there are, or, below zero, fewer.
        page
            What tells pages apart: the session of the front end; None where it is not known.
        """
        if page == self._page:
            self._views = max(0, self._views + difference)
        elif difference > 0:
            self._page, self._views = page, difference
        return self._views
