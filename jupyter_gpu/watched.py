"""Reads the devices that are watched, again and again, and the whole machine only when it is due.

A device is read in half a millisecond, the machine in more than one for every GPU that it has
(H200), so a tick reads a few devices, and the rest is read when something has changed. Whatever
cannot be read becomes words; the next reading begins afresh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jupyter_gpu.core.devices import Inventory
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
    """What was read: ``problem`` is a sentence about what could not be read at all."""

    overview: Overview
    readings: Mapping[str, Reading] = field(default_factory=dict)
    problem: str | None = None


class WatchedDevices:
    """Reads some devices of a machine, which it keeps open. Any thread may read.

    Parameters
    ----------
    read_overview
        Reads the whole machine.
    open_machine
        Returns the machine, not entered yet; called at the first reading.
    patience_seconds
        How long to wait for another thread whose reading does not come to its end.
    """

    def __init__(
        self,
        read_overview: Callable[[Machine], Overview],
        open_machine: Callable[[], Machine],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._read_overview, self._open_machine = read_overview, open_machine
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._gauge: Gauge | None = None
        self._wanted: tuple[str, ...] = ()
        self._overview = _nothing(None)
        self._read_at: float | None = None
        self._signs: _Signs = {}
        self._due = False
        self._silence: str | None = None

    def read(
        self, now: float, uuids: Sequence[str], *, visible: bool = True, whole: bool = False
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
        """
        if not self._lock.acquire(timeout=self._patience_seconds):
            return Sight(self._overview, self._unknown(), HANGS)
        try:
            return self._sight(now, uuids, visible=visible, whole=whole)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next reading may succeed
            self._gauge, self._due = None, True
            self._signs = {}
            return Sight(self._overview, self._unknown(), str(error) or type(error).__name__)
        finally:
            self._lock.release()

    def close(self) -> bool:
        """Close the machine; a later reading opens it again. False where a reading hangs."""
        if not self._lock.acquire(timeout=self._patience_seconds):
            return False
        try:
            machine, self._machine, self._gauge, self._read_at = self._machine, None, None, None
            if machine is not None:
                machine.__exit__(None, None, None)
        finally:
            self._lock.release()
        return True

    def _sight(self, now: float, uuids: Sequence[str], *, visible: bool, whole: bool) -> Sight:
        if self._machine is None:
            self._machine = self._open_machine().__enter__()
        age = None if self._read_at is None else now - self._read_at
        every = TROUBLED_SECONDS if self._troubled() else OVERVIEW_SECONDS
        if self._due and age is not None:
            every = SPACING_SECONDS
        fresh = whole or age is None or not 0 <= age < every
        if fresh:
            self._look_around(self._machine, now)
        readings = self._read_devices(self._machine, uuids, visible=visible)
        signs = _signs(readings)
        changed, self._signs = signs != self._signs, signs
        if changed and not fresh:
            self._due = True
            if age is not None and age >= SPACING_SECONDS:
                self._look_around(self._machine, now)
                readings = self._read_devices(self._machine, uuids, visible=visible)
                self._signs = _signs(readings)
        return Sight(self._overview, readings, self._silence)

    def _look_around(self, machine: Machine, now: float) -> None:
        """Read the whole machine. Where it has fallen silent, its devices are kept as they were."""
        self._read_at, self._due = now, False
        self._gauge = None  # so that what was unplugged and is back gets a new handle
        overview = self._read_overview(machine)
        inventory, known = overview.inventory, self._overview
        self._silence = None
        if inventory.problem is not None and not inventory.devices and known.inventory.devices:
            self._silence = inventory.problem
            overview = replace(
                overview, inventory=known.inventory, visible=known.visible, seen=known.seen
            )
        self._overview = overview

    def _read_devices(
        self, machine: Machine, uuids: Sequence[str], *, visible: bool
    ) -> Mapping[str, Reading]:
        shown = [row.uuid for row in self._overview.shown if row.uuid] if visible else []
        wanted = tuple(dict.fromkeys((*shown, *uuids)))
        if self._gauge is None or wanted != self._wanted:
            self._wanted = wanted
            self._gauge = machine.gauge(wanted)
        found = self._gauge.read(processes=True) if wanted else ()
        return dict(zip(wanted, found, strict=True))

    def _troubled(self) -> bool:
        return self._silence is not None or any(problem for *_, problem in self._signs.values())

    def _unknown(self) -> Mapping[str, Reading]:
        """Return the devices as nobody can read them; why, is said once for all."""
        found = {}
        for uuid in self._wanted:
            device = self._overview.inventory.find(uuid)
            name = "This device" if device is None else f"GPU {device.index}"
            found[uuid] = Reading(problem=f"{name} cannot be read now.")
        return found


def _nothing(problem: str | None) -> Overview:
    return Overview(Inventory("none", problem=problem), Visible(None, (), None, ()))


def _signs(readings: Mapping[str, Reading]) -> _Signs:
    """Return what, when it changes, says that the whole machine is to be read."""
    return {
        uuid: (tuple(process.pid for process in reading.processes or ()), reading.problem)
        for uuid, reading in readings.items()
    }
