"""Feeds the monitors of one kernel: one thread reads the devices, however many monitors there are.

It calls its listeners only while a cell runs and a few seconds after it, so that a kernel that does
nothing says nothing and can be culled. Meanwhile it reads on quietly, for the curves.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from jupyter_gpu.core.live import Moment, Past, Point, memory_here
from jupyter_gpu.core.past import Keeper
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.watched import PATIENCE_SECONDS, Sight, WatchedDevices
from jupyter_gpu.watching import Listener, Watching

if TYPE_CHECKING:
    from jupyter_gpu.adapters.machine import Machine
    from jupyter_gpu.core.overview import Overview

THREAD_NAME = "jupyter-gpu-feed"  # cell_watch takes threads of this name for no one's work
SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 60.0
AFTER_SECONDS = 3.0
IDLE_SECONDS = 5.0
_READING_SPACING_SECONDS = 0.1  # however short the cells are


class Clock(Protocol):
    """The time, and the waiting for it."""

    def wall(self) -> float:
        """Return the seconds of the Unix epoch; may go back."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, so many seconds at most."""


class SystemClock:
    """The clock of this machine."""

    def wall(self) -> float:
        """Return the seconds of the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, so many seconds at most."""
        event.wait(seconds)


class _Stop(threading.Event):
    """Wakes one thread; ``now`` asks it to end."""

    now = False


