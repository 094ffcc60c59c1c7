"""The hint on memory that is not enough: who is on the device, with how much. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jupyter_gpu.core.card import UNEXPLAINED_MEMORY_BYTES
from jupyter_gpu.core.devices import Device, Process
from jupyter_gpu.core.failure_case import Case
from jupyter_gpu.core.failures import Failure
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.leases import Lease
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_gib
from jupyter_gpu.core.standing import FREE, holder_name, innermost, standing
from jupyter_gpu.core.view import View, spans

# The device in the messages of torch (2.x and 1.x), TensorFlow, JAX and Paddle.
_DEVICE = re.compile(
    r"(?i)(?:\bGPU |device:GPU:|\bGPU_|device ordinal |\bcuda:)([0-9]{1,4})(?![0-9])"
)
_TRIED = re.compile(r"Tried to allocate ([0-9.]+) ([KMGT]i?B)")
_CAP = re.compile(r"([0-9.]+ [KMG]iB) allowed")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MOST_DEVICES = 4
_SELF = "this kernel"
# JAX takes this part of a device at its first use (its documentation on memory).
_JAX_TAKES = 0.75


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a device's memory in use, and whose it is; ``own`` is this kernel's."""

    number_bytes: int
    words: str
    own: bool = False
    visible: bool = True


def out_of_memory_view(case: Case) -> View | None:
    """Return who is on the device that was full; None where no device can be seen."""
    rows = case.rows
    wanted = _wanted(case.failure, rows)
    found = [(row, _device(row, case.overview)) for row in wanted]
    known = [(row, device) for row, device in found if device is not None]
    if not known:
        return None
    sentences = [_sentence(row, device, case) for row, device in known]
    shares = [
        share for _, device in known for share in shares_of(device, case.overview, case.process)
    ]
    here = any(row.ordinal in case.process.contexts for row, _ in known)
    (first, *more) = sentences
    only = known[0][1] if len(known) == 1 else None
    return View(
        first,
        machine=case.machine,
        lines=(
            *more,
            *_about_the_cap(case.failure),
            *_about_the_size(case.failure, only),
            *_what_to_do(case, shares, here=here),
            *_about_jax(case, shares),
            *case.raised_inside,
        ),
    )


def shares_of(device: Device, overview: Overview, process: KernelProcess) -> tuple[Share, ...]:
    """Return who uses a device's memory, this kernel first, the unexplained rest last."""
    shares = [_share(one, device, overview, process) for one in device.processes]
    shares.sort(key=lambda share: (share.words != _SELF, not share.own, -share.number_bytes))
    explained = sum(share.number_bytes for share in shares)
    unknown = any(one.memory_bytes is None for one in device.processes)
    rest = (device.memory_used_bytes or 0) - explained
    if rest > UNEXPLAINED_MEMORY_BYTES and not unknown:
        shares.append(Share(rest, "no process that can be seen", visible=False))
    return tuple(share for share in shares if share.number_bytes or share.own or unknown)


def _wanted(failure: Failure, rows: tuple[InForce, ...]) -> tuple[InForce, ...]:
    """Return the device that the message names, else all that it can be."""
    found = _DEVICE.search(failure.message)
    if found is not None:
        named_rows = tuple(row for row in rows if row.ordinal == int(found[1]))
        if named_rows:
            return named_rows
    return rows[:_MOST_DEVICES]


def _device(row: InForce, overview: Overview) -> Device | None:
    return None if row.uuid is None else overview.inventory.find(row.uuid)


def _share(one: Process, device: Device, overview: Overview, process: KernelProcess) -> Share:
    number_bytes = one.memory_bytes or 0
    seen = overview.known.get(one.pid)
    if seen is None:
        return Share(number_bytes, "a process that cannot be seen from here", visible=False)
    if one.pid == process.pid:
        return Share(number_bytes, _SELF, own=True)
    lease = _lease_of(one.pid, device, overview)
    if lease is not None and lease == overview.lease:
        return Share(number_bytes, f"this kernel's process {one.pid}", own=True)
    held = "no lease" if lease is None else holder_name(lease)
    return Share(number_bytes, f"{seen.user}'s process {one.pid} ({held})")


