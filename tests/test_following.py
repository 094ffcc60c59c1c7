"""What a server keeps true in the record of a kernel's lease, over stand-ins of its parts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import types
import weakref
from datetime import datetime, timedelta, timezone

import pytest
from jupyter_client.session import Session

import jupyter_gpu
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.faces import following
from jupyter_gpu.faces.following import METER, USES, Ear, Use, follow, look_once
from jupyter_gpu.idle import LoadMeter
from jupyter_gpu.testing import FakeMachine

pytestmark = pytest.mark.usefixtures("eight_gpus")
LOG = logging.getLogger("test_following")
KEY = b"the kernel's"


class Sessions:
    """A session manager with one notebook, or none."""

    def __init__(self, path=None):
        self.path, self.asked = path, 0

    async def get_session(self, **column):
        self.asked += 1
        if self.path is None:
            raise LookupError(column)
        return {"path": self.path, "type": "notebook", "kernel": {"id": "k"}}


class Stream:
    """What a kernel's messages come through."""

    def __init__(self):
        self.hear, self.closed = None, False

    def on_recv(self, hear):
        self.hear = hear

    def close(self):
        self.closed = True


class Manager:
    """A kernel manager, whose kernel a test lets speak."""

    def __init__(self, kernels):
        self.parent, self.session, self.iopub_port = kernels, Session(key=KEY), 50001
        self.execution_state, self.last_activity = "idle", datetime.now(timezone.utc)
        self.streams = []
        self.speaker = Session(key=KEY)

    def connect_iopub(self):
        self.streams.append(Stream())
        return self.streams[-1]

    def says(self, state, request="execute_request", number=1, **header):
        parent = {"msg_id": f"m{number}", "msg_type": request, **header} if request else {}
        self.publish("status", {"execution_state": state}, parent)

    def publish(self, kind, content, parent, speaker=None):
        speaker = speaker or self.speaker
        message = speaker.msg(kind, content, parent={"header": parent})
        message["parent_header"] = parent
        self.streams[-1].hear([kind.encode(), *speaker.serialize(message)])

    def ran_a_cell(self):
        self.says("busy")
        self.says("idle")


class Kernel:
    """A provisioner as far as it is followed."""

    def __init__(self, lease, root, sessions, *, in_vain=False):
        self.lease, self.kernel_id, self.log, self.pid = lease, "k", LOG, 4711
        self.in_vain, self.ended = in_vain, []
        self.settings = {}
        app = types.SimpleNamespace(
            session_manager=sessions, web_app=types.SimpleNamespace(settings=self.settings)
        )
        self.kernels = types.SimpleNamespace(
            parent=app, root_dir=str(root), shutdown_kernel=self._end
        )
        self.parent = Manager(self.kernels)

    def was_handed_in_vain(self):
        return self.in_vain

    async def _end(self, kernel_id, *, now):
        self.ended.append((kernel_id, now))


@pytest.fixture
def lease():
    with jupyter_gpu.acquire(1) as held:
        yield held


@pytest.fixture
def idle_at_once(monkeypatch):
    monkeypatch.setattr(following, "IDLE_AFTER_SECONDS", 0)
    monkeypatch.setattr(following, "LOOK_EVERY_SECONDS", 0)


def recorded():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        (lease,) = store.holdings().leases
    return lease.record.owner


async def once(kernel):
    await look_once(kernel, Use(kernel))


async def idle(use, kernel, *, within=10):
    """Since when it is idle, as soon as that is known."""

    async def known():
        while (since := use.idle_since(kernel)) is None:
            await asyncio.sleep(0.001)
        return since

    return await asyncio.wait_for(known(), within)


async def a_look(use, kernel):
    """Let a look at the devices come to its end; then what is known."""
    use.idle_since(kernel)
    while use._look is not None and not use._look.done():
        await asyncio.sleep(0.001)
    return use.idle_since(kernel)


async def test_the_record_takes_up_the_notebooks_new_name(lease, tmp_path):
    kernel = Kernel(lease, tmp_path, Sessions("renamed.ipynb"))
    await once(kernel)
    assert recorded().notebook == str(tmp_path.resolve() / "renamed.ipynb")


async def test_without_a_session_the_record_stays_as_it_is(lease, tmp_path):
    before = recorded()
    await once(Kernel(lease, tmp_path, Sessions()))
    assert recorded() == before


