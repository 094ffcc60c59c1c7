"""Reads what a lock file and the records beside it say about leases and waiters.

The lock is the truth and the record a hint: what a record says is compared with what is locked and
with the processes that live.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Iterator

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.records import STALLED_SECONDS, FoundRecord, RecordDirectory
from jupyter_gpu.core.layout import (
    DEVICE_UNITS,
    LEASE_IDS,
    QUEUE,
    Range,
    device_range,
    lease_byte,
    lease_id_at,
    total_units,
)
from jupyter_gpu.core.leases import Lease, Owner, ProcessRef, Record, Waiter
from jupyter_gpu.core.rivals import NOT_HELD

_NAMED = 3  # of several processes so many are named


class LeaseReader:
    """Describes leases and waiters at one moment.

    One moment, one answer: a process and a user are asked for once, however many leases.

    Parameters
    ----------
    fd
        A descriptor of the lock file that has locked nothing that is asked about.
    records
        The records beside it.
    device_folder
        Where the GPUs' device files stand.
    """

    def __init__(self, fd: int, records: RecordDirectory, *, device_folder: str = "/dev") -> None:
        self._fd, self._records, self._device_folder = fd, records, device_folder
        self._everybody = functools.cache(_living)
        self._is_alive = functools.cache(processes.is_alive)
        self._user_of = functools.cache(processes.user_name)

    def _locked(self, where: Range) -> bool:
        return locks.first_lock(self._fd, where) is not None

    def _holds(self, parent: str | None, uuid: str, units: int) -> bool:
        """Return whether so much of a device is locked, by whomever."""
        where = device_range(parent, uuid)
        if units == DEVICE_UNITS:
            return self._locked(where)
        return total_units(locks.locked_ranges(self._fd, where)) >= units

    def waiter(self, where: Range) -> Waiter | None:
        """Return who waits with the ticket that stands here; None for a lock without a record."""
        # Only a single unit is a ticket or a lease id: a longer lock is somebody's nonsense.
        if where.length != 1:
            return None
        found = self._records.read_waiter(where.start - QUEUE.start)
        # Who waits keeps the byte of its lease too.
        if found is None or not self._locked(lease_byte(found.record.id)):
            return None
        owner, user = found.record.owner, self._user_of(found.uid)
        known = _all(owner)
        if known and all(self._is_alive(process) is False for process in known):
            # Its ticket is locked by somebody, who is not the one the record was written by.
            return Waiter(found.record, None, stalled=True)
        stalled = time.time() - found.touched > STALLED_SECONDS
        return Waiter(found.record, user, stalled)

    def lease(self, where: Range) -> Lease | None:
        """Return the lease whose id stands here; None for a lock that no record explains."""
        found = self._records.read(lease_id_at(where.start)) if where.length == 1 else None
        if found is None or not found.record.uuids:
            return None
        record, user, is_alive = found.record, self._user_of(found.uid), self._is_alive
        parent = record.ancestors[-1] if record.ancestors else None
        if not all(self._holds(parent, uuid, record.units) for uuid in record.uuids):
            return Lease(record, user, "active", (), NOT_HELD)
        owner = record.owner
        if any(is_alive(worker) for worker in owner.workers):
            return self._draining(found, user)
        known = _all(owner)
        alive = tuple((process, is_alive(process)) for process in known)
        if not alive or any(lives for _, lives in alive):
            pids = tuple(p.pid for p, lives in alive if lives and p is not owner.keeper)
            watched = any(lives is not False for p, lives in alive if p is owner.keeper)
            return Lease(record if watched else _unwatched(record), user, "active", pids)
        if any(lives is None for _, lives in alive):
            return self._elsewhere(found, user)
        return self._draining(found, user)

    def _elsewhere(self, found: FoundRecord, user: str) -> Lease:
        """Describe a lease whose processes are of another pid namespace, a container's say."""
        owners = {info.uid for info in self._keepers(found.record.id)}
        if owners and found.uid not in owners:
            return self._draining(found, user)
        note = None if owners else "its processes are in another container and cannot be seen here"
        return Lease(found.record, user, "active", (), note)

    def _keepers(self, lease_id: str) -> tuple[processes.ProcessInfo, ...]:
        """Return the processes that can be seen to hold a lease's lock."""
        pids = processes.holders_of(os.fstat(self._fd), lease_byte(lease_id))
        infos = (processes.look(pid) for pid in pids)
        return tuple(info for info in infos if info is not None)

    def _draining(self, found: FoundRecord, user: str) -> Lease:
        """Describe a lease whose own processes are gone, and what keeps it alive."""
        record = found.record
        kept = self._workers(found) or self._keepers(record.id)
        infos = (*kept, *self._spawned(found, kept))
        pids = tuple(info.pid for info in infos if _may_name(info))
        if any(info.uid == found.uid for info in infos):
            note = f"kept by {_named(infos)}{_zombies(record.owner)}"
            return Lease(record, user, "draining", pids, note)
        # Whoever locks what was a lease of somebody who is gone does not become that somebody.
        if infos:
            holder = ", ".join(sorted({info.user for info in infos}))
            note = f"recorded for {user}, but kept by {_named(infos)} of {holder}"
            return Lease(record, holder, "draining", pids, note)
        note = f"recorded for {user}, but no process of {user} can be seen to keep it"
        return Lease(record, None, "draining", (), note)

    def _workers(self, found: FoundRecord) -> tuple[processes.ProcessInfo, ...]:
        """Return the workers that a record names; it can name its own user's only."""
        living = (one.pid for one in found.record.owner.workers if self._is_alive(one))
        infos = (processes.look(pid) for pid in living)
        return tuple(info for info in infos if info is not None and info.uid == found.uid)

    def _spawned(
        self, found: FoundRecord, kept: tuple[processes.ProcessInfo, ...]
    ) -> tuple[processes.ProcessInfo, ...]:
        """Return what a dead kernel has started that has a GPU open without holding the lock.

        Spawned workers inherit no descriptor. They stay in the kernel's session, or descend from
        who does. Where they may not be looked into they count if nothing else explains the lock.
        """
        from jupyter_gpu.adapters.device_files import has_gpu_open  # noqa: PLC0415 - few drain

        everybody = self._everybody()
        sessions = {
            process.pid: process.start
            for process in found.record.owner.processes
            if process.start is not None and _has_left_its_session(process)
        }
        members = [
            info
            for info in everybody
            if info.uid == found.uid
            and (began := sessions.get(info.session)) is not None
            and info.start >= began
        ]
        held = {info.pid for info in kept}
        family = {*held, *(info.pid for info in members)}
        for info in sorted(everybody, key=lambda one: one.start):  # parents first
            if info.parent in family and info.uid == found.uid:
                family.add(info.pid)
        opened = {pid: has_gpu_open(pid, folder=self._device_folder) for pid in family - held}
        known = tuple(info for info in everybody if opened.get(info.pid))
        if kept or known:
            return known
        return tuple(info for info in members if opened[info.pid] is None)


