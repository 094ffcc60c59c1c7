"""What a server keeps true in the record of a kernel's lease, over stand-ins of its parts."""

from __future__ import annotations

import asyncio
import logging
import os
import types
import weakref
from datetime import datetime, timedelta, timezone

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.faces import following
from jupyter_gpu.faces.following import follow, idle_time, look_once

pytestmark = pytest.mark.usefixtures("eight_gpus")
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=timezone.utc)
ZONE = timezone(timedelta(hours=2))
LOG = logging.getLogger("test_following")


class Sessions:
    """A session manager with one notebook, or none."""

    def __init__(self, path=None):
        self.path, self.asked = path, 0

    async def get_session(self, **column):
        self.asked += 1
        if self.path is None:
            raise LookupError(column)
        return {"path": self.path, "type": "notebook", "kernel": {"id": "k"}}


class Kernel:
    """A provisioner as far as it is followed."""

    def __init__(self, lease, root, sessions, *, in_vain=False):
        self.lease, self.kernel_id, self.log = lease, "k", LOG
        self.in_vain, self.ended = in_vain, []
        app = types.SimpleNamespace(session_manager=sessions)
        self.kernels = types.SimpleNamespace(
            parent=app, root_dir=str(root), shutdown_kernel=self._end
        )
        self.parent = types.SimpleNamespace(parent=self.kernels)

    def was_handed_in_vain(self):
        return self.in_vain

    async def _end(self, kernel_id, *, now):
        self.ended.append((kernel_id, now))


@pytest.fixture
def lease():
    with jupyter_gpu.acquire(1) as held:
        yield held


def recorded():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        (lease,) = store.holdings().leases
    return lease.record.owner


async def test_the_record_takes_up_the_notebooks_new_name(lease, tmp_path):
    kernel = Kernel(lease, tmp_path, Sessions("renamed.ipynb"))
    await look_once(kernel)
    assert recorded().notebook == str(tmp_path.resolve() / "renamed.ipynb")


async def test_without_a_session_the_record_stays_as_it_is(lease, tmp_path):
    before = recorded()
    await look_once(Kernel(lease, tmp_path, Sessions()))
    assert recorded() == before


async def test_an_idle_kernel_is_noted_and_one_that_works_again_is_not(
    lease, tmp_path, monkeypatch
):
    kernel = Kernel(lease, tmp_path, Sessions("a.ipynb"))
    now = datetime.now(timezone.utc)
    kernel.parent.execution_state, kernel.parent.last_activity = "idle", now
    await look_once(kernel)
    assert lease.record.owner.idle_since is None, "an idle minute has to pass"
    monkeypatch.setattr(following, "IDLE_AFTER_SECONDS", 0)
    await look_once(kernel)
    assert lease.record.owner.idle_since == now.isoformat(timespec="seconds")
    kernel.parent.execution_state = "busy"
    await look_once(kernel)
    assert lease.record.owner.idle_since is None


async def test_a_kernel_that_stays_idle_is_written_once(lease, tmp_path, lease_directory):
    kernel = Kernel(lease, tmp_path, Sessions("a.ipynb"))
    kernel.parent.execution_state = "idle"
    kernel.parent.last_activity = NOW - timedelta(hours=3)
    await look_once(kernel)
    (path,) = (lease_directory / "records").glob(f"{lease.id}.json")
    written = path.stat().st_ino
    for _ in range(3):
        await look_once(kernel)
    assert path.stat().st_ino == written, "every write is a new file"


@pytest.mark.parametrize(
    ("state", "last", "idle"),
    [
        ("idle", NOW - timedelta(seconds=60), "2026-12-01T11:59:00+00:00"),
        ("idle", NOW - timedelta(hours=3), "2026-12-01T09:00:00+00:00"),
        ("idle", (NOW - timedelta(hours=3)).astimezone(ZONE), "2026-12-01T09:00:00+00:00"),
        ("idle", NOW - timedelta(seconds=59.9), None),
        ("idle", NOW + timedelta(hours=1), None),
        ("idle", (NOW - timedelta(hours=3)).replace(tzinfo=None), None),
        ("idle", None, None),
        ("busy", NOW - timedelta(hours=3), None),
        ("starting", NOW - timedelta(hours=3), None),
        ("dead", NOW - timedelta(hours=3), None),
        (None, NOW - timedelta(hours=3), None),
    ],
)
def test_idle_is_a_kernel_that_has_done_nothing_for_a_minute(state, last, idle):
    manager = types.SimpleNamespace(execution_state=state, last_activity=last)
    assert idle_time(manager, NOW, following.IDLE_AFTER_SECONDS) == idle


def test_a_kernel_that_no_server_watches_has_no_idle_time():
    assert idle_time(object(), NOW, 0) is None


async def test_a_record_that_cannot_be_written_is_a_warning(
    lease, tmp_path, lease_directory, caplog
):
    records = lease_directory / "records"
    records.rename(lease_directory / "aside")
    await look_once(Kernel(lease, tmp_path, Sessions("a.ipynb")))
    (lease_directory / "aside").rename(records)
    assert "a record cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("path", "in_vain", "ended"),
    [(None, True, [("k", True)]), (None, False, []), ("a.ipynb", True, [])],
)
async def test_only_a_kernel_that_no_notebook_has_and_no_change_needs_is_ended(
    lease, tmp_path, path, in_vain, ended
):
    kernel = Kernel(lease, tmp_path, Sessions(path), in_vain=in_vain)
    await look_once(kernel)
    assert kernel.ended == ended


def others():
    return [task for task in asyncio.all_tasks() if "look_once" in repr(task.get_coro())]


async def until(condition):
    async def look():
        while not condition():
            await asyncio.sleep(0)

    await asyncio.wait_for(look(), 10)


async def test_following_goes_on_until_the_lease_ends(lease, tmp_path):
    sessions = Sessions("a.ipynb")
    kernel = Kernel(lease, tmp_path, sessions)
    follow(weakref.ref(kernel), asyncio.get_running_loop(), 0)
    await until(lambda: sessions.asked > 3)
    lease.release()
    await until(lambda: not others())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not others()


async def test_following_keeps_nobody_alive_and_begins_nothing_without_a_lease(lease, tmp_path):
    sessions = Sessions("a.ipynb")
    kernel = Kernel(lease, tmp_path, sessions)
    gone = weakref.ref(kernel)
    follow(gone, asyncio.get_running_loop(), 0)
    await until(lambda: sessions.asked)
    kernel.kernels.shutdown_kernel = None  # the only circle of this stand-in
    del kernel
    await until(lambda: gone() is None)
    idle = Kernel(None, tmp_path, Sessions())
    follow(weakref.ref(idle), asyncio.get_running_loop(), 0)
    assert not others()
