"""The checks of this kernel, its lease, and of processes that keep what nobody uses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from jupyter_gpu.core.card import UNEXPLAINED_MEMORY_BYTES
from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.facts import DeviceUser, Facts
from jupyter_gpu.core.history import History, cause_words, cell_words
from jupyter_gpu.core.holds import device_name
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.late import lease_value
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.machine_view import holding_words
from jupyter_gpu.core.overview import Overview, SeenProcess
from jupyter_gpu.core.quantities import in_gib
from jupyter_gpu.core.standing import holder_words, standing
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import listed, value_words

_STATE = "CUDA in this kernel"
_LEASE = "lease of this kernel"
_RESTART = "restart the kernel"
_LIMITS = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_SERVER = "nvidia-cuda-mps-server"
_NOBODY: Mapping[int, Collection[int]] = MappingProxyType({})


def kernel_checks(overview: Overview, process: KernelProcess) -> Iterator[Check]:
    """Yield what only a kernel knows about itself: CUDA's state, its fork, and its lease."""
    if process.state == "forked":
        yield _fork(process.history)
    else:
        yield _state(process)
    yield _lease(overview, process)


def _fork(history: History) -> Check:
    name, began = "fork", "this process was forked from a kernel"
    if history.forked_frozen is False:
        return Check(name, "ok", f"{began} that had not initialised CUDA")
    fix = "start workers with  multiprocessing.set_start_method('spawn')"
    if history.forked_frozen:
        found = f"{began} that had initialised CUDA: it can never use CUDA"
        return Check(name, "fail", found, fix)
    found = f"{began}, and can never use CUDA if that had initialised it"
    return Check(name, "warn", found, fix)


def _state(process: KernelProcess) -> Check:
    history = process.history
    if process.state == "simulated":
        return Check(_STATE, "ok", "simulated: no driver is open or frozen here")
    if process.state == "absent":
        return Check(_STATE, "ok", "absent: there is no working driver in this kernel")
    if process.state == "open":
        return Check(_STATE, "ok", "open: nothing has initialised it")
    if history.frozen is None:
        return Check(_STATE, "ok", "frozen; since which cell is not known")
    found = f"frozen by {cause_words(history.frozen)}"
    late = [change for change in history.changes if _is_after(change.cell, history)]
    if late:
        cells = ", ".join(dict.fromkeys(cell_words(change.cell) for change in late))
        found += f"; {VISIBLE} was changed after that, in {cells}"
    if history.frozen.by_import is not None and history.frozen.when == "during":
        fix = f"{_RESTART}, and set {VISIBLE} before that import"
        return Check(_STATE, "warn", f"{found}: an import alone fixed its devices", fix)
    return Check(_STATE, "ok", found)


def _is_after(cell: int | None, history: History) -> bool:
    since = None if history.frozen is None else history.frozen.cell
    return cell is not None and since is not None and cell > since


def _lease(overview: Overview, process: KernelProcess) -> Check:
    lease = overview.lease
    if lease is None:
        return _no_lease(overview, process)
    outside = [row.index for row in overview.shown if row.uuid not in lease.record.uuids]
    own = holding_words(lease.record, overview.inventory)
    if lease.note is not None:
        return Check(_LEASE, "warn", f"{own}: {lease.note}", _RESTART)
    if not outside:
        alone = "for this kernel alone"
        how = "whose rest others may have" if lease.record.share_words else alone
        return Check(_LEASE, "ok", f"{own}, {how}")
    others = ", ".join("unknown" if index is None else str(index) for index in outside)
    verb = "is" if len(outside) == 1 else "are"
    found = f"{own}, but physical {others} {verb} visible too and may be somebody else's"
    value = lease_value(overview) if process.in_force is None else None
    fix = _RESTART if value is None else f"%env {VISIBLE}={value}"
    return Check(_LEASE, "warn", found, fix)


