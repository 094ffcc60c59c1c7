"""Where a monitor is displayed: in a notebook with a person, a batch run, or a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

Kind = Literal["text", "batch", "notebook"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place, and the request that is handled there now.

    ``cell`` is the front end's name of the cell, ``request`` the message that runs it, ``page`` the
    session of the front end; each None where it is not told.
    """

    kind: Kind
    cell: str | None = None
    request: str | None = None
    page: str | None = None

    def runs_again(self, before: Place) -> bool:
        """Return whether the cell of ``before`` is run anew here: its outputs are gone then."""
        return self.cell is not None and self.cell == before.cell and self.request != before.request


def place_of(shell: InteractiveShell) -> Place:
    """Return where the shell runs its cell now.

    nbclient and papermill, which run notebooks in batches, allow no input and do not name the cell;
    front ends with a person allow it or name the cell.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return Place("text")
    parent: Mapping[str, Any] = {}
    with contextlib.suppress(Exception):  # a kernel of another make tells what it wants
        parent = kernel.get_parent() or {}
    header, metadata, content = (
        dict(parent.get(part) or {}) for part in ("header", "metadata", "content")
    )
    cell = metadata.get("cellId")
    batch = cell is None and content.get("allow_stdin") is False
    kind: Kind = "batch" if batch else "notebook"
    return Place(kind, cell, header.get("msg_id"), header.get("session"))
