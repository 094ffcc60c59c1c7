"""What tells that nobody uses a lease: the load of its devices, its record, and how long is long.

A server looks at the devices for all of its kernels at once, and only while a kernel runs nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from jupyter_gpu.adapters.machine import Machine, find_machine, is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.core.errors import GPUError, SimulationError
from jupyter_gpu.core.idleness import parse_idle_time, shorter
from jupyter_gpu.core.leases import Record

LOOK_EVERY_SECONDS = 10.0
# Who has not asked for a device for so many looks has no use for it any more.
_FORGOTTEN_AFTER = 3
# The section of a server's configuration that the server's extension reads.
SECTION = "JupyterGPU"


@dataclass(frozen=True, slots=True)
class Look:
    """The load of some devices at one moment, in their order; None is unknown."""

    at: datetime
    percents: tuple[float | None, ...]


class LoadMeter:
    """Looks at the load of devices, for all kernels of a server together.

    The machine is open only for the look itself: whoever keeps it open stands in the way of an
    administrator who resets a GPU, and on every list of programs that use it.

    Parameters
    ----------
    environ
        Names the machine.
    every_seconds
        How long a look counts.
    find
        Finds the machine that an environment means.
    clock
        Tells seconds that never jump.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        every_seconds: float = LOOK_EVERY_SECONDS,
        *,
        find: Callable[[Mapping[str, str]], Machine] = find_machine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ, self._every, self._find, self._clock = environ, every_seconds, find, clock
        self._looking = threading.Lock()
        self._wanted: dict[str, float] = {}
        self._loads: dict[str, float | None] = {}
        self._at: datetime | None = None
        self._next = float("-inf")

    def want(self, uuids: Sequence[str]) -> bool:
        """Ask for these devices in the next look; returns whether it is due."""
        now = self._clock()
        self._wanted.update(dict.fromkeys(uuids, now))
        return now >= self._next and not self._looking.locked()

    def latest(self, uuids: Sequence[str]) -> Look | None:
        """Return what the last look has found, None where one of these was not looked at."""
        loads, at = self._loads, self._at
        if at is None or not all(uuid in loads for uuid in uuids):
            return None
        return Look(at, tuple(loads[uuid] for uuid in uuids))

    def look(self) -> None:
        """Look at the devices that are asked for; may be called in a thread, and may hang there.

        While another thread looks it does nothing, so that a driver which does not answer stops
        one thread and not all of them.
        """
        if not self._looking.acquire(blocking=False):
            return
        try:
            now = self._clock()
            self._next = now + self._every
            oldest = now - max(_FORGOTTEN_AFTER * self._every, 1.0)
            wanted = [uuid for uuid, asked in tuple(self._wanted.items()) if asked >= oldest]
            loads = dict(zip(wanted, self._read(wanted), strict=True))
            self._loads, self._at = loads, datetime.now(timezone.utc)
            for uuid in tuple(self._wanted):
                if uuid not in loads:
                    self._wanted.pop(uuid, None)
        finally:
            self._looking.release()

    def _read(self, uuids: Sequence[str]) -> tuple[float | None, ...]:
        if not uuids:
            return ()
        try:
            with self._find(self._environ) as machine:
                readings = machine.gauge(uuids).read()
        except SimulationError:  # its description is being written, say
            return (None,) * len(uuids)
        return tuple(reading.utilization_percent for reading in readings)


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The lease of this process, as its record stands, and how many wait for its devices."""

    record: Record
    waiting: int = 0


def own_use(environ: Mapping[str, str]) -> OwnUse | None:
    """Return what is known of the lease of this process, None where it holds no device.

    Raises
    ------
    StoreError
        When the lease directory cannot be used.
    """
    # The store needs what other systems' os module does not have, and most kernels never get here.
    from jupyter_gpu.adapters.store import LeaseStore  # noqa: PLC0415
    from jupyter_gpu.own_lease import find_own_lease  # noqa: PLC0415

    place = find_place(environ, simulated=is_simulated(environ))
    own = find_own_lease(environ, place)
    if own is None:
        return None
    with LeaseStore(place) as store:
        holdings = store.holdings()
    lease = next((one for one in holdings.leases if one.record.id == own.record.id), None)
    if lease is None or not lease.record.uuids:
        return None
    theirs = set(lease.record.uuids)
    waiting = sum(not theirs.isdisjoint(one.record.could_use) for one in holdings.waiters)
    return OwnUse(lease.record, waiting)


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """After how many seconds of idleness a kernel is told, and ended; None is never."""

    warning_seconds: float | None = None
    shutdown_seconds: float | None = None


def site_times(environ: Mapping[str, str]) -> IdleTimes:
    """Return what the site's file of rules says.

    Raises
    ------
    RulesError
        When it cannot be used.
    """
    from jupyter_gpu.adapters.rules_file import read_rules  # noqa: PLC0415 - as the store

    rules = read_rules(find_place(environ, simulated=is_simulated(environ)), environ)
    return IdleTimes(rules.idle_warning_seconds, rules.idle_shutdown_seconds)


def idle_warning_seconds(config: Mapping[str, object], environ: Mapping[str, str]) -> float | None:
    """Return after how long a kernel that is being started is told that it is idle, or None.

    The shorter of what the server's configuration and the site's rules say. It refuses nothing:
    an error in the rules is one of the grant, and one in the configuration is in the server's log.

    Parameters
    ----------
    config
        The server's whole configuration, as each of its parts has it.
    environ
        Names the lease directory.
    """
    section = config.get(SECTION)
    given = section.get("idle_warning") if isinstance(section, Mapping) else None
    own = site = None
    with contextlib.suppress(GPUError):
        own = parse_idle_time("idle_warning", given)
    with contextlib.suppress(GPUError):
        site = site_times(environ).warning_seconds
    return shorter(own, site)