def _no_lease(overview: Overview, process: KernelProcess) -> Check:
    if not overview.leasing.exclusive or overview.leasing.problem is not None:
        return Check(_LEASE, "ok", "none: leases do not work here")
    if process.lease_id is not None:
        found = "it was started with one that is gone: others may get its devices"
        return Check(_LEASE, "fail", found, _RESTART)
    shown = overview.shown
    if not shown:
        return Check(_LEASE, "ok", "none, and no GPU is visible")
    held = [
        f"{row.index} is held by {holder_words(lease)}"
        for row in shown
        for lease in _holders(overview, row.uuid)
    ]
    if not held:
        return Check(_LEASE, "ok", "none: what is visible may be given to others at any time")
    found = f"none, and of what is visible physical {', '.join(held)}"
    return Check(_LEASE, "warn", found, "pick a kernel with GPUs of its own, PyTorch (1 GPU) say")


def _holders(overview: Overview, uuid: str | None) -> tuple[Lease, ...]:
    device = None if uuid is None else overview.inventory.find(uuid)
    return () if device is None else standing(device, overview).leases


def mps_check(facts: Facts, environ: Mapping[str, str]) -> Check | None:
    """Return the check of MPS, or None where nothing speaks of it."""
    named = [name for name in (*_LIMITS, _DIRECTORY) if name in environ]
    mps = facts.mps
    if mps is None or (not named and not mps.daemon):
        return None
    if mps.daemon is False:
        verb = "is" if len(named) == 1 else "are"
        found = f"{' and '.join(named)} {verb} set, but no control daemon runs in {mps.directory}"
        limits = " and nothing is limited" if set(named) & set(_LIMITS) else ""
        fix = f"jupyter gpu mps start, or  unset {' '.join(named)}"
        return Check("MPS", "warn", f"{found}: programs run without MPS{limits}", fix)
    known = "runs" if mps.daemon else "may run, which cannot be seen from here"
    limits = ", ".join(f"{name}={value_words(environ[name])}" for name in named if name in _LIMITS)
    found = f"the control daemon of {mps.directory} {known}"
    return Check("MPS", "ok", f"{found}; {limits}" if limits else found)


def leftover_checks(overview: Overview, facts: Facts) -> Iterator[Check]:
    """Yield memory that no process explains, and workers that have outlived their kernel."""
    named: set[int] = {pid for lease in overview.holdings.leases for pid in lease.pids}
    for device in overview.inventory.devices:
        if device.kind == "gpu" and _holder_is_hidden(device, overview):
            users = [user for user in facts.users if device.index in user.indices]
            named |= {user.pid for user in users}
            yield _held(device, users, facts)
    for user in facts.users:
        if user.orphan and user.pid not in named:
            found = (
                f"{user.words} has GPU {listed(user.indices)} open, "
                "and the program that started it is gone"
            )
            yield Check(f"orphan {user.pid}", "warn", found, f"kill {user.pid}")


def _holder_is_hidden(device: Device, overview: Overview) -> bool:
    """Tell whether memory is in use, and by no process that can be seen, leased or not."""
    used, own, process = device.memory_used_bytes, overview.lease, overview.process
    if used is None or used <= UNEXPLAINED_MEMORY_BYTES or device.display:
        return False
    if device.problem is not None or device.mig_mode:
        return False
    if any(one.pid in overview.known for one in device.processes):
        return False
    given = () if process is None else process.in_force or ()
    if device.uuid in {one.uuid for one in given}:
        return False  # it may be this kernel's own, whose pid is another one outside a container
    # Under a lease the memory is the holder's; under this kernel's, which has not used it yet, not.
    leases = overview.holdings.on(device.uuid)
    return all(own is not None and lease.record.id == own.record.id for lease in leases)


def _held(device: Device, users: list[DeviceUser], facts: Facts) -> Check:
    memory = f"{in_gib(device.memory_used_bytes)} GiB"
    found = f"{memory} of GPU {device.index} are held, and the holder is not visible from here"
    if not users:
        if facts.sees_everybody:
            fix = f"sudo nvidia-smi --gpu-reset -i {device.index}, once nobody uses it"
            return Check("memory", "warn", f"{found}; nobody here has the device open", fix)
        return Check("memory", "warn", found, "sudo jupyter gpu doctor  names who has it open")
    openers = ", ".join(user.words for user in users)
    found += f"; it is open in {openers}"
    orphans = [str(user.pid) for user in users if user.orphan]
    fix = f"kill {' '.join(orphans)}" if orphans else "end the one of them that needs it no more"
    return Check("memory", "warn", found, fix)


