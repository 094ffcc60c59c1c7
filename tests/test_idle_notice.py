"""What a kernel says that holds devices and does nothing: once, under its last cell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import types
from datetime import datetime, timedelta, timezone

import pytest
from support_server import Server, wait_until
from support_shell import make_shell

from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.faces.idle_notice import IdleNotice, notice_for, seconds_from
from jupyter_gpu.idle import OwnUse

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=timezone.utc)


class Lease:
    """The record of this kernel's lease, as a test sets it."""

    def __init__(self):
        self.reads, self.use, self.error = 0, None, None

    def idle_for(self, seconds):
        since = None if seconds is None else (NOW - timedelta(seconds=seconds)).isoformat()
        owner = Owner("kernel", idle_since=since)
        self.use = OwnUse(Record("x" * 32, owner, "", uuids=("GPU-3",), indices=(3,)), 2)

    def __call__(self):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.use


class Loop:
    """A loop whose timers a test lets run."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, call, *arguments):
        self.timers.append(Timer(seconds, call, arguments))
        return self.timers[-1]

    @property
    def waiting(self):
        return [timer for timer in self.timers if not timer.over]

    def run(self):
        """Let the time of the only timer come; returns how long that takes."""
        (timer,) = self.waiting
        timer.over = True
        timer.call(*timer.arguments)
        return timer.seconds


class Timer:
    def __init__(self, seconds, call, arguments):
        self.seconds, self.call, self.arguments, self.over = seconds, call, arguments, False

    def cancel(self):
        self.over = True


class Publisher:
    parent_header = {"msg_id": "cell 1"}  # noqa: RUF012


class Notice(IdleNotice):
    """The notice, with what it displays and under which cell."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.shown = []

    def _display(self, shown):
        self.shown.append((self._shell.display_pub.parent_header["msg_id"], repr(shown)))


@pytest.fixture
def lease():
    lease = Lease()
    lease.idle_for(7200)
    return lease


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


@pytest.fixture
def notice(lease):
    shell = types.SimpleNamespace(display_pub=Publisher())
    return Notice(shell, 3600, lease, now=lambda: NOW)


def test_it_is_said_once_under_the_last_cell(notice, loop, lease):
    notice.cell_begins()
    notice.cells_end()
    assert loop.run() == 3600
    assert notice.shown == [
        (
            "cell 1",
            (
                "1 GPU idle since 10:00: this kernel holds physical 3.\n"
                "No cell has run since then, and it does nothing.\n"
                "2 others wait for it.\n"
                "To give it back:  Kernel > Shut Down Kernel,  or  %gpu use 0"
            ),
        )
    ]
    assert not loop.waiting
    assert not notice.pending


def test_a_cell_ends_the_waiting_and_begins_another(notice, loop, lease):
    notice.cells_end()
    notice.cell_begins()
    assert not loop.waiting
    notice.cells_end()
    loop.run()
    notice.cell_begins()
    notice.cells_end()
    loop.run()
    assert len(notice.shown) == 2, "one for each time that nothing was done"


def test_many_cells_leave_one_timer(notice, loop):
    for _ in range(100):
        notice.cell_begins()
        notice.cells_end()
    notice.cells_end()
    assert len(loop.waiting) == 1


def test_work_on_the_devices_puts_it_off(notice, loop, lease):
    notice.cells_end()
    lease.idle_for(600)  # a thread has worked until then
    loop.run()
    assert notice.shown == []
    assert loop.waiting[0].seconds == 3000
    lease.idle_for(3600)
    loop.run()
    assert len(notice.shown) == 1


def test_what_is_unknown_is_not_idle_and_looked_at_now_and_then(notice, loop, lease):
    notice.cells_end()
    lease.idle_for(None)
    loop.run()
    assert [loop.run() for _ in range(3)] == [60, 60, 60]
    assert notice.shown == []
    assert lease.reads == 4


def test_a_kernel_that_holds_nothing_is_not_looked_at_again_before_its_next_cell(
    notice, loop, lease
):
    lease.use = None
    notice.cells_end()
    loop.run()
    assert not loop.waiting
    assert notice.shown == []
    lease.idle_for(7200)
    notice.cells_end()
    loop.run()
    assert len(notice.shown) == 1


def test_it_stands_under_the_cell_whatever_was_asked_since(notice, loop):
    notice.cells_end()
    publisher = notice._shell.display_pub
    publisher.parent_header = {"msg_id": "a completion"}
    loop.run()
    assert notice.shown[0][0] == "cell 1"
    assert publisher.parent_header == {"msg_id": "a completion"}


def test_without_a_running_loop_nothing_happens(notice, lease):
    notice.cells_end()
    assert not notice.pending
    assert lease.reads == 0


def test_a_forked_child_says_nothing(notice, loop, lease, monkeypatch):
    notice.cells_end()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    loop.run()
    assert notice.shown == []
    assert lease.reads == 0


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError("in read"), "(OSError: in read)"), (Unspeakable(), "(Unspeakable)")],
)
def test_an_error_is_said_once_and_the_notice_is_off(notice, loop, lease, capsys, error, said):
    lease.error = error
    notice.cells_end()
    loop.run()
    assert f"no longer tells when this kernel is idle {said}" in capsys.readouterr().err
    lease.error = None
    notice.cell_begins()
    notice.cells_end()
    assert not loop.timers[1:]
    assert notice.shown == []


