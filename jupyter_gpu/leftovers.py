"""Finds what is left behind on this machine, and ends what may be ended of it.

Leases that are draining and workers that have outlived their kernel keep devices that nobody uses.
What is here gathers the facts; which processes may be ended is decided in ``core.leftovers``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from jupyter_gpu.adapters import device_files, processes, surroundings
from jupyter_gpu.adapters.ending import Targets
from jupyter_gpu.adapters.lease_reader import leases_kept_by
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.holds import device_meant
from jupyter_gpu.core.layout import is_lease_id
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.leftovers import (
    Left,
    Leftovers,
    ProcessFacts,
    Role,
    Sight,
    chosen,
    is_offered,
    sorted_out,
)
from jupyter_gpu.core.leftovers_view import Ended, Released
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.standing import FREE, Standing, standing
from jupyter_gpu.overview import read_overview

# The driver tidies up after a process for 100 to 200 ms (measured on H200).
_TIDYING_SECONDS = 2.0
_EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: what may be ended and what not, and the devices that it is about."""

    leftovers: Leftovers
    devices: tuple[Device, ...] = ()


def find_leftovers(
    environ: Mapping[str, str],
    wanted: Sequence[str] = (),
    *,
    device_folder: str = device_files.DEVICE_FOLDER,
) -> Found:
    """Return what keeps devices although nobody uses them.

    Parameters
    ----------
    environ
        Names the machine and the lease directory.
    wanted
        Physical indices, UUIDs or lease ids; everything on these is told about, and nothing else.
        None of them means all that is left behind: one's own, everybody's for root.
    device_folder
        Where the GPUs' device files stand.

    Raises
    ------
    UsageError
        When a name means no device and has not the form of a lease id.
    """
    overview = read_overview(environ, sensors=False)
    lease_ids = {name for name in wanted if is_lease_id(name)}
    named = [device_meant(name, overview.inventory) for name in wanted if name not in lease_ids]
    root = os.geteuid() == 0
    gatherer = _Gatherer(environ, overview, device_folder)
    everything = sorted_out(gatherer.facts(), root=root)
    if not wanted:
        found = chosen(everything, lambda one: is_offered(one, root=root))
    else:
        uuids = _with_parts(named, overview.inventory)
        found = chosen(everything, lambda one: gatherer.is_on(one, uuids, lease_ids))
    return Found(found, _devices(found, named, overview.inventory))


def end_leftovers(environ: Mapping[str, str], found: Found, targets: Targets) -> Released:
    """End what was found, wait until it is gone, and return what has become of the devices.

    Parameters
    ----------
    environ
        As for ``find_leftovers``.
    found
        What it returned.
    targets
        The processes of it that may be ended, held since before anybody was asked.
    """
    by_pid = {one.pid: one for one in found.leftovers.may_end if one.pid is not None}
    ended, left = [], list(found.leftovers.left)
    for outcome in targets.end():
        process = by_pid[outcome.pid]
        if outcome.problem is None:
            ended.append(Ended(process, outcome.signal))
        else:
            left.append(Left(process, outcome.problem))
    overview = _settled(environ, found.devices, [one.process for one in ended])
    return Released(tuple(ended), tuple(left), overview, _now(found.devices, overview.inventory))


def hold(found: Found, opener: Callable[[int], int] | None) -> Targets:
    """Hold the processes that may be ended, so that a later one with their number is not met."""
    pairs = ((one.pid, one.start) for one in found.leftovers.may_end)
    return Targets(
        ((pid, start) for pid, start in pairs if pid is not None and start is not None),
        opener=opener,
    )


def _with_parts(named: Sequence[Device], inventory: Inventory) -> frozenset[str]:
    """Return the UUIDs of devices, and of the MIG devices on them."""
    uuids = {device.uuid for device in named}
    parts = {device.uuid for device in inventory.devices if device.parent in uuids}
    return frozenset(uuid for uuid in uuids | parts if uuid is not None)


def _devices(found: Leftovers, named: Sequence[Device], inventory: Inventory) -> tuple[Device, ...]:
    """Return the devices that are named, or that what may be ended is on."""
    uuids = {device.uuid for device in named}
    for process in found.may_end:
        held = () if process.lease is None else process.lease.record.uuids
        uuids |= {*held}
        if not held:
            uuids |= {gpu.uuid for gpu in inventory.gpus if gpu.index in process.indices}
    return tuple(device for device in inventory.devices if device.uuid in uuids)


def _now(devices: Sequence[Device], inventory: Inventory) -> tuple[Device, ...]:
    uuids = {device.uuid for device in devices}
    return tuple(device for device in inventory.devices if device.uuid in uuids)


def _settled(
    environ: Mapping[str, str], devices: Sequence[Device], ended: Sequence[ProcessFacts]
) -> Overview:
    """Return the overview once the driver has tidied up after what has ended, or given up on."""
    leases = {process.lease.record.id for process in ended if process.lease is not None}
    deadline = time.monotonic() + (_TIDYING_SECONDS if ended else 0.0)
    while True:
        overview = read_overview(environ, sensors=False)
        found = [standing(device, overview) for device in _now(devices, overview.inventory)]
        if not any(_may_become_free(one, leases) for one in found):
            return overview
        if time.monotonic() > deadline:
            return overview
        time.sleep(_EVERY_SECONDS)


def _may_become_free(found: Standing, ended: Collection[str]) -> bool:
    """Tell whether a device may be freed by what has ended, and is not yet."""
    if found.leases:
        return any(lease.record.id in ended for lease in found.leases)
    return found.words != FREE and found.device.problem is None


