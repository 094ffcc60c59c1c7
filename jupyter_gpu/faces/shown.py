"""A view as an object that a notebook displays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.render_text import as_text

if TYPE_CHECKING:
    from jupyter_gpu.core.view import View


class Shown:
    """One view, as text and as HTML."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __repr__(self) -> str:
        return as_text(self._view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return both forms; IPython calls this to display the object."""
        del include, exclude  # IPython filters the bundle itself
        return {"text/plain": as_text(self._view), "text/html": as_html(self._view)}
