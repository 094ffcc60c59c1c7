"""What a cell has to be told after its end: a change that came too late, an error explained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from jupyter_gpu.core.cell_text import exports_in_vain, sets
from jupyter_gpu.core.late import change_view, export_view, misspelt_view
from jupyter_gpu.core.spelling import is_misspelt
from jupyter_gpu.core.variables import VISIBLE

if TYPE_CHECKING:
    from jupyter_gpu.cell_watch import CellEnd
    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.core.view import View


def report(
    ended: CellEnd | None,
    source: str,
    error: BaseException | None,
    read: Callable[[], Overview],
    environ: Mapping[str, str] = os.environ,
) -> tuple[View, ...]:
    """Return what to show under a cell, in most cases nothing.

    Parameters
    ----------
    ended
        What the cell did to the variable; None for a cell inside another one.
    source
        The cell's text.
    error
        What it ended with, if it did.
    read
        Reads the machine, as the kernel that asks; called only where it is needed.
    environ
        This process's own.
    """
    found = (*_about_variable(ended, source, read, environ), _about_error(error, source, read))
    return tuple(view for view in found if view is not None)


def _about_variable(
    ended: CellEnd | None,
    source: str,
    read: Callable[[], Overview],
    environ: Mapping[str, str],
) -> Iterator[View | None]:
    if ended is None:
        return
    if ended.change is not None:
        yield change_view(read(), ended.change)
    elif exports_in_vain(source):
        yield export_view(read())
    for name in environ:
        if name in source and is_misspelt(name, VISIBLE) and sets(source, name):
            yield misspelt_view(name)


def _about_error(
    error: BaseException | None, source: str, read: Callable[[], Overview]
) -> View | None:
    if error is None:
        return None
    from jupyter_gpu.failure import explain  # noqa: PLC0415 - only after an error

    return explain(error, source, read)
