"""Examines the machine: its driver, what is visible, the lease directory, and the leases in it."""

from __future__ import annotations

import contextlib
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
    safety,
)
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    LEASE_IDS,
    QUEUE,
    WHOLE_FILE,
    Range,
    device_range,
    lease_id_at,
)
from jupyter_gpu.core.notes import ON_PURPOSE
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.standing import holder_words
from jupyter_gpu.core.view import listed, machine_words
from jupyter_gpu.overview import NOT_EXCLUSIVE, read_overview

SETUP = "sudo jupyter gpu setup"
_AS_ROOT = "sudo jupyter gpu doctor  names the process"


def examine(environ: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the checks of the machine that an environment means; nothing is changed by them."""
    overview = read_overview(environ, sensors=False)
    place = find_place(environ, simulated=is_simulated(environ))
    return (
        *_driver(overview),
        _visible(overview),
        *_directory(place),
        *_leases(overview, place),
    )


def _driver(overview: Overview) -> Iterator[Check]:
    inventory = overview.inventory
    if inventory.problem is None:
        words = f"{machine_words(inventory)}, {in_words(len(inventory.gpus))}"
        yield Check("driver", "ok", words)
    else:
        found, fix = _halves(inventory.problem)
        # A machine without a driver is in order: its kernels run without a GPU.
        bad = inventory.source == "nvml" or not fix
        yield Check("driver", "fail" if bad else "warn", found, fix or "mend the description")
    for device in inventory.devices:
        if device.problem is not None and not device.mig_mode:
            found, fix = _halves(device.problem)
            yield Check(
                f"GPU {device.index}", "warn", found, fix or f"nvidia-smi -i {device.index}"
            )


def _halves(problem: str) -> tuple[str, str]:
    """Part a driver's sentence into what is so and what to do about it."""
    found, _, fix = problem.partition("; ")
    return found.removesuffix("."), fix.removesuffix(".")


def _visible(overview: Overview) -> Check:
    visible = overview.visible
    name = "CUDA_VISIBLE_DEVICES"
    notes = [note for note in visible.notes if not note.startswith(ON_PURPOSE)]
    if notes:
        return Check(name, "warn", " ".join(notes), f"set it anew, or  unset {name}")
    if visible.value is None:
        return Check(name, "ok", "not set: every GPU is visible")
    shown = listed(device.index for device in visible.devices)
    return Check(name, "ok", f'"{visible.value}": {f"physical {shown}" if shown else "no GPU"}')


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
    for lease in holdings.leases:
        if lease.state != "draining" and lease.note is None:
            continue
        where = f"GPU {listed(lease.record.indices)}, {holder_words(lease)}"
        found = f"{where}: {lease.note or lease.state}"
        fix = f"kill {' '.join(map(str, lease.pids))}" if lease.pids else _AS_ROOT
        yield Check(f"lease {lease.record.id}", "warn", found, fix)
    with _opened(place.lock_path) as fd:
        if fd is None:
            return
        for device in overview.inventory.devices:
            if device.uuid is not None and device.uuid in holdings.unclaimed:
                yield _stray(f"GPU {device.index}", fd, _range_of(device))
        recorded = {lease.record.id for lease in holdings.leases}
        recorded |= {waiter.record.id for waiter in holdings.waiters}
        for place_of_id in locks.locked_ranges(fd, LEASE_IDS):
            if place_of_id.length > 1 or lease_id_at(place_of_id.start) not in recorded:
                yield _stray("a lease id", fd, place_of_id)
        if not holdings.waiters and locks.first_lock(fd, QUEUE) is not None:
            yield _stray("the queue", fd, QUEUE)


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