def test_an_error_that_nobody_can_be_told_is_none_of_the_kernel(notice, loop, lease, monkeypatch):
    lease.error = OSError()
    notice.cells_end()
    monkeypatch.setattr(sys, "stderr", None)
    loop.run()
    assert not notice.pending


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7200", 7200),
        ("0.5", 0.5),
        ("0", None),
        ("-1", None),
        ("", None),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        (None, None),
    ],
)
def test_the_time_is_what_the_kernel_was_started_with(value, seconds):
    environ = {} if value is None else {"JUPYTER_GPU_IDLE_WARNING": value}
    assert seconds_from(environ) == seconds
    shell = types.SimpleNamespace(display_pub=Publisher())
    assert (notice_for(shell, environ) is None) == (seconds is None)


def test_without_a_lease_there_is_nothing_to_read(simulate):
    simulate("2xH200")
    notice = notice_for(types.SimpleNamespace(), {"JUPYTER_GPU_IDLE_WARNING": "1"})
    assert notice._read() is None


@pytest.mark.parametrize(("value", "waits"), [("3600", True), ("none", False), (None, False)])
def test_the_extension_begins_it_only_where_a_time_is_set(monkeypatch, value, waits):
    if value is not None:
        monkeypatch.setenv("JUPYTER_GPU_IDLE_WARNING", value)
    with make_shell() as shell:

        async def cells():
            shell.run_line_magic("load_ext", "jupyter_gpu")
            notice = shell.magics_manager.magics["line"]["gpu"].__self__._hooks._notice
            assert (notice is not None) == waits
            if waits:
                shell.run_cell("x = 1")
                assert notice.pending
                shell.run_line_magic("unload_ext", "jupyter_gpu")
                assert not notice.pending

        asyncio.run(cells())


def test_a_hook_costs_a_few_microseconds(lease):
    async def measure():
        shell = types.SimpleNamespace(display_pub=Publisher())
        notice = IdleNotice(shell, 3600, lease)
        best = []
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(100):
                notice.cell_begins()
                notice.cells_end()
            best.append(time.perf_counter() - begun)
        notice.close()
        return min(best) / 100

    assert asyncio.run(measure()) < 50e-6


# In a real kernel over a real server

IDLE_AT_ONCE = """
import sys
from jupyter_gpu.faces import following
following.IDLE_AFTER_SECONDS, following.LOOK_EVERY_SECONDS = 0, 0
following.EVERY_SECONDS = 0.05
sys.argv = ["jupyter-server", *sys.argv[4:]]
from jupyter_server.serverapp import main
main()
"""


@pytest.fixture
def server(lease_directory, simulate):
    """A server on a machine whose load is in a file; this computer may have a file of rules."""
    rules = lease_directory.parent / "rules.toml"
    rules.write_text("", encoding="utf-8")
    simulate(machine(load=0))
    arguments = ["--JupyterGPU.idle_warning=0.7s"]
    command = [sys.executable, "-c", IDLE_AT_ONCE]
    with Server(
        lease_directory.parent, command=command, arguments=arguments, JUPYTER_GPU_CONFIG=str(rules)
    ) as server:
        yield server


def machine(*, load):
    return {"gpus": [{"name": "NVIDIA H200", "utilization_percent": load}]}


def opened(server):
    answer = server.open_notebook("exp7.ipynb")
    assert answer.status == 201, answer.body
    return answer.body["kernel"]["id"]


class Front:
    """A front end: runs cells, and notes what is displayed under which."""

    def __init__(self, client):
        self.client, self.notices = client, []

    def run(self, code):
        cell = self.client.execute(code)
        self.look(lambda: self.done == cell)
        return cell

    done = None

    def look(self, condition, seconds=20):
        wait_until(lambda: self._take() or condition(), seconds=seconds, what="the kernel")

    def _take(self):
        with contextlib.suppress(Exception):
            message = self.client.get_iopub_msg(timeout=0.05)
            kind, content = message["msg_type"], message["content"]
            parent = message["parent_header"].get("msg_id")
            if kind == "status" and content["execution_state"] == "idle":
                self.done = parent
            text = content.get("data", {}).get("text/plain", "") if kind == "display_data" else ""
            if "idle since" in text:
                self.notices.append((parent, text))
        return False


def test_a_real_kernel_tells_once_under_its_last_cell(server):
    kernel = opened(server)
    with server.client(kernel) as client:
        front = Front(client)
        front.run("x = 1")
        cell = front.run("get_ipython().run_cell('x'); import asyncio; await asyncio.sleep(0)")
        # What a front end asks for while nothing runs is not the cell.
        client.complete("x.", 2)
        front.look(lambda: front.notices)
        assert front.notices[0][0] == cell
        assert "this kernel holds physical 0" in front.notices[0][1]
        begun = time.monotonic()
        front.look(lambda: time.monotonic() > begun + 3)
        assert len(front.notices) == 1
        again = front.run("x = 2")
        front.look(lambda: len(front.notices) == 2)
        assert front.notices[1][0] == again
        front.run("%gpu use 0")
        begun = time.monotonic()
        front.look(lambda: time.monotonic() > begun + 3)
        assert len(front.notices) == 2, "it holds nothing any more"
        assert "no longer" not in server.log


def test_a_kernel_whose_gpu_works_is_not_told_that_it_is_idle(server, simulate):
    simulate(machine(load=70))
    with server.client(opened(server)) as client:
        front = Front(client)
        front.run("x = 1")
        begun = time.monotonic()
        front.look(lambda: time.monotonic() > begun + 3)
        assert front.notices == []
        simulate(machine(load=0))
        front.look(lambda: front.notices)