def leases_kept_by(pid: int, lock_file: os.stat_result) -> frozenset[str]:
    """Return the ids of the leases that a process keeps alive, as far as one may look."""
    return frozenset(
        lease_id_at(where.start)
        for where in _locks_of(pid, lock_file)
        if where.length == 1 and 0 <= where.start - LEASE_IDS.start < LEASE_IDS.length
    )


def _locks_of(pid: int, lock_file: os.stat_result) -> Iterator[Range]:
    """Yield what the descriptors of a process have locked of a file."""
    folder = f"/proc/{pid}"
    try:
        descriptors = os.listdir(f"{folder}/fd")  # noqa: PTH208 - a hot path on plain strings
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            status = os.stat(f"{folder}/fd/{descriptor}")  # noqa: PTH116
            if (status.st_dev, status.st_ino) != (lock_file.st_dev, lock_file.st_ino):
                continue
            with open(f"{folder}/fdinfo/{descriptor}", encoding="ascii") as file:  # noqa: PTH123
                # "lock:  1: OFDLCK ADVISORY  WRITE -1 fe:00:2146347 START END", END inclusive
                rows = [line.split() for line in file if line.startswith("lock:")]
            for row in rows:
                if row[-1] != "EOF":
                    yield Range(int(row[-2]), int(row[-1]) - int(row[-2]) + 1)


def _all(owner: Owner) -> tuple[ProcessRef, ...]:
    return (*owner.processes, *(() if owner.keeper is None else (owner.keeper,)))


def _living() -> tuple[processes.ProcessInfo, ...]:
    infos = (processes.look(pid) for pid in processes.all_pids())
    return tuple(info for info in infos if info is not None and info.state not in "ZX")


def _has_left_its_session(process: ProcessRef) -> bool:
    """Return whether a process is gone, and its number is not that of a later session."""
    if process.namespace != processes.pid_namespace():
        return False
    info = processes.look(process.pid)
    return info is None or (info.state in "ZX" and info.start == process.start)


def _may_name(info: processes.ProcessInfo) -> bool:
    """Return whether a process is this user's to look into; root may look into everybody's."""
    return os.geteuid() in (0, info.uid)


def _named(infos: Iterable[processes.ProcessInfo]) -> str:
    """Return ``"process 12 (python)"``, of another user's ``"a process of alice"``."""
    found = tuple(infos)
    open_to_us = [info for info in found if _may_name(info)]
    text = ", ".join(f"process {info.pid} ({info.command})" for info in open_to_us[:_NAMED])
    if len(open_to_us) > _NAMED:
        text += f" and {len(open_to_us) - _NAMED} more"
    closed = [info.user for info in found if not _may_name(info)]
    of_others = [
        f"a process of {user}" if closed.count(user) == 1 else f"processes of {user}"
        for user in dict.fromkeys(closed)
    ]
    return " and ".join([*([text] if text else []), *of_others])


def _zombies(owner: Owner) -> str:
    """Return which of a lease's own processes have ended and were never reaped, or nothing."""
    words = ""
    for process in owner.processes:
        info = processes.look(process.pid) if _has_left_its_session(process) else None
        if info is not None and info.state in "ZX" and _may_name(info):
            parent = processes.look(info.parent)
            whose = "its parent"
            if parent is not None and _may_name(parent):
                whose = f"process {parent.pid} ({parent.command})"
            words += f"; process {info.pid} is a zombie, which {whose} has to reap"
    return words


def _unwatched(record: Record) -> Record:
    # When the server is gone nobody tells any more whether the kernel is idle.
    return dataclasses.replace(record, owner=dataclasses.replace(record.owner, idle_since=None))
