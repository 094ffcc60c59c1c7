"""The feed of a kernel's monitors: when it reads, whom it calls, and that it never gets in the way."""

import contextlib
import os
import statistics
import sys
import threading
import time
import types
import warnings

import pytest
from support_shell import make_shell

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch
from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.live import CellSpan
from jupyter_gpu.core.overview import Overview, SeenProcess
from jupyter_gpu.core.past import MOST_POINTS
from jupyter_gpu.core.visibility import visible
from jupyter_gpu.faces.hooks import CellHooks
from jupyter_gpu.faces.magics.context import Context
from jupyter_gpu.feed import LONGEST_SECONDS, SHORTEST_SECONDS, THREAD_NAME, Feed
from jupyter_gpu.testing import FakeMachine, fake_gpu
from jupyter_gpu.watched import HANGS

UUID = fake_gpu(0).uuid
EPOCH = 1.7e9


class SteppedClock:
    """A clock that a test moves, from one waiting of the feed's thread to the next."""

    def __init__(self):
        self.now, self.epoch = 0.0, EPOCH
        self._changed = threading.Condition()
        self._event, self._until = None, None

    def monotonic(self):
        return self.now

    def wall(self):
        return self.epoch + self.now

    def wait(self, event, seconds):
        with self._changed:
            self._event, self._until = event, self.now + seconds
            self._changed.notify_all()
            while not event.is_set() and self.now < self._until:
                self._changed.wait(0.001)
            self._until = None

    def advance(self, seconds):
        """Let so much time pass, and everything happen that is due until then."""
        end = self.now + seconds
        while True:
            with self._changed:
                self._settled()
                if self.now >= end:
                    return
                self.now = min(end, self._until)
                self._changed.notify_all()

    def jump(self, seconds):
        """Let time pass in which the thread does not run."""
        with self._changed:
            self._settled()
            self.now += seconds
            self._changed.notify_all()

    def _settled(self):
        assert self._changed.wait_for(self._waits, timeout=10), "the thread does not wait"

    def _waits(self):
        return self._until is not None and not self._event.is_set() and self._until > self.now


class Heard:
    """A listener that keeps what it hears, and when."""

    def __init__(self, clock):
        self.clock, self.moments, self.times = clock, [], []

    def __call__(self, moment):
        self.moments.append(moment)
        self.times.append(round(self.clock.now, 3))


def around(machine):
    inventory = machine.read()
    pid = 4711
    return Overview(
        inventory,
        visible("0", inventory, environment={}),
        seen=(SeenProcess(pid, "alice", "python"),),
        process=KernelProcess(pid, "0", "0", "simulated"),
    )


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def machine():
    return FakeMachine(fake_gpu(0, memory_used_bytes=5), fake_gpu(1, memory_used_bytes=7))


@pytest.fixture
def feed(machine, clock):
    feed = Feed(around, lambda: machine, clock=clock)
    yield feed
    feed.close()
    assert no_thread_is_left()


@pytest.fixture
def heard(clock):
    return Heard(clock)


def threads():
    return [one for one in threading.enumerate() if one.name.startswith(THREAD_NAME)]


def no_thread_is_left():
    return not threads()


def times(feed, uuid=UUID):
    return [round(point.at - EPOCH, 3) for point in feed.past.of(uuid)]


def test_while_a_cell_runs_a_listener_is_called_on_the_beat(feed, clock, heard):
    feed.watch(heard, 1.0)
    clock.advance(0.5)
    feed.cell_begins(7)
    clock.advance(4.2)
    assert heard.times == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert all(moment.running for moment in heard.moments)
    assert heard.moments[-1].readings[UUID].memory_used_bytes == 5
    assert heard.moments[-1].at.timestamp() == EPOCH + 4.5
    assert heard.moments[-1].at.tzinfo is not None


def test_after_a_cell_there_are_three_seconds_more_and_then_nothing_is_said(feed, clock, heard):
    feed.watch(heard, 1.0)
    feed.cell_begins(1)
    clock.advance(1.6)
    feed.cells_end()
    clock.advance(3600)
    assert heard.times == [0, 1, 1.6, 2.6, 3.6, 4.6]
    assert [moment.running for moment in heard.moments] == [True, True, False, False, False, False]
    quiet = [at for at in times(feed) if at > 4.6]
    assert quiet == [9.6 + 5 * number for number in range(len(quiet))]
    assert len(quiet) == 719


