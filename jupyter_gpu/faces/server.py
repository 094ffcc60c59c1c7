"""The Jupyter server around a kernel manager: whose notebook, and which kernel is being changed.

The only module that imports jupyter_server, and only when a server has imported it already: under
nbclient, papermill or a console there is none, and every answer is "no server".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from datetime import datetime
from typing import Any, Protocol, cast

from traitlets import TraitError

SESSION_NAME = "JPY_SESSION_NAME"


class _SessionManager(Protocol):
    """The part of jupyter_server's SessionManager that is used here."""

    def get_session(self, **column: str) -> Awaitable[dict[str, Any]]: ...

    def list_sessions(self) -> Awaitable[list[dict[str, Any]]]: ...


def kernels_of(kernel_manager: object) -> Any:  # noqa: ANN401 - jupyter_client is untyped here
    """Return the manager of all kernels above a kernel's own manager, or None."""
    return getattr(kernel_manager, "parent", None)


def _sessions_of(kernel_manager: object) -> _SessionManager | None:
    app = getattr(kernels_of(kernel_manager), "parent", None)
    return cast("_SessionManager | None", getattr(app, "session_manager", None))


def has_sessions(kernel_manager: object) -> bool:
    """Return whether a server with sessions stands above this kernel manager."""
    return _sessions_of(kernel_manager) is not None


def has_restarter(kernel_manager: object) -> bool:
    """Return whether this kernel manager starts a kernel again that ends by itself."""
    has_one = getattr(kernel_manager, "restarter_class", None) is not None
    return has_one and bool(getattr(kernel_manager, "autorestart", False))


def is_stopping(kernel_manager: object) -> bool:
    """Return whether the server has been told to end."""
    app = getattr(kernels_of(kernel_manager), "parent", None)
    return getattr(app, "_stopping", False) is True


def notebook_at_start(kernel_manager: object, environ: dict[str, str]) -> str | None:
    """Return the full path of the notebook that a kernel is being started for, or None."""
    name = environ.get(SESSION_NAME)
    if not name:
        return None
    path = name if os.path.isabs(name) else _on_disk(kernel_manager, name)  # noqa: PTH117
    return path if path.endswith(".ipynb") or os.path.isfile(path) else None  # noqa: PTH113


async def session_of(kernel_manager: object, kernel_id: str) -> dict[str, Any] | None:
    """Return the session that uses this kernel now, or None."""
    sessions = _sessions_of(kernel_manager)
    if sessions is None:
        return None
    try:
        return await sessions.get_session(kernel_id=kernel_id)
    except Exception:  # noqa: BLE001 - a 404 of the server's, or another session manager's own
        return None


def notebook_of(kernel_manager: object, session: dict[str, Any] | None) -> str | None:
    """Return the full path of a session's notebook, None where it is none."""
    if session is None or session.get("type") != "notebook":
        return None
    return _on_disk(kernel_manager, str(session["path"]))


def last_used(kernel_manager: object) -> datetime | None:
    """Return when a kernel that is idle now last did anything; None while it works, or unknown.

    The server's manager of kernels notes both on each kernel's own manager.
    """
    try:
        if getattr(kernel_manager, "execution_state", None) != "idle":
            return None
        moment = getattr(kernel_manager, "last_activity", None)
    except TraitError:  # a trait of a time, which has none until the server has noted the first
        return None
    return moment if isinstance(moment, datetime) and moment.tzinfo is not None else None


async def kernel_being_changed(kernel_manager: object, environ: dict[str, str]) -> str | None:
    """Return the id of the kernel that this start will replace, or None.

    A change of kernel starts the new kernel before the old one ends. The server's current request
    says for certain whether this start is one and of which session; the notebook's name alone does
    not, because after a rename another notebook may have it.
    """
    sessions = _sessions_of(kernel_manager)
    if sessions is None:
        return None
    handler = current_handler()
    try:
        if handler is not None:
            session_id = getattr(handler, "path_kwargs", {}).get("session_id")
            if session_id is None:
                return None
            session = await sessions.get_session(session_id=session_id)
            return str(session["kernel"]["id"])
        return _by_path(kernel_manager, await sessions.list_sessions(), environ)
    except Exception:  # noqa: BLE001 - as above: a start never fails because of this question
        return None


def _by_path(
    kernel_manager: object, sessions: list[dict[str, Any]], environ: dict[str, str]
) -> str | None:
    wanted = notebook_at_start(kernel_manager, environ)
    for session in sessions:
        path = str(session["path"])
        same_name = session.get("name") in (None, "", os.path.basename(path))  # noqa: PTH119
        if wanted is not None and same_name and _on_disk(kernel_manager, path) == wanted:
            return str(session["kernel"]["id"])
    return None


def asker_has_gone(handler: object | None) -> bool:
    """Return whether whoever sent the request that this handler answers has hung up.

    A browser does so when its page is closed; nobody would use what is started then.
    """
    connection = getattr(getattr(handler, "request", None), "connection", None)
    stream = getattr(connection, "stream", None)
    return stream is not None and bool(stream.closed())


def current_handler() -> object | None:
    """Return the handler of the server's current request, None outside one."""
    if "jupyter_server" not in sys.modules:
        return None
    try:
        from jupyter_server import CallContext  # noqa: PLC0415 - optional, and a server's own
    except ImportError:
        return None
    return cast("object | None", CallContext.get(CallContext.JUPYTER_HANDLER))


def _on_disk(kernel_manager: object, api_path: str) -> str:
    root = getattr(kernels_of(kernel_manager), "root_dir", "") or os.getcwd()  # noqa: PTH109
    parts = [part for part in api_path.split("/") if part]
    return os.path.join(os.path.realpath(root), *parts)  # noqa: PTH118


def forget_start(kernel_manager: object, kernel_id: str) -> None:
    """Take a start that failed or waits off the manager's list of starting kernels.

    A server that is told to end waits for those, and for one that then fails it waits for ever
    (jupyter_client issue 960). Managers that list starting kernels among the running ones need the
    entry, and are left alone.
    """
    kernels = kernels_of(kernel_manager)
    pending = getattr(kernels, "_pending_kernels", None)
    if isinstance(pending, dict) and not getattr(kernels, "use_pending_kernels", False):
        pending.pop(kernel_id, None)