class _Gatherer:
    """Gathers what is known about the processes that keep devices, at one moment."""

    def __init__(self, environ: Mapping[str, str], overview: Overview, device_folder: str) -> None:
        self._overview = overview
        self._device_folder = device_folder
        self._simulated = overview.inventory.source == "simulated"
        self._place = find_place(environ, simulated=is_simulated(environ))
        self._user = processes.user_name(os.geteuid())
        # The first process of a container ends everything with it.
        self._asking = processes.ancestors_of(os.getpid()) | {1}
        self._in_use = {
            lease.record.id: lease
            for lease in overview.holdings.leases
            if lease.state != "draining"
        }

    def facts(self) -> Iterator[ProcessFacts]:
        """Yield facts from every source; several may be about one process."""
        known = tuple(
            fact
            for source in (self._of_leases, self._of_files, self._of_driver)
            for fact in source()
        )
        yield from known
        with contextlib.suppress(OSError):  # no lock file: nobody holds a lock
            lock_file = self._place.lock_path.stat(follow_symlinks=False)
            for fact in known:
                yield from self._in_use_by(fact, lock_file)

    def is_on(self, process: ProcessFacts, uuids: frozenset[str], lease_ids: set[str]) -> bool:
        """Return whether a process keeps one of these devices or leases."""
        if process.lease is not None:
            record = process.lease.record
            if record.id in lease_ids or uuids & {*record.uuids}:
                return True
        # What a process uses may be more than it has leased.
        found = map(self._overview.inventory.find, uuids)
        return any(
            device is not None
            and device.index in process.indices
            and (device.kind == "gpu" or process.pid in {one.pid for one in device.processes})
            for device in found
        )

    def _of_leases(self) -> Iterator[ProcessFacts]:
        for lease in self._overview.holdings.leases:
            in_use = lease.state != "draining"
            for pid in lease.pids:
                info = processes.look(pid)
                if info is not None and (not in_use or _is_believed(lease, info)):
                    yield self._fact(info, lease, "holder" if in_use else "leftover")
            keeper = lease.record.owner.keeper
            if in_use and keeper is not None and processes.is_alive(keeper):
                info = processes.look(keeper.pid)
                if info is not None and _is_believed(lease, info):
                    yield self._fact(info, lease, "server")
            if not lease.pids:
                yield ProcessFacts(
                    None,
                    lease.user,
                    role="holder" if in_use else "leftover",
                    sight="hidden",
                    own=lease.user == self._user,
                    indices=lease.record.indices,
                    lease=lease,
                )

    def _of_files(self) -> Iterator[ProcessFacts]:
        """Yield the workers without a kernel that have a device open."""
        gpus = self._overview.inventory.gpus
        minors = {gpu.minor: gpu.index for gpu in gpus if gpu.minor is not None}
        for user in device_files.users_of(minors, folder=self._device_folder, ours=os.getpid()):
            info = processes.look(user.pid) if user.orphan else None
            if info is not None:
                fact = self._fact(info, None, "leftover")
                yield dataclasses.replace(fact, indices=user.indices)

    def _of_driver(self) -> Iterator[ProcessFacts]:
        """Yield the compute processes that the driver library names."""
        foreign = surroundings.has_foreign_pids() and not self._simulated
        for device in self._overview.inventory.devices:
            for process in device.processes:
                info = processes.named_by_driver(
                    process.pid, device.minor, simulated=self._simulated
                )
                if info is not None:
                    fact = self._fact(info, None, "program")
                else:
                    sight: Sight = "outside" if foreign else "gone"
                    pid = None if foreign else process.pid
                    fact = ProcessFacts(pid, None, role="program", sight=sight)
                yield dataclasses.replace(
                    fact, indices=(device.index,), memory_bytes=process.memory_bytes
                )

    def _in_use_by(self, fact: ProcessFacts, lock_file: os.stat_result) -> Iterator[ProcessFacts]:
        """Yield that a process belongs to a lease in use, if it does: whatever else it is."""
        info = None if fact.pid is None or fact.sight != "alive" else processes.look(fact.pid)
        if info is None or fact.role not in ("leftover", "program"):
            return
        family = {*processes.ancestors_of(info.pid), info.session}
        kept = leases_kept_by(info.pid, lock_file)
        for lease in self._in_use.values():
            if lease.record.id in kept or (_is_believed(lease, info) and family & {*lease.pids}):
                yield self._fact(info, lease, "holder")

    def _fact(self, info: processes.ProcessInfo, lease: Lease | None, role: Role) -> ProcessFacts:
        ended = info.state in "ZX"
        return ProcessFacts(
            info.pid,
            info.user,
            info.command,
            role=role,
            sight="zombie" if ended else "alive",
            own=info.uid == os.geteuid(),
            asking=info.pid in self._asking,
            start=info.start,
            since=_moment(info.start),
            indices=() if lease is None else lease.record.indices,
            lease=lease,
            parent=_parent_words(info) if ended else None,
        )


def _is_believed(lease: Lease, info: processes.ProcessInfo) -> bool:
    """Return whether a lease's record may call a process its own: its user's, and root's any."""
    return lease.user in (info.user, "root")


def _parent_words(info: processes.ProcessInfo) -> str:
    parent = processes.look(info.parent)
    return "its parent" if parent is None else f"its parent {parent.pid} ({parent.command})"


def _moment(start: int) -> str:
    """Return when a process was started, of clock ticks since boot."""
    ago = time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")
    then = datetime.fromtimestamp(time.time() - ago, timezone.utc)
    return then.isoformat(timespec="seconds")