class Feed:
    """Reads the devices that are watched, in one thread, and tells those who watch.

    Nothing here waits for that thread longer than two seconds, and nothing but ``look`` reads the
    devices in the caller's. In a forked child nothing is watched.

    Parameters
    ----------
    read_overview
        Reads the whole machine that it is given.
    open_machine
        Returns the machine, not entered yet.
    which_machine
        Returns what tells one machine from another; where that changes, it is opened anew.
    clock
        The time.
    """

    def __init__(
        self,
        read_overview: Callable[[Machine], Overview],
        open_machine: Callable[[], Machine],
        which_machine: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._opening = (read_overview, open_machine, which_machine)
        self._devices = WatchedDevices(*self._opening)
        self._pid = os.getpid()
        # Not held while anything is read or called. Re-entrant: a monitor that the garbage
        # collector finds may close its watching in the midst of ours.
        self._lock = threading.RLock()
        self._keeper = Keeper()
        self._watchings: tuple[Watching, ...] = ()
        self._stop: _Stop | None = None
        self._thread: threading.Thread | None = None
        self._cell: tuple[int | None, float] | None = None
        self._ended_at: float | None = None
        self._reading_due = math.inf
        self._read_at = -math.inf
        self._edge = False
        self._last = (self._clock.monotonic(), self._clock.wall())

    @property
    def past(self) -> Past:
        """The last minutes of the devices that were watched."""
        if self._is_forked():
            return Past()
        with self._lock:
            return self._keeper.past()

    @property
    def running(self) -> bool:
        """Whether a cell runs."""
        return self._cell is not None and not self._is_forked()

    def watch(
        self,
        listener: Listener,
        interval: float = 1.0,
        uuids: Sequence[str] = (),
        ended: Callable[[], None] | None = None,
    ) -> Watching:
        """Call a listener at every interval while a cell runs, until ``close`` of what this gives.

        The calls come from the feed's thread, and go on for three seconds after a cell; the last
        one has ``running`` False. A listener that raises again and again is called no more.

        Parameters
        ----------
        listener
            Called with the moment.
        interval
            In seconds; what is below 0.1 or above 60 becomes that.
        uuids
            The devices; none means the visible ones.
        ended
            Called when the feed is dismissed.
        """
        seconds = min(max(float(interval), SHORTEST_SECONDS), LONGEST_SECONDS)
        watching = Watching(self.end_watching, listener, seconds, tuple(uuids), ended)
        if self._is_forked():
            return watching
        with self._lock:
            now = self._clock.monotonic()
            if not self._watchings and self._cell is not None:
                # Its beginning is known, and what it does from now on.
                number, began = self._cell
                self._wall()
                self._keeper.cell_begins(number, began)
            self._watchings = (*self._watchings, watching)
            if self._cell is not None or self._ended_at is not None:
                watching.is_due_at(now)
            self._reading_due = now
            self._start()
        return watching

    def end_watching(self, watching: Watching) -> None:
        """Call its listener no more; with the last one the thread ends. See ``Watching.close``."""
        if self._is_forked():
            return
        with self._lock:
            self._watchings = tuple(one for one in self._watchings if one is not watching)
            if not self._watchings:
                self._end()

    def cell_begins(self, number: int | None) -> None:
        """Note that a cell begins: the shell's hooks call this, before the cell."""
        if self._is_forked():
            return
        with self._lock:
            at = self._wall()
            self._cell, self._ended_at = (number, at), None
            if self._watchings:
                self._keeper.cell_begins(number, at)
                self._read_soon()

    def cells_end(self) -> None:
        """Note that no cell runs any more: the hooks call this after the outermost one."""
        if self._is_forked():
            return
        with self._lock:
            at = self._wall()
            self._cell = None
            self._keeper.cell_ends(at)
            if self._watchings:
                self._ended_at = self._clock.monotonic()
                self._read_soon()

    def look(self, uuids: Sequence[str] = ()) -> Moment:
        """Read everything now, in the caller's thread, whether a cell runs or not.

        Parameters
        ----------
        uuids
            Devices to read beside those that are visible or watched.
        """
        if self._is_forked():
            devices = WatchedDevices(*self._opening)
            try:
                return self._moment(devices.read(0.0, uuids, whole=True))
            finally:
                devices.close()
        with self._lock:
            watched = {uuid for one in self._watchings for uuid in one.uuids}
            at = self._wall()
        now = self._clock.monotonic()
        sight = self._devices.read(now, (*sorted(watched), *uuids), whole=True)
        return self._keep(sight, at)

    def dismiss(self) -> None:
        """Close it while the kernel goes on, and tell those who watch; called once."""
        watchings = () if self._is_forked() else self._watchings
        self.close()
        for watching in watchings:
            if watching.ended is not None:
                watching.ended()

    def close(self) -> None:
        """End the thread and forget the listeners; what was watched is still known."""
        if self._is_forked():
            return
        with self._lock:
            thread, self._watchings = self._thread, ()
            self._end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE_SECONDS)
        if thread is None or not thread.is_alive():
            self._devices.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _start(self) -> None:
        if self._stop is not None:
            self._stop.set()
            return
        stop = _Stop()
        thread = threading.Thread(target=self._run, args=(stop,), name=THREAD_NAME, daemon=True)
        thread.start()
        self._stop, self._thread = stop, thread
        atexit.register(self.close)

    def _end(self) -> None:
        """Ask the thread to end; it may take its time where the driver does."""
        stop, self._stop, self._thread, self._ended_at = self._stop, None, None, None
        if stop is not None:
            stop.now = True
            stop.set()
            atexit.unregister(self.close)

    def _read_soon(self) -> None:
        """Have the devices read, and the listeners called, at the edge of a cell."""
        now = self._clock.monotonic()
        self._edge = True
        self._reading_due = max(now, self._read_at + _READING_SPACING_SECONDS)
        for watching in self._watchings:
            watching.is_due_at(now)
        self._start()

    def _run(self, stop: _Stop) -> None:
        try:
            while not stop.now:
                with self._lock:
                    due = self._next_due()
                seconds = due - self._clock.monotonic()
                if seconds > 0:
                    self._clock.wait(stop, seconds)
                    stop.clear()
                elif not stop.now:
                    self._tick()
        except Exception:  # noqa: BLE001 - the edge of the thread: at shutdown anything may be gone
            stop.now = True
        finally:
            self._leave(stop)

    def _leave(self, stop: _Stop) -> None:
        """Close the machine, unless another thread has taken over."""
        with self._lock:
            if self._stop is stop:
                self._stop = self._thread = None
            alone = self._stop is None
        if alone:
            self._devices.close()

    def _next_due(self) -> float:
        """Return when the devices are to be read next."""
        due = min(self._reading_due, self._read_at + IDLE_SECONDS)
        if self._cell is not None:
            due = self._reading_due
        elif self._ended_at is not None:
            due = min(due, self._ended_at + AFTER_SECONDS)
        return min(due, *(watching.due for watching in self._watchings), math.inf)

    def _tick(self) -> None:
        """Read once, and call those whose turn it is."""
        with self._lock:
            now, at = self._clock.monotonic(), self._wall()
            edge, self._edge = self._edge, False
            self._read_at, self._reading_due = now, math.inf
            uuids = sorted({uuid for one in self._watchings for uuid in one.uuids})
            visible = any(not one.uuids for one in self._watchings)
        sight = self._devices.read(now, uuids, visible=visible, edge=edge)
        moment = self._keep(sight, at)
        for watching in self._called(now):
            watching.tell(moment)

    def _called(self, now: float) -> Sequence[Watching]:
        """Return whose turn it is, and put down their next; the last calls after a cell are all."""
        with self._lock:
            last = (
                self._cell is None
                and self._ended_at is not None
                and now >= self._ended_at + AFTER_SECONDS
            )
            called = [one for one in self._watchings if last or one.due <= now]
            for watching in called:
                watching.was_called_at(now)
            if last:
                self._ended_at = None
                for watching in self._watchings:
                    watching.due = math.inf
            return called

    def _keep(self, sight: Sight, at: float) -> Moment:
        """Keep what was read, and return the moment that it is part of."""
        moment = self._moment(sight)
        own, known = moment.own_pids, sight.overview.known
        ordinals = {row.uuid: row.ordinal for row in sight.overview.shown}
        points = {
            uuid: Point(
                at,
                reading.memory_used_bytes,
                memory_here(reading, own, known),
                reading.utilization_percent,
                reading.power_watts,
                reading.temperature_celsius,
                ordinals.get(uuid),
            )
            for uuid, reading in sight.readings.items()
            if reading != Reading(problem=reading.problem)  # a gap stays a gap
        }
        with self._lock:
            self._keeper.add(points)
            return replace(moment, past=self._keeper.past(), running=self.running)

    def _moment(self, sight: Sight) -> Moment:
        at = datetime.fromtimestamp(self._clock.wall()).astimezone()
        return Moment(
            at,
            sight.overview,
            sight.readings,
            running=self.running,
            problem=sight.problem,
            gone=sight.gone,
        )

    def _wall(self) -> float:
        """Return the time. Where the clock has gone back, what is kept goes back with it."""
        monotonic, wall = self._clock.monotonic(), self._clock.wall()
        then, before = self._last
        if wall < before:
            seconds = wall - before - (monotonic - then)
            self._keeper.shift(seconds)
            if self._cell is not None:
                self._cell = (self._cell[0], self._cell[1] + seconds)
        self._last = monotonic, wall
        return wall
