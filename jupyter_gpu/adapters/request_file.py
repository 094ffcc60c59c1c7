"""The request file: a kernel's wish for other devices, left for whoever starts it the next time.

It stands beside the kernel's connection file. Whoever may write there can put anything in its
place, so it is read with suspicion: a plain file of this user's that nobody else can write.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from jupyter_gpu.core.errors import GPUError, StoreError

SIZE_LIMIT = 16 * 1024
_MODE = 0o600


def request_path(connection_file: str) -> Path:
    """Return where the request of the kernel with this connection file is left."""
    path = Path(connection_file)
    # Not "kernel-….json": programs look for kernels by that name.
    return path.with_name(f".{path.name}.gpu-request")


def leave_request(connection_file: str, options: Mapping[str, object]) -> None:
    """Leave the options of a request, in one step and instead of an earlier one.

    Raises
    ------
    StoreError
        When the file cannot be written.
    """
    import secrets  # noqa: PLC0415 - only where something is left

    path = request_path(connection_file)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, _MODE), "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "options": dict(options)}, file)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may never have been made
            temporary.unlink()
        message = f"The request cannot be left for the restart, in {path.parent}: {error.strerror}."
        raise StoreError(message) from error


def take_request(connection_file: str) -> dict[str, object] | None:
    """Return the options that were left, and remove the file; None when there is none.

    Raises
    ------
    GPUError
        When what stands there is not a request that this user has left; it is removed if it can be.
    """
    path = request_path(connection_file)
    try:
        found = path.lstat()
    except OSError:
        return None
    try:
        return _options(_read(path, found))
    finally:
        drop_request(connection_file)


def drop_request(connection_file: str) -> None:
    """Remove what was left, if there is anything."""
    with contextlib.suppress(OSError):  # gone already, a directory, or not ours to remove
        request_path(connection_file).unlink()


def _read(path: Path, found: os.stat_result) -> str:
    # Looked at first, because merely opening some devices does something.
    _require_plain(found)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            _require_plain(status)
            return file.read(SIZE_LIMIT + 1).decode("utf-8")
    except OSError as error:
        raise _unreadable(error.strerror or "it cannot be opened") from error
    except ValueError as error:
        raise _unreadable("it is not text") from error


def _require_plain(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable("it is not a plain file")
    if status.st_uid != os.geteuid():
        raise _unreadable("it belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_nlink != 1:
        raise _unreadable("others could have written it")
    if status.st_size > SIZE_LIMIT:
        raise _unreadable("it is too large")


def _options(text: str) -> dict[str, object]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable("it is not JSON") from error
    options = data.get("options") if isinstance(data, dict) and data.get("schema") == 1 else None
    if not isinstance(options, dict):
        raise _unreadable("it is not a request")
    return options


def _unreadable(why: str) -> GPUError:
    return GPUError(f"The request that was left for this start cannot be used: {why}.")