async def test_a_kernel_that_was_left_is_idle_since_its_last_cell(
    lease, tmp_path, lease_directory, idle_at_once
):
    kernel = Kernel(lease, tmp_path, Sessions("a.ipynb"))
    use = Use(kernel)
    await look_once(kernel, use)
    assert lease.record.owner.idle_since is None, "the kernel has told nothing yet"
    kernel.parent.says("busy")
    await look_once(kernel, use)
    assert lease.record.owner.idle_since is None
    kernel.parent.says("idle")
    ended = datetime.now(timezone.utc)
    since = await idle(use, kernel)
    await look_once(kernel, use)
    assert lease.record.owner.idle_since == since
    assert abs(datetime.fromisoformat(since) - ended) < timedelta(seconds=2)

    (path,) = (lease_directory / "records").glob(f"{lease.id}.json")
    written = path.stat().st_ino
    for _ in range(3):
        await look_once(kernel, use)
    assert path.stat().st_ino == written, "every write is a new file"

    kernel.parent.says("busy", number=2)
    await look_once(kernel, use)
    assert lease.record.owner.idle_since is None
    use.close()
    assert [stream.closed for stream in kernel.parent.streams] == [True]


async def test_a_kernel_is_not_idle_before_a_minute_has_passed(lease, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "LOOK_EVERY_SECONDS", 0)
    kernel = Kernel(lease, tmp_path, Sessions())
    use = Use(kernel)
    kernel.parent.ran_a_cell()
    assert await a_look(use, kernel) is None
    now = datetime.now(timezone.utc)
    use._idleness = dataclasses.replace(use._idleness, active=now - timedelta(seconds=61))
    use._ear.cells = dataclasses.replace(use._ear.cells, ended=None)
    assert await a_look(use, kernel) is not None


@pytest.mark.parametrize("state", ["busy", "starting", "restarting", "dead", None])
async def test_a_kernel_that_its_server_does_not_call_idle_is_not(
    lease, tmp_path, idle_at_once, state
):
    kernel = Kernel(lease, tmp_path, Sessions())
    use = Use(kernel)
    kernel.parent.ran_a_cell()
    since = await idle(use, kernel)
    kernel.parent.execution_state = state
    assert use.idle_since(kernel) is None
    kernel.parent.execution_state = "idle"
    assert await idle(use, kernel) == since


async def test_a_cell_is_running_though_a_subshell_has_answered(lease, tmp_path, idle_at_once):
    kernel = Kernel(lease, tmp_path, Sessions())
    use = Use(kernel)
    kernel.parent.says("busy", number=1)
    kernel.parent.says("busy", "comm_msg", number=2, subshell_id="s")
    kernel.parent.says("idle", "comm_msg", number=2, subshell_id="s")
    for _ in range(3):
        assert await a_look(use, kernel) is None
    kernel.parent.says("idle", number=1)
    assert await idle(use, kernel)


async def test_what_programs_ask_the_kernel_does_not_make_it_active(lease, tmp_path, idle_at_once):
    kernel = Kernel(lease, tmp_path, Sessions())
    use = Use(kernel)
    kernel.parent.says("busy", "kernel_info_request")
    kernel.parent.says("idle", "kernel_info_request")
    since = await idle(use, kernel)
    kernel.parent.says("busy", "usage_request")
    kernel.parent.says("idle", "usage_request")
    kernel.parent.last_activity = datetime.now(timezone.utc) + timedelta(hours=1)
    assert use.idle_since(kernel) == since


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"status"],
        [b"<IDS|MSG>"],
        [b"<IDS|MSG>", b"", b'{"msg_type": "status"}', b"{}", b"{}", b"{}"],
        [b"<IDS|MSG>", b"x", b'"status"', b"}", b"{", b"1"],
        [b"status", b"<IDS|MSG>", b"\xff", b'{"msg_type": "status"}'],
    ],
)
def test_what_is_no_message_of_this_kernel_is_not_heard(frames):
    manager = Manager(None)
    ear = Ear(manager)
    manager.streams[-1].hear(frames)
    assert not ear.cells.heard


def test_only_the_kernel_itself_is_believed_and_its_output_is_not_unpacked():
    manager = Manager(None)
    ear = Ear(manager)
    parent = {"msg_id": "m", "msg_type": "execute_request"}
    manager.publish("status", {"execution_state": "busy"}, parent, Session(key=b"another's"))
    manager.publish("status", {"nothing": 1}, parent)
    manager.publish("stream", {"name": "stdout", "text": json.dumps("status")}, parent)
    assert not ear.cells.heard
    manager.says("starting", None)
    assert ear.cells.heard
    assert not ear.cells.running


async def test_a_restart_begins_anew(lease, tmp_path, idle_at_once):
    kernel = Kernel(lease, tmp_path, Sessions())
    use = Use(kernel)
    kernel.parent.says("busy")
    assert use.idle_since(kernel) is None
    kernel.pid += 1  # in the middle of its cell
    assert use.idle_since(kernel) is None
    assert [stream.closed for stream in kernel.parent.streams] == [True, False]
    kernel.parent.says("idle", "kernel_info_request")
    assert await idle(use, kernel)
    kernel.parent.iopub_port += 1
    assert use.idle_since(kernel) is None
    assert [stream.closed for stream in kernel.parent.streams] == [True, True, False]