def _lease_of(pid: int, device: Device, overview: Overview) -> Lease | None:
    """Return the lease on a device that a process belongs to."""
    leases = innermost(overview.holdings.on(device.uuid))
    return next((lease for lease in leases if pid in lease.pids), None)


def _sentence(row: InForce, device: Device, case: Case) -> str:
    """Return ``"cuda:0 (physical 3) has 140.4 GiB: 61.0 this kernel, … 0.5 free."``."""
    parts = [
        f"{in_gib(share.number_bytes or None)} {share.words}"
        for share in shares_of(device, case.overview, case.process)
    ]
    if device.memory_free_bytes is not None:
        parts.append(f"{in_gib(device.memory_free_bytes)} free")
    name = case.named(row.ordinal)
    total = f"{in_gib(device.memory_total_bytes)} GiB"
    return f"{name} has {total}: {', '.join(parts) or 'nobody on it can be seen'}."


def _about_the_cap(failure: Failure) -> Iterator[str]:
    found = _CAP.search(failure.message)
    if found is not None:
        yield (
            f"A cap lets torch have {found[1]} of it. It counts torch's cache only: not the CUDA "
            "context, other libraries, or other processes."
        )


def _about_the_size(failure: Failure, device: Device | None) -> Iterator[str]:
    """Say where one allocation alone cannot fit, and that the numbers are of now."""
    found = _TRIED.search(failure.message)
    if found is None or device is None or found[2] not in _UNITS:
        return
    try:
        tried = int(float(found[1]) * _UNITS[found[2]])
    except ValueError:
        return
    words = f"{found[1]} {found[2]}"
    total, free = device.memory_total_bytes, device.memory_free_bytes
    if total is not None and tried > total:
        yield f"One allocation of {words} was tried: more than the whole device."
    elif free is not None and tried <= free:
        yield f"An allocation of {words} failed; the numbers above are of now, after the cell."


def _what_to_do(case: Case, shares: list[Share], *, here: bool) -> Iterator[str]:
    """Yield what helps; ``here`` says that this kernel uses a device, whatever the list says."""
    own = sum(share.number_bytes for share in shares if share.own)
    others = sum(share.number_bytes for share in shares if not share.own and share.visible)
    hidden = sum(share.number_bytes for share in shares if not share.visible)
    if hidden > UNEXPLAINED_MEMORY_BYTES and here and not own:
        yield (
            "How much of it is this kernel's cannot be told: the driver does not name the "
            "processes of this container."
        )
    elif hidden > UNEXPLAINED_MEMORY_BYTES:
        yield (
            "What no visible process holds, nothing in this kernel can free: its holder has ended "
            "uncleanly, or is outside this container.  jupyter gpu doctor"
        )
    elif others > UNEXPLAINED_MEMORY_BYTES:
        yield f"Only its owner can free what another process holds.{_elsewhere(case.overview)}"
    elif own and _CAP.search(case.failure.message) is None:
        yield "To free what is not needed any more, and see what holds the rest:  %gpu free"


def _about_jax(case: Case, shares: list[Share]) -> Iterator[str]:
    own = sum(share.number_bytes for share in shares if share.own)
    if own and own > _JAX_TAKES / 2 * _total(case) and _uses_jax(case):
        yield (
            "JAX takes three quarters of a device at its first use, unless "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false is set before."
        )


def _elsewhere(overview: Overview) -> str:
    """Name the GPUs that are free."""
    free = [d.index for d in overview.inventory.gpus if standing(d, overview).words == FREE]
    if not free:
        return ""
    return f" Free on this machine: physical {spans(free)}.  %gpu use 1 --restart"


def _uses_jax(case: Case) -> bool:
    imported = any(one.module == "jax" for one in case.process.history.imports)
    return case.failure.framework == "JAX" or imported


def _total(case: Case) -> int:
    """Return the memory of the smallest device of the kernel."""
    devices = (_device(row, case.overview) for row in case.rows)
    return min((d.memory_total_bytes or 0 for d in devices if d is not None), default=0)