def stray_checks(
    overview: Overview, facts: Facts, above: Mapping[int, Collection[int]] = _NOBODY
) -> Iterator[Check]:
    """Yield a warning for each compute process on a device without a lease on it.

    What a lease's holder has started belongs to it; an MPS server and the fellows of a share do
    not count, nor workers that have outlived their kernel, which have a check of their own.

    Parameters
    ----------
    overview
        The machine. Where nothing is leased, nobody is a stray.
    facts
        Who is an orphan.
    above
        For the pid of each process, what it descends from: its parents and its session.
    """
    if not overview.leasing.exclusive:
        return
    asking = () if overview.process is None else (overview.process.pid,)
    told = {user.pid for user in facts.users if user.orphan}
    for device in overview.inventory.devices:
        leases = _around(device, overview)
        if any(map(_is_unseen, leases)):
            continue  # any process here may be that lease's
        for process in device.processes:
            seen = overview.known.get(process.pid)
            if seen is None or process.pid in told or _MPS_SERVER in seen.command:
                continue
            family = {process.pid, *above.get(process.pid, ())}
            if family & {*asking, *(pid for lease in leases for pid in _pids_of(lease))}:
                continue
            if any(lease.state == "draining" and lease.user == seen.user for lease in leases):
                continue  # what a dead kernel has started is told of with its lease
            yield _stray(device, seen, _elsewhere(family, overview))


def zombie_check(overview: Overview, zombie: SeenProcess, parent: SeenProcess | None) -> Check:
    """Return the check of a process that has ended and that its parent has not reaped.

    The driver library may go on naming it for memory that its forked workers keep.
    """
    indices = [
        device.index
        for device in overview.inventory.devices
        if any(process.pid == zombie.pid for process in device.processes)
    ]
    who = "its parent" if parent is None else f"its parent {parent.pid} ({parent.command})"
    found = (
        f"{zombie.pid} of {zombie.user}, which the driver lists on GPU {listed(indices)}, is a "
        f"zombie: it has ended, and {who} has not reaped it"
    )
    return Check(f"zombie {zombie.pid}", "warn", found, f"end {who}, once nobody needs that")


def _around(device: Device, overview: Overview) -> tuple[Lease, ...]:
    """Return the leases on a device, on parts of it, and on the GPU that it is a part of."""
    parts = [part.uuid for part in overview.inventory.devices if part.parent == device.uuid]
    uuids = [device.uuid, device.parent, *parts]
    found = (lease for uuid in uuids if uuid is not None for lease in overview.holdings.on(uuid))
    return tuple(found)


def _is_unseen(lease: Lease) -> bool:
    """Tell whether a lease is in use by processes that cannot be seen, a container's say."""
    return lease.state != "draining" and not lease.pids


def _pids_of(lease: Lease) -> Iterator[int]:
    """Yield the processes of a lease; what they started descends from them, alive or not."""
    yield from lease.pids
    yield from (process.pid for process in lease.record.owner.processes)


def _elsewhere(family: Collection[int], overview: Overview) -> Lease | None:
    """Return the lease, on other devices, that a process belongs to."""
    leases = (lease for lease in overview.holdings.leases if not _is_unseen(lease))
    return next((lease for lease in leases if {*family} & {*_pids_of(lease)}), None)


def _stray(device: Device, seen: SeenProcess, lease: Lease | None) -> Check:
    found = f"{device_name(device)} is used without a lease by {seen.user}: {seen.pid} "
    found += seen.command
    if lease is None:
        fix = "start it with  jupyter gpu run --gpus 1 -- COMMAND  and nobody else gets its GPU"
        return Check(f"stray {seen.pid}", "warn", found, fix)
    own = listed(lease.record.indices) or "none"
    fix = f"let it leave CUDA_VISIBLE_DEVICES as it was: its lease is on GPU {own}"
    return Check(f"stray {seen.pid}", "warn", found, fix)
