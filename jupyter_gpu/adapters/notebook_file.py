"""Reads the request that stands in a notebook's own metadata.

The path is what Jupyter gives the kernel (``JPY_SESSION_NAME``): a notebook in most cases, but
also a console's name, or a file that a person has put anything into. Whatever is no notebook has
no request; reading it waits for nobody and costs no more than a large notebook does.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.notebook_request import KEY, in_metadata

SIZE_LIMIT = 64 * 2**20


def read_notebook_options(path: str) -> Mapping[str, object] | None:
    """Return the options under ``jupyter_gpu`` in a notebook's metadata, as they stand there.

    Returns
    -------
    Mapping or None
        None where there is no such key, no notebook, or no plain file of at most 64 MiB.

    Raises
    ------
    RequestError
        When the key holds something else than an object; the sentence names the notebook.
    """
    raw = _read(path)
    # Most notebooks have no request, and need not be taken apart to know it.
    if raw is None or f'"{KEY}"'.encode() not in raw:
        return None
    try:
        notebook = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):  # not text, not JSON, a number or a nesting without end
        return None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("nbformat"), int):
        return None
    metadata = notebook.get("metadata")
    if not isinstance(metadata, dict) or KEY not in metadata:
        return None
    options = metadata[KEY]
    if not isinstance(options, dict):
        error = RequestError(KEY, options, 'an object with options, such as {"gpus": "1/4"}')
        raise in_metadata(error, os.path.basename(path))  # noqa: PTH119 - a name to show
    return options


def _read(path: str) -> bytes | None:
    """Return a plain file's bytes; None for anything else, and for one that cannot be read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        # Looked at first, because merely opening some devices does something.
        if not _is_acceptable(os.stat(path)):  # noqa: PTH116 - a Path would refuse no less
            return None
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not _is_acceptable(os.fstat(file.fileno())):
                return None
            raw = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError):  # not there, not ours to read, or no path at all
        return None
    return raw if len(raw) <= SIZE_LIMIT else None


def _is_acceptable(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size <= SIZE_LIMIT
