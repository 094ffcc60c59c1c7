"""Reads the devices that are watched, again and again, and the whole machine only when it is due.

A device is read in half a millisecond, the machine in more than one for every GPU that it has
(H200), so a tick reads a few devices, and the rest is read when something has changed. Whatever
cannot be read becomes words; the next reading begins afresh.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.gauge import UNLISTED_BY
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.core.visibility import Visible

if TYPE_CHECKING:
    from jupyter_gpu.adapters.gauge import Gauge
    from jupyter_gpu.adapters.machine import Machine

OVERVIEW_SECONDS = 10.0
# While something cannot be read, to see it come back.
TROUBLED_SECONDS = 5.0
# However much changes, the whole machine is not read more often.
SPACING_SECONDS = 0.5
PATIENCE_SECONDS = 2.0
HANGS = (
    f"The driver has not answered for {PATIENCE_SECONDS:g} s; "
    "look at `dmesg`, or run `nvidia-smi` to see whether it works."
)

_Signs = Mapping[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was read; ``problem`` and ``gone`` as in ``Moment``."""

    overview: Overview
    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str | None = None
    gone: tuple[InForce, ...] = ()


class WatchedDevices:
    """Reads some devices of a machine, which it keeps open. Any thread may read.

    Parameters
    ----------
    read_overview
        Reads the whole machine.
    open_machine
        Returns the machine, not entered yet; called at the first reading.
    which_machine
        Returns what tells one machine from another; where that changes, it is opened anew.
    patience_seconds
        How long to wait for another thread whose reading does not come to its end.
    """

    def __init__(
        self,
        read_overview: Callable[[Machine], Overview],
        open_machine: Callable[[], Machine],
        which_machine: Callable[[], object] = lambda: None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._read_overview, self._open_machine = read_overview, open_machine
        self._which_machine, self._opened_for = which_machine, which_machine()
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._gauge: Gauge | None = None
        self._wanted: tuple[str, ...] = ()
        self._overview = _nothing()
        self._read_at: float | None = None
        self._signs: _Signs = {}
        self._indices: dict[str, int] = {}
        self._rows: Mapping[str, InForce] = {}
        self._gone: tuple[InForce, ...] = ()
        self._due = self._failed = False
        self._silence: str | None = None

    def read(
        self,
        now: float,
        uuids: Sequence[str],
        *,
        visible: bool = True,
        whole: bool = False,
        edge: bool = False,
    ) -> Sight:
        """Return the devices now, the machine around them as it was some seconds ago at most.

        Parameters
        ----------
        now
            In seconds, of a clock that never goes back.
        uuids
            The devices to read.
        visible
            Also read those that are visible.
        whole
            Read the whole machine now.
        edge
            Read it soon: a cell has begun or ended.
        """
        if not self._lock.acquire(timeout=self._patience_seconds):
            return Sight(self._overview, self._unknown(), HANGS, self._gone)
        try:
            self._due = self._due or edge
            sight = self._sight(now, uuids, visible=visible, whole=whole)
            self._failed = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed
            self._due, self._failed = not self._failed, True
            self._gauge, self._signs = None, {}
            return Sight(self._overview, self._unknown(), _words(error), self._gone)
        finally:
            self._lock.release()
        return sight

    def close(self) -> bool:
        """Close the machine; a later reading opens it again. False where a reading hangs."""
        if not self._lock.acquire(timeout=self._patience_seconds):
            return False
        try:
            self._shut()
        finally:
            self._lock.release()
        return True

    def _shut(self) -> None:
        machine, self._machine, self._gauge, self._read_at = self._machine, None, None, None
        if machine is not None:
            machine.__exit__(None, None, None)

    def _open(self) -> Machine:
        """Return the machine that is meant now."""
        wanted = self._which_machine()
        if self._machine is not None and wanted != self._opened_for:
            self._shut()
            self._overview, self._silence, self._signs = _nothing(), None, {}
            self._indices, self._rows, self._gone = {}, {}, ()
        if self._machine is None:
            self._machine, self._opened_for = self._open_machine().__enter__(), wanted
        return self._machine

    def _sight(self, now: float, uuids: Sequence[str], *, visible: bool, whole: bool) -> Sight:
        machine = self._open()
        age = math.inf if self._read_at is None else now - self._read_at
        every = TROUBLED_SECONDS if self._troubled() else OVERVIEW_SECONDS
        fresh = whole or age >= (SPACING_SECONDS if self._due else every)
        if fresh:
            self._look_around(machine, now)
        readings = self._read_devices(machine, uuids, visible=visible)
        changed = _signs(readings) != self._signs and not fresh
        if changed or self._has_newcomers(readings):
            self._due = True
            if not fresh and age >= SPACING_SECONDS:
                self._look_around(machine, now)
                readings = self._read_devices(machine, uuids, visible=visible)
        self._signs = _signs(readings)
        return Sight(self._overview, readings, self._silence, self._gone)

    def _has_newcomers(self, readings: Mapping[str, Reading]) -> bool:
        """Return whether a process has come since the whole machine was read.

        That can be in the moment between that reading and this one.
        """
        devices = self._overview.inventory.devices
        listed = {one.uuid: {process.pid for process in one.processes} for one in devices}
        return any(
            process.pid not in listed.get(uuid, ())
            for uuid, reading in readings.items()
            for process in reading.processes or ()
        )

    def _look_around(self, machine: Machine, now: float) -> None:
        """Read the whole machine. Where it has fallen silent, its devices are kept as they were."""
        self._read_at, self._due = now, False
        self._gauge = None  # so that what was unplugged and is back gets a new handle
        try:
            overview = self._read_overview(machine)
        except Exception as error:  # noqa: BLE001 - the devices may answer all the same
            self._silence = _words(error)
            return
        inventory, known = overview.inventory, self._overview
        self._silence = None
        if inventory.problem is not None and not inventory.devices and known.inventory.devices:
            self._silence = inventory.problem
            overview = replace(
                overview,
                inventory=known.inventory,
                visible=known.visible,
                seen=known.seen,
                process=_still(overview.process, known.process),
            )
        self._overview = overview
        self._indices |= {one.uuid: one.index for one in inventory.devices if one.uuid}
        self._follow_visible()

    def _follow_visible(self) -> None:
        """Keep the devices that were visible until one of them was lost.

        CUDA offers no lost device, and without it others may go too. What a person has made
        invisible is another matter.
        """
        rows = {row.uuid: row for row in self._overview.shown if row.uuid is not None}
        missed = [row for uuid, row in self._rows.items() if uuid not in rows]
        devices = [self._overview.inventory.find(row.uuid or "") for row in missed]
        lost = any(one is None or (one.problem and not one.mig_mode) for one in devices)
        self._gone = tuple(missed) if lost else ()
        self._rows = {**self._rows, **rows} if lost else rows

    def _read_devices(
        self, machine: Machine, uuids: Sequence[str], *, visible: bool
    ) -> Mapping[str, Reading]:
        rows = (*self._overview.shown, *self._gone) if visible else ()
        shown = [row.uuid for row in rows if row.uuid is not None]
        wanted = tuple(dict.fromkeys((*shown, *uuids)))
        if self._gauge is None or wanted != self._wanted:
            self._wanted = wanted
            self._gauge = machine.gauge(wanted)
        found = self._gauge.read(processes=True) if wanted else ()
        return {
            uuid: self._explained(uuid, reading)
            for uuid, reading in zip(wanted, found, strict=True)
        }

    def _explained(self, uuid: str, reading: Reading) -> Reading:
        """Return a reading whose problem says as much as the whole machine does, and no more."""
        if reading.problem is None:
            return reading
        if reading.problem == self._silence:
            return self._unread(uuid)
        if reading.problem in UNLISTED_BY.values():
            # A GPU may be so lost that it is listed without its name.
            index = self._indices.get(uuid)
            nameless = (one for one in self._overview.inventory.devices if one.uuid is None)
            problem = next((one.problem for one in nameless if one.index == index), None)
            return replace(reading, problem=problem or reading.problem)
        return reading

    def _troubled(self) -> bool:
        if self._failed or self._silence is not None:
            return True
        return any(problem is not None for *_, problem in self._signs.values())

    def _unknown(self) -> Mapping[str, Reading]:
        return {uuid: self._unread(uuid) for uuid in self._wanted}

    def _unread(self, uuid: str) -> Reading:
        """Return a device that nobody can read; why, is said once for all."""
        index = self._indices.get(uuid)
        name = "This device" if index is None else f"GPU {index}"
        return Reading(problem=f"{name} cannot be read now.")


def _nothing() -> Overview:
    return Overview(Inventory("none"), Visible(None, (), None, ()))


def _still(now: KernelProcess | None, before: KernelProcess | None) -> KernelProcess | None:
    """Return the kernel's state; that nobody answers does not mean that there is no driver."""
    if now is None or before is None or now.state != "absent":
        return now
    return replace(now, state=before.state, in_force=before.in_force)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _signs(readings: Mapping[str, Reading]) -> _Signs:
    """Return what, when it changes, says that the whole machine is to be read."""
    return {
        uuid: (tuple(process.pid for process in reading.processes or ()), reading.problem)
        for uuid, reading in readings.items()
    }