@pytest.mark.parametrize("connect", [None, object])
async def test_a_kernel_that_cannot_be_heard_is_never_idle(lease, tmp_path, idle_at_once, connect):
    kernel = Kernel(lease, tmp_path, Sessions())
    made = []
    if connect is not None:
        connect = lambda: made.append(Silent()) or made[-1]  # noqa: E731
    kernel.parent.connect_iopub = connect
    use = Use(kernel)
    for _ in range(3):
        assert await a_look(use, kernel) is None
    assert all(socket.closed for socket in made)
    use.close()


class Silent:
    """A bare socket, which nobody reads."""

    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def loads(lease):
    """A kernel's machine, whose load a test sets; the meter of its server reads it."""
    machine = FakeMachine(*lease.devices)
    machine.meter = LoadMeter({}, 0, find=lambda _: machine)

    def put(percent):
        machine.set(*(dataclasses.replace(d, utilization_percent=percent) for d in lease.devices))

    machine.put = put
    return machine


async def test_work_on_the_devices_after_the_last_cell_is_activity(
    lease, tmp_path, idle_at_once, loads
):
    kernel = Kernel(lease, tmp_path, Sessions())
    kernel.settings[METER] = loads.meter
    use = Use(kernel)
    kernel.parent.ran_a_cell()
    loads.put(80)
    for _ in range(3):
        assert await a_look(use, kernel) is None
    loads.put(None)
    for _ in range(3):
        assert await a_look(use, kernel) is None
    unknown = use._idleness.active
    loads.put(0)
    since = await idle(use, kernel)
    assert since == unknown.isoformat(timespec="seconds")
    loads.put(1)
    while await a_look(use, kernel) is not None:
        pass


async def test_while_a_cell_runs_no_device_is_looked_at(lease, tmp_path, idle_at_once, loads):
    kernel = Kernel(lease, tmp_path, Sessions())
    kernel.settings[METER] = loads.meter
    use = Use(kernel)
    kernel.parent.says("busy")
    for _ in range(3):
        await a_look(use, kernel)
    assert loads.reads == 0
    kernel.parent.says("idle")
    await a_look(use, kernel)
    assert loads.reads == 1


async def test_the_kernels_of_a_server_share_one_meter(lease, tmp_path):
    kernel = Kernel(lease, tmp_path, Sessions())
    assert Use(kernel)._meter is Use(kernel)._meter is kernel.settings[METER]
    kernel.kernels.parent = None
    assert Use(kernel)._meter is not kernel.settings[METER]


async def test_a_server_knows_the_use_of_a_kernel_while_it_is_followed(lease, tmp_path):
    kernel = Kernel(lease, tmp_path, Sessions())
    before, use = Use(kernel), Use(kernel)
    before.close()
    assert kernel.settings[USES] == {"k": use}
    use.close()
    use.close()
    assert kernel.settings[USES] == {}


async def test_a_look_that_fails_is_a_warning_and_the_kernel_is_not_idle(
    lease, tmp_path, idle_at_once, loads, caplog
):
    kernel = Kernel(lease, tmp_path, Sessions())
    kernel.settings[METER] = loads.meter
    loads.gauge = None
    use = Use(kernel)
    kernel.parent.ran_a_cell()
    assert await a_look(use, kernel) is None
    await until(lambda: "the load of the GPUs could not be read" in caplog.text)


async def test_a_lease_that_the_kernel_changes_is_looked_at_when_that_is_done(
    lease, tmp_path, idle_at_once, loads
):
    kernel = Kernel(lease, tmp_path, Sessions())
    kernel.settings[METER] = loads.meter
    loads.put(0)
    use = Use(kernel)
    kernel.parent.ran_a_cell()
    with lease.changing() as witness:
        record = witness.own_record(lease.id)
        witness.publish(dataclasses.replace(record, uuids=("GPU-another",)))
    for _ in range(3):
        assert await a_look(use, kernel) is None, "a device that this machine lacks is unknown"
    with lease.changing() as witness:
        witness.publish(record)
    kernel.parent.ran_a_cell()
    assert await idle(use, kernel)


async def test_a_record_that_cannot_be_written_is_a_warning(
    lease, tmp_path, lease_directory, caplog
):
    records = lease_directory / "records"
    records.rename(lease_directory / "aside")
    await once(Kernel(lease, tmp_path, Sessions("a.ipynb")))
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
    await once(kernel)
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
