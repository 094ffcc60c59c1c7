"""Examines the machine: its driver, what is visible, the lease directory, and the leases in it.

The same checks serve ``jupyter gpu doctor`` and, with what only a kernel knows, ``%gpu check``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import (
    RECORDS_NAME,
    SHARED_DIRECTORY,
    Place,
    filesystem_type,
    find_place,
    open_directory,
    safety,
)
from jupyter_gpu.adapters.records import RecordDirectory
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.driver_checks import machine_checks
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.framework_checks import framework_checks
from jupyter_gpu.core.layout import (
    LEASE_IDS,
    QUEUE,
    WHOLE_FILE,
    Range,
    device_range,
    lease_id_at,
)
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.overview import Overview, SeenProcess
from jupyter_gpu.core.process_checks import (
    kernel_checks,
    leftover_checks,
    mps_check,
    stray_checks,
    zombie_check,
)
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.site_checks import site_checks
from jupyter_gpu.core.standing import holder_words
from jupyter_gpu.core.variable_checks import variable_checks
from jupyter_gpu.core.view import listed
from jupyter_gpu.facts import gather
from jupyter_gpu.overview import NOT_EXCLUSIVE, read_overview

SETUP = "sudo jupyter gpu setup"
_AS_ROOT = "sudo jupyter gpu doctor  names the process"


def examine(environ: Mapping[str, str], overview: Overview | None = None) -> tuple[Check, ...]:
    """Return the checks of the machine that an environment means; nothing is changed by them.

    Parameters
    ----------
    environ
        Names the machine, the lease directory and what is visible.
    overview
        The machine as it has just been read; one with a kernel's own process adds what only that
        kernel knows. None reads it anew.
    """
    if overview is None:
        overview = read_overview(environ, sensors=False)
    facts = gather(environ, overview)
    place = find_place(environ, simulated=is_simulated(environ))
    # Where GPUs are given out one by one, that some are hidden is as it should be.
    confined = facts.container or "SLURM_JOB_ID" in environ
    mps = mps_check(facts, environ)
    process = overview.process
    # What has ended and was not reaped uses nothing; the driver library goes on naming it.
    zombies = tuple(one for one in overview.seen if _has_ended(one.pid))
    living = dataclasses.replace(
        overview, seen=tuple(one for one in overview.seen if one not in zombies)
    )
    return (
        *machine_checks(overview, facts, confined=confined),
        *variable_checks(overview, facts, environ),
        *(() if process is None else kernel_checks(overview, process)),
        *framework_checks(overview, facts, environ),
        *(() if mps is None else (mps,)),
        *_directory(place),
        *_leases(overview, place),
        *site_checks(overview),
        *leftover_checks(living, facts),
        *stray_checks(living, facts, _above(living)),
        *(zombie_check(living, one, _parent_of(one.pid)) for one in zombies),
    )


def _has_ended(pid: int) -> bool:
    info = processes.look(pid)
    return info is None or info.state in "ZX"


def _parent_of(pid: int) -> SeenProcess | None:
    info = processes.look(pid)
    parent = None if info is None else processes.look(info.parent)
    return None if parent is None else SeenProcess(parent.pid, parent.user, parent.command)


def _above(overview: Overview) -> dict[int, frozenset[int]]:
    """Return what each process on a device descends from: its parents, and their sessions."""
    found = {}
    for pid in overview.known:
        family = processes.ancestors_of(pid)
        infos = (processes.look(one) for one in family)
        found[pid] = family | {info.session for info in infos if info is not None}
    return found


def _directory(place: Place) -> Iterator[Check]:
    name = "lease directory"
    here = str(place.directory)
    if not locks.possible():
        yield Check(name, "warn", NOT_EXCLUSIVE, "lease GPUs on Linux")
        return
    problem = _why_unusable(place)
    if problem is not None:
        fix = (
            "unset JUPYTER_GPU_LEASE_DIR, or name a local directory in it"
            if place.kind == "given"
            else SETUP
        )
        yield Check(name, "fail", problem, fix)
        return
    kind = filesystem_type(place.directory) if place.directory.exists() else None
    here += f" ({kind})" if kind else ", made at the first lease"
    unsafe = safety(place)
    if unsafe is None:
        yield Check(name, "ok", here)
    else:
        fix = SETUP if place.kind != "given" else f"unset JUPYTER_GPU_LEASE_DIR, then  {SETUP}"
        yield Check(name, "warn", f"{here}, is not safe against other users", fix)
    if place.kind == "system" and _is_used(SHARED_DIRECTORY / "lock"):
        found = f"leases live in {SHARED_DIRECTORY} too, which nobody else looks at any more"
        yield Check("second lease directory", "fail", found, "end the programs that hold them")


def _why_unusable(place: Place) -> str | None:
    """Return why no lease could be made there now, or None."""
    if not place.directory.is_absolute():
        return f"JUPYTER_GPU_LEASE_DIR={place.directory} is not an absolute path"
    if not os.path.lexists(place.directory):
        return None
    try:
        with LeaseStore(place, write=True) as store:
            if not store.supported:
                return NOT_EXCLUSIVE
    except StoreError as error:
        return str(error)
    return _why_unwritable(place.directory / RECORDS_NAME)


def _why_unwritable(records: Path) -> str | None:
    if records.is_symlink() or not records.is_dir():
        return f"{records} is not a directory"
    status = os.statvfs(records)
    full = not status.f_bavail or (status.f_files and not status.f_favail)
    obstacles = (
        (status.f_flag & os.ST_RDONLY, f"{records} is on a read-only file system"),
        (full, f"the file system of {records} is full"),
        (
            not os.access(records, os.W_OK | os.X_OK),
            f"{records} may not be written to by this user",
        ),
    )
    return next((sentence for stands, sentence in obstacles if stands), None)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Open a lock file for looking; None where there is none to look into."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield fd if locks.supported(fd) else None
    finally:
        os.close(fd)


def _is_used(lock_path: Path) -> bool:
    with _opened(lock_path) as found:
        return found is not None and locks.first_lock(found, WHOLE_FILE) is not None


def _leases(overview: Overview, place: Place) -> Iterator[Check]:
    if not overview.leasing.exclusive:
        return
    holdings = overview.holdings
    words = f"{in_words(len(holdings.leases), 'lease')}, {len(holdings.waiters)} waiting"
    yield Check("leases", "ok", words)
    own = overview.lease  # its line is the kernel's own
    for lease in holdings.leases:
        if lease is own or (lease.state != "draining" and lease.note is None):
            continue
        where = f"GPU {listed(lease.record.indices)}, {holder_words(lease)}"
        found = f"{where}: {lease.note or lease.state}"
        yield Check(f"lease {lease.record.id}", "warn", found, _mended(lease))
    with _opened(place.lock_path) as fd:
        if fd is None:
            return
        for device in overview.inventory.devices:
            if device.uuid is not None and device.uuid in holdings.unclaimed:
                yield _stray(f"GPU {device.index}", fd, _range_of(device))
        recorded = {lease.record.id for lease in holdings.leases}
        recorded |= {waiter.record.id for waiter in holdings.waiters}
        for place_of_id in locks.locked_ranges(fd, LEASE_IDS):
            lease_id = lease_id_at(place_of_id.start)
            explained = lease_id in recorded or _has_record(place, lease_id)
            if place_of_id.length > 1 or not explained:
                yield _stray("a lease id", fd, place_of_id)
        if not holdings.waiters and locks.first_lock(fd, QUEUE) is not None:
            yield _stray("the queue", fd, QUEUE)


def _mended(lease: Lease) -> str:
    """Return what ends a lease that nobody uses, or one that cannot be as it says."""
    if lease.state == "draining":
        release = f"jupyter gpu release {lease.record.id}"
        return release if lease.pids else f"sudo {release}"
    return f"kill {' '.join(map(str, lease.pids))}" if lease.pids else _AS_ROOT


def _has_record(place: Place, lease_id: str) -> bool:
    """Return whether a lease has a record all the same: one that gave its devices up says so."""
    directory_fd = open_directory(place, create=False)
    if directory_fd is None:
        return False
    try:
        records = RecordDirectory(place, directory_fd)
        found = records.read(lease_id)
        records.close()
    finally:
        os.close(directory_fd)
    return found is not None and not found.record.uuids and found.record.ticket is None


def _range_of(device: Device) -> Range:
    return device_range(None, device.uuid or "")


def _stray(what: str, fd: int, where: Range) -> Check:
    """Return the check for a lock that no record explains, with the processes that have it."""
    pids = processes.holders_of(os.fstat(fd), where)
    found = f"{what} is locked by a program that left no record"
    if not pids:
        return Check("stray lock", "fail", found, _AS_ROOT)
    infos = [info for pid in pids if (info := processes.look(pid)) is not None]
    named = ", ".join(f"{info.pid} of {info.user} ({info.command})" for info in infos)
    return Check("stray lock", "fail", f"{found}: {named}", f"kill {' '.join(map(str, pids))}")
