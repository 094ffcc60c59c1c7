"""What is asked of a Jupyter server around a kernel manager, over stand-ins of its parts."""

from __future__ import annotations

import types
from datetime import datetime, timezone

import pytest

from jupyter_gpu.faces import server


class Sessions:
    """The part of a session manager that is asked; raises where the server answers 404."""

    def __init__(self, *rows):
        self.rows = rows

    async def get_session(self, **column):
        ((name, value),) = column.items()
        for row in self.rows:
            found = row["kernel"]["id"] if name == "kernel_id" else row["id"]
            if found == value:
                return row
        raise LookupError(value)

    async def list_sessions(self):
        return list(self.rows)


def session(path, kernel, *, name=None, kind="notebook"):
    return {
        "id": f"s-{kernel}", "path": path, "name": name, "type": kind, "kernel": {"id": kernel}
    }  # fmt: skip


def manager(tmp_path, *rows):
    app = types.SimpleNamespace(session_manager=Sessions(*rows))
    kernels = types.SimpleNamespace(parent=app, root_dir=str(tmp_path), _pending_kernels={"k": 1})
    return types.SimpleNamespace(parent=kernels)


ALONE = types.SimpleNamespace(parent=None)


async def test_without_a_server_there_is_no_notebook_and_nothing_is_changed():
    assert not server.has_sessions(ALONE)
    assert await server.session_of(ALONE, "k") is None
    assert server.notebook_of(ALONE, None) is None
    assert await server.kernel_being_changed(ALONE, {}) is None
    server.forget_start(ALONE, "k")


async def test_a_notebook_is_told_by_its_full_path(tmp_path):
    there = manager(tmp_path, session("a/b.ipynb", "k"), session("c", "c", kind="console"))
    notebook = server.notebook_of(there, await server.session_of(there, "k"))
    assert notebook == str(tmp_path.resolve() / "a" / "b.ipynb")
    assert server.notebook_of(there, await server.session_of(there, "c")) is None
    assert await server.session_of(there, "unknown") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/x/a.ipynb", "/x/a.ipynb"),
        ("a.ipynb", "ROOT/a.ipynb"),
        ("/x/Console 1", None),
        ("", None),
        (None, None),
    ],
)
def test_the_notebook_at_the_start_is_the_one_jupyter_names(tmp_path, name, expected):
    environ = {} if name is None else {"JPY_SESSION_NAME": name}
    found = server.notebook_at_start(manager(tmp_path), environ)
    assert found == (expected and expected.replace("ROOT", str(tmp_path.resolve())))


async def test_without_a_request_the_path_tells_which_kernel_is_changed(tmp_path):
    there = manager(
        tmp_path,
        session("renamed.ipynb", "old", name="a.ipynb"),
        session("b.ipynb", "other", name="b.ipynb"),
    )
    named = {"JPY_SESSION_NAME": str(tmp_path / "b.ipynb")}
    assert await server.kernel_being_changed(there, named) == "other"
    stale = {"JPY_SESSION_NAME": str(tmp_path / "a.ipynb")}
    assert await server.kernel_being_changed(there, stale) is None


def test_only_an_idle_kernel_has_a_time_of_last_use():
    moment = datetime(2026, 12, 1, tzinfo=timezone.utc)
    idle = types.SimpleNamespace(execution_state="idle", last_activity=moment)
    assert server.last_used(idle) == moment
    idle.execution_state = "busy"
    assert server.last_used(idle) is None
    assert server.last_used(ALONE) is None
    odd = types.SimpleNamespace(execution_state="idle", last_activity="yesterday")
    assert server.last_used(odd) is None


def test_a_failed_start_is_forgotten(tmp_path):
    there = manager(tmp_path)
    server.forget_start(there, "k")
    assert there.parent._pending_kernels == {}


@pytest.mark.parametrize(
    ("manager", "restarts"),
    [
        (types.SimpleNamespace(), False),
        (types.SimpleNamespace(autorestart=True), False),
        (types.SimpleNamespace(autorestart=False, restarter_class=object), False),
        (types.SimpleNamespace(autorestart=True, restarter_class=object), True),
    ],
)
def test_a_manager_with_a_restarter_starts_a_kernel_again(manager, restarts):
    assert server.has_restarter(manager) == restarts