def test_an_idle_kernel_is_read_quietly(feed, clock, heard):
    feed.watch(heard, 0.1)
    clock.advance(61)
    assert heard.times == []
    assert times(feed) == [0, *range(5, 61, 5)]


def test_the_next_cell_goes_on_where_the_last_has_just_ended(feed, clock, heard):
    feed.watch(heard, 1.0)
    for number in range(3):
        feed.cell_begins(number)
        clock.advance(2.0)
        feed.cells_end()
        clock.advance(1.0)
    assert heard.moments[-1].running is False
    assert [round(cell.ended - EPOCH, 3) for cell in feed.past.cells] == [2, 5, 8]
    clock.advance(10)
    assert heard.times[-1] == 11.0


def test_many_short_cells_are_no_flood(feed, clock, heard, machine):
    feed.watch(heard, 1.0)
    before = machine.reads
    for number in range(100):
        feed.cell_begins(number)
        clock.advance(0.005)
        feed.cells_end()
        clock.advance(0.005)
    assert len(heard.times) <= 4
    assert machine.reads - before <= 20
    assert len(feed.past.cells) == 100
    clock.advance(5)
    assert heard.moments[-1].running is False


def test_each_listener_has_its_own_interval_and_there_is_one_thread(feed, clock):
    slow, quick = Heard(clock), Heard(clock)
    feed.watch(slow, 2.0)
    feed.watch(quick, 0.5)
    assert len(threads()) == 1
    clock.advance(1.0)
    feed.cell_begins(1)
    clock.advance(4.0)
    assert slow.times == [1, 3, 5]
    assert quick.times == [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert [at for at in times(feed) if at] == quick.times, "one reading for both"


def test_who_begins_to_watch_while_a_cell_runs_is_called_at_once(feed, clock, heard):
    feed.cell_begins(4)
    feed.watch(heard, 1.0)
    clock.advance(0.2)
    assert heard.times == [0]
    assert heard.moments[0].running
    assert feed.past.cells == (CellSpan(4, EPOCH),)


def test_a_cell_that_is_watched_twice_is_one_cell(feed, clock, heard, eventually):
    feed.cell_begins(4)
    feed.watch(heard).close()
    eventually(no_thread_is_left)
    feed.watch(heard).close()
    eventually(no_thread_is_left)
    clock.now += 5
    feed.cells_end()
    assert feed.past.cells == (CellSpan(4, EPOCH, EPOCH + 5),)


@pytest.mark.parametrize(
    ("asked", "given"), [(0, SHORTEST_SECONDS), (-1, SHORTEST_SECONDS), (1e9, LONGEST_SECONDS)]
)
def test_an_interval_that_is_too_short_or_too_long_is_bounded(feed, heard, asked, given):
    assert feed.watch(heard, asked).interval == given


def test_the_thread_ends_with_the_last_who_watches_and_begins_again(feed, clock, heard, eventually):
    assert no_thread_is_left()
    first, second = feed.watch(heard), feed.watch(heard)
    (thread,) = threads()
    assert thread.daemon
    assert thread.name.startswith("jupyter-gpu")
    first.close()
    first.close()
    assert thread.is_alive()
    second.close()
    eventually(no_thread_is_left)
    feed.watch(heard)
    clock.advance(6)
    assert 6 - times(feed)[-1] <= 5


def test_a_listener_that_raises_thrice_is_dropped_and_the_others_go_on(feed, clock, heard, capfd):
    calls = []

    def fail(moment):
        calls.append(moment)
        raise (SystemExit if len(calls) == 2 else OSError)("in a socket")

    feed.watch(fail)
    feed.watch(fail)
    feed.watch(heard)
    feed.cell_begins(1)
    clock.advance(3)
    assert len(calls) == 6
    assert heard.times == [0, 1, 2, 3]
    assert capfd.readouterr() == ("", "")


def test_a_listener_may_stop_the_watching(feed, clock, eventually):
    calls = []

    def once(moment):
        calls.append(moment)
        watching.close()

    watching = feed.watch(once)
    feed.cell_begins(1)
    eventually(no_thread_is_left)
    assert len(calls) == 1


def test_a_feed_may_be_closed_by_its_listener(feed, clock, eventually):
    feed.watch(lambda _: feed.close())
    feed.cell_begins(1)
    eventually(no_thread_is_left)


def test_devices_that_are_named_are_read_and_only_those(feed, clock, heard):
    other = fake_gpu(1).uuid
    feed.watch(heard, uuids=(other,))
    feed.cell_begins(1)
    clock.advance(0.5)
    assert list(heard.moments[0].readings) == [other]
    feed.watch(heard)
    clock.advance(1.0)
    assert set(heard.moments[-1].readings) == {UUID, other}


def test_the_past_has_what_this_kernel_has(feed, clock, heard, machine):
    machine.set(
        fake_gpu(
            0,
            memory_used_bytes=9,
            utilization_percent=40,
            power_watts=300.0,
            temperature_celsius=50,
            processes=(Process(4711, 6), Process(12, 3)),
        )
    )
    feed.watch(heard)
    clock.advance(1)
    feed.cell_begins(1)
    clock.advance(0.5)
    point = heard.moments[-1].past.of(UUID)[-1]
    assert (point.memory_used_bytes, point.memory_here_bytes) == (9, 6)
    assert (point.utilization_percent, point.power_watts, point.temperature_celsius) == (
        40,
        300.0,
        50,
    )


def test_a_device_that_cannot_be_read_leaves_a_gap(feed, clock, heard, machine):
    feed.watch(heard, uuids=(UUID,))
    clock.advance(1)
    feed.cell_begins(1)
    clock.advance(2)
    machine.set(fake_gpu(1))
    clock.advance(3)
    assert heard.moments[-1].readings[UUID].problem is not None
    assert heard.times[-1] == 6
    machine.set(fake_gpu(0))
    clock.advance(2)
    assert times(feed) == [0, 1, 2, 3, 7, 8]


def test_a_stall_is_made_up_for_by_one_call(feed, clock, heard):
    feed.watch(heard, 1.0)
    feed.cell_begins(1)
    clock.advance(2)
    clock.jump(100.4)
    clock.advance(2)
    assert heard.times == [0, 1, 2, 102.4, 103, 104]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_when_the_clock_is_set_the_past_stays_in_order(feed, clock, heard, step):
    feed.watch(heard, 1.0)
    clock.advance(1)
    feed.cell_begins(1)
    clock.advance(10)
    clock.epoch += step
    clock.advance(10)
    past = heard.moments[-1].past
    at = [point.at for point in past.of(UUID)]
    assert at == sorted(at)
    assert len(at) == 22
    assert at[-1] == heard.moments[-1].at.timestamp() == EPOCH + step + 21
    if step < 0:
        assert at[0] == pytest.approx(EPOCH + step), "some seconds ago is still as long ago"
        assert past.cells[0].began == pytest.approx(EPOCH + step + 1)


def test_an_hour_of_ticks_is_bounded(feed, clock, heard):
    feed.watch(lambda _: None, 1.0)
    feed.cell_begins(1)
    clock.advance(3600)
    assert len(feed.past.of(UUID)) <= MOST_POINTS
    assert times(feed)[0] == 0
    assert times(feed)[-1] == 3600


def test_a_look_reads_at_once_in_the_callers_thread(feed, machine):
    names = []
    read, machine.read = (
        machine.read,
        lambda **_: names.append(threading.current_thread()) or read(),
    )
    moment = feed.look((fake_gpu(1).uuid,))
    assert set(names) == {threading.current_thread()}
    assert no_thread_is_left()
    assert [reading.memory_used_bytes for reading in moment.readings.values()] == [5, 7]
    assert len(moment.past.of(UUID)) == 1
    assert not moment.running
    feed.cell_begins(1)
    assert feed.look().running
    assert feed.past.cells == (), "nobody watches"


def test_who_only_looks_sees_the_watched_devices_too(feed, clock, heard):
    feed.watch(heard, uuids=(fake_gpu(1).uuid,))
    assert set(feed.look().readings) == {UUID, fake_gpu(1).uuid}


def test_the_machine_is_closed_when_nobody_watches(clock, eventually):
    opened, closed = [], []

    class Counted(FakeMachine):
        def __enter__(self):
            opened.append(threading.current_thread().name)
            return self

        def __exit__(self, *error):
            closed.append(threading.current_thread().name)

    feed = Feed(around, lambda: Counted(fake_gpu(0)), clock=clock)
    watching = feed.watch(lambda _: None)
    clock.advance(1)
    watching.close()
    eventually(lambda: closed)
    assert opened == closed == [THREAD_NAME]
    feed.look()
    feed.close()
    assert len(opened) == len(closed) == 2


class HangingMachine(FakeMachine):
    """Does not answer any more once ``answers`` is cleared."""

    def __init__(self, *devices):
        super().__init__(*devices)
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.answers.set()

    def read(self, **options):
        if not self.answers.is_set():
            self.hangs.set()
        assert self.answers.wait(60)
        return super().read(**options)


def test_a_driver_that_hangs_holds_up_neither_cells_nor_looks_for_long(eventually):
    machine = HangingMachine(fake_gpu(0))
    feed, heard = Feed(around, lambda: machine), []
    feed.watch(heard.append, 0.1)
    feed.cell_begins(1)
    eventually(lambda: heard)
    machine.answers.clear()
    assert machine.hangs.wait(10)
    try:
        began = time.perf_counter()
        feed.cells_end()
        feed.cell_begins(2)
        assert feed.past.cells
        assert time.perf_counter() - began < 0.5
        moment = feed.look()
        assert moment.problem == HANGS
        assert moment.readings[UUID].problem == "GPU 0 cannot be read now."
        assert time.perf_counter() - began < 3
        began = time.perf_counter()
        feed.close()
        assert time.perf_counter() - began < 3
        assert len(threads()) == 1, "it hangs, and nobody waits for it"
    finally:
        machine.answers.set()
    eventually(no_thread_is_left)
    assert feed.look().problem is None
    feed.close()


def test_cells_are_hardly_held_up():
    machine = FakeMachine(*(fake_gpu(index) for index in range(8)))
    feed = Feed(around, lambda: machine)

    def cost():
        began = time.perf_counter()
        feed.cell_begins(1)
        feed.cells_end()
        return time.perf_counter() - began

    try:
        unwatched = statistics.median(cost() for _ in range(200))
        feed.watch(lambda _: None)
        watched = statistics.median(cost() for _ in range(200))
    finally:
        feed.close()
    assert unwatched < 100e-6
    assert watched < 3e-3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_touches_nothing_of_its_parents(feed, clock, heard):
    watching = feed.watch(heard)
    feed.cell_begins(1)
    clock.advance(1)
    with feed._lock, feed._devices._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                code = forked(feed, watching)
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.advance(1)
    assert heard.times == [0, 1, 2]


def forked(feed, watching):
    feed.cells_end()
    feed.cell_begins(2)
    moment = feed.look()
    assert moment.readings[UUID].memory_used_bytes == 5
    assert not moment.running
    assert feed.past.cells == ()
    watching.close()
    feed.watch(lambda _: None).close()
    feed.close()
    return 0


ENDS = """
import os, sys, threading, time
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.feed import Feed
from jupyter_gpu.overview import read_overview

feed = Feed(lambda machine: read_overview(os.environ, machine=machine), lambda: find_machine(os.environ))
called = threading.Event()
feed.watch(lambda moment: called.set(), 0.1)
feed.cell_begins(1)
assert called.wait(10)
{how}
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("del feed", 0),
        ("feed.close()", 0),
        ("threading.Thread(target=lambda: time.sleep(0.3)).start()", 0),
        ("sys.modules['time'] = None; feed._clock = None", 0),
        ("pid = os.fork()\nif pid: os.waitpid(pid, 0)", 0),
    ],
)
def test_it_ends_quietly_with_the_interpreter(simulate, how, status):
    import subprocess

    simulate("2xH200")
    done = subprocess.run(
        [sys.executable, "-c", ENDS.replace("{how}", how)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.fixture
def watch():
    watch = CellWatch(Launch(os.getpid(), None))
    yield watch
    watch.close()


@pytest.fixture
def shell():
    with make_shell() as shell:
        yield shell


@pytest.fixture
def context(shell, watch, simulate):
    simulate("2xH200")
    asked = Context(shell, watch)
    hooks = CellHooks(shell, watch, asked.overview)
    context = Context(shell, watch, hooks)
    hooks.register()
    yield context
    context.close()
    asked.close()
    hooks.unregister()
    assert no_thread_is_left()


def test_a_kernel_has_one_feed_that_hears_of_its_cells(context, shell, eventually):
    feed, moments = context.feed(), []
    assert context.feed() is feed
    feed.watch(moments.append, 0.1)
    shell.push({"moments": moments, "poll": eventually, "feed": feed})
    result = shell.run_cell(
        "poll(lambda: len(moments) > 1); running = [one.running for one in moments]",
        store_history=True,
    )
    assert result.success
    assert set(shell.user_ns["running"]) == {True}
    assert moments[0].overview.process.pid == os.getpid()
    assert len(moments[0].readings) == 2
    eventually(lambda: not moments[-1].running)
    assert [cell.number for cell in feed.past.cells] == [1]
    assert feed.past.cells[0].ended is not None


def test_a_feed_that_is_made_in_a_cell_knows_that_it_runs(context, shell):
    shell.push({"context": context})
    assert shell.run_cell("running = context.feed().running", store_history=True).success
    assert shell.user_ns["running"] is True
    assert not context.feed().running


def test_another_simulated_machine_is_seen(context, simulate):
    assert len(context.feed().look().readings) == 2
    simulate("5xL4")
    moment = context.feed().look()
    assert len(moment.readings) == 5
    assert {device.name for device in moment.overview.inventory.devices} == {"NVIDIA L4"}


def test_after_closing_there_is_another_feed(context, eventually):
    feed = context.feed()
    feed.watch(lambda _: None)
    context.close()
    eventually(no_thread_is_left)
    assert context.feed() is not feed


def looked_at_from_outside(feed):
    """Have another thread look, as the feed's own does; returns what it saw."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(feed.look()))
    thread.start()
    thread.join(10)
    return seen[0].overview.process


def imported(history):
    """Only what is imported here: other tests of this process have imported more."""
    return [one for one in history.imports if one.module == "jax"]


def test_looks_while_a_cell_runs_do_not_disturb_what_is_told_of_it(
    context, shell, watch, monkeypatch
):
    feed = context.feed()

    def middle():
        monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
        half = looked_at_from_outside(feed)
        sys.modules["jax"].__version__ = "9.9"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        changed = looked_at_from_outside(feed)
        return half, changed

    shell.push({"middle": middle})
    result = shell.run_cell("half, changed = middle()", store_history=True)
    assert result.success
    half, changed = shell.user_ns["half"], shell.user_ns["changed"]
    assert imported(half.history) == []
    assert changed.set_now == "1", "what is so now is told all the same"
    assert changed.history.changes == ()
    history = watch.history()
    found = [(one.module, one.version, one.cell) for one in imported(history)]
    assert found == [("jax", "9.9", 1)]
    assert [(one.before, one.after, one.cell) for one in history.changes] == [(None, "1", 1)]


def test_in_the_cells_own_thread_a_look_sees_what_the_cell_has_done(context, shell, monkeypatch):
    feed = context.feed()
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    shell.push({"feed": feed})
    assert shell.run_cell("seen = feed.look().overview.process", store_history=True).success
    found = imported(shell.user_ns["seen"].history)
    assert [one.module for one in found] == ["jax"]


def test_the_values_between_which_cuda_was_initialised_are_known_whoever_looked(
    context, shell, watch, monkeypatch
):
    feed, frozen = context.feed(), []
    monkeypatch.setattr(watch._driver, "is_frozen", lambda: bool(frozen))

    def middle():
        frozen.append(True)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        looked_at_from_outside(feed)

    shell.push({"middle": middle})
    assert shell.run_cell("middle()", store_history=True).success
    known = watch.history().frozen
    assert (known.cell, known.when) == (1, "during")
    assert known.values == (None, "1")
