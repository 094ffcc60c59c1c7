"""The caps that a lease puts on its program: which variables set them, and how hard each is. Pure.

Two ways are there. Where an MPS control daemon runs, the driver itself enforces a limit of memory
and of multiprocessors on every process that goes through it. Elsewhere each framework is asked to
hold itself back: torch's allocator and JAX's read a fraction, TensorFlow reads none.

Sources: NVIDIA's MPS documentation (a limit belongs to each client process and counts what CUDA
takes for itself; faults are shared by the clients on a GPU); measured on an H200: free memory
reads the limit, a quarter of the threads is 32 of 132 multiprocessors, and JAX retries noisily
where its own fraction is above the limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Literal

from jupyter_gpu.core.caps import (
    LEAST_BYTES,
    TORCH_VARIABLES,
    jax_cap,
    jax_setting,
    torch_cap,
    torch_setting,
    torch_way,
)
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.quantities import fraction_words, in_gib
from jupyter_gpu.core.request import MemoryCap

# How hard the cap on memory is: the driver's limit, what torch's allocator keeps to, or none.
Hardness = Literal["mps", "torch", "none"]

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
# The folders of a user's own daemon, below one whose name begins so.
OWN_PREFIX, OWN_PIPES, OWN_LOGS = "jupyter-gpu-mps-", "pipe", "log"

_STEPS = 10**6  # what torch and JAX are told has six digits
_MIB = 2**20
_UNITS = {"": 1, "K": 2**10, "M": _MIB, "G": 2**30}
_LIMIT = re.compile(r"([0-9]+(?:\.[0-9]*)?)([KMG]?)B?")
_WHY_NOT = {
    "absent": "none was found in this program's Python",
    "without CUDA": "torch {} is built without CUDA",
    "after import": (
        "torch {} reads none from the environment, 2.10 and newer do; after  import torch,  "
        "%gpu limit  can set one"
    ),
}
_HARD = "For a hard limit:  jupyter gpu mps start  and then restart this kernel."


@dataclass(frozen=True, slots=True)
class ShareCaps:
    """The variables that set the caps, and what is said of them.

    ``words`` are sentences; ``hardness`` is about memory, and ``memory_bytes`` what the hardest
    cap allows on a device, None where that is not known or there is none.
    """

    environment: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    hardness: Hardness = "none"
    memory_bytes: int | None = None


def why_impossible(share: Fraction | None, memory_cap: MemoryCap, device: Device) -> str | None:
    """Return why a share with this cap can never stand on a device, None where it can.

    The reason is a part of a sentence: ``"1/1000 of GPU 0 is 151 MB, less than the 600 MB that a
    CUDA context takes"``.
    """
    if memory_cap == "none" or (share is None and not isinstance(memory_cap, int)):
        return None
    whole = device.memory_total_bytes
    part = None if whole is None else int(whole * (share or 1))
    if isinstance(memory_cap, int):
        if memory_cap < LEAST_BYTES:
            return f"a memory_cap of {_in_mb(memory_cap)} is less than {_CONTEXT}"
        if part is not None and memory_cap > part:
            asked, most = in_gib(memory_cap), in_gib(part)
            if asked == most:  # a difference that one digit does not show
                asked, most = in_gib(memory_cap, digits=4), in_gib(part, digits=4)
            return f"a memory_cap of {asked} GiB is more than {_part_words(share, device, most)}"
        return None
    if part is not None and part < LEAST_BYTES:
        of = f"{fraction_words(share or Fraction(1))} of {_name(device)}"
        return f"{of} is {_in_mb(part)}, less than {_CONTEXT}"
    return None


def share_caps(
    share: Fraction | None,
    memory_cap: MemoryCap,
    devices: tuple[Device, ...],
    environ: Mapping[str, str],
    mps: MPS | None = None,
    torch: str | None = None,
    *,
    simulated: bool = False,
) -> ShareCaps:
    """Return the caps of a lease.

    Parameters
    ----------
    share
        The part of its one device that is leased; None or 1 for whole devices.
    memory_cap
        ``"auto"`` for the share's part of the memory, ``"none"``, or bytes on each device.
    devices
        What was granted.
    environ
        The environment that the program would have without us. What it caps lower stays.
    mps
        The MPS control daemon that the program would go through, None without.
    torch
        The version of torch in the program's own Python, None where there is none or none is
        known.
    simulated
        Whether the machine is a simulated one, where MPS cannot be started.

    Raises
    ------
    ImpossibleRequest
        When the cap is below what a CUDA context takes, or above the share's part.
    """
    for device in devices:
        reason = why_impossible(share, memory_cap, device)
        if reason is not None:
            raise ImpossibleRequest(f"{reason[0].upper()}{reason[1:]}.")
    part = Fraction(1) if share is None else share
    case = _Case(part, memory_cap, devices, environ, mps, torch, simulated)
    if not devices or (part == 1 and not isinstance(memory_cap, int)):
        return ShareCaps()
    through_mps = mps is not None and mps.daemon is True
    if part < 1 and through_mps and devices[0].kind == "gpu":
        return _through_mps(case)
    return _by_frameworks(case)


def own_log_directory(pipe_directory: str) -> str | None:
    """Return the log directory that belongs to a pipe directory of our own making, else None."""
    path = PurePosixPath(pipe_directory)
    if path.name != OWN_PIPES or not path.parent.name.startswith(OWN_PREFIX):
        return None
    return str(path.parent / OWN_LOGS)


@dataclass(frozen=True, slots=True)
class _Case:
    """What the caps are for, and what follows from it."""

    share: Fraction
    memory_cap: MemoryCap
    devices: tuple[Device, ...]
    environ: Mapping[str, str]
    mps: MPS | None
    torch: str | None
    simulated: bool

    @property
    def cap_bytes(self) -> int | None:
        """The bytes allowed on each device; None without a cap, or where they are unknown."""
        if isinstance(self.memory_cap, int):
            return self.memory_cap
        total = self.devices[0].memory_total_bytes
        return None if total is None or self.memory_cap == "none" else int(total * self.share)

    @property
    def totals(self) -> tuple[int, ...]:
        """The sizes of the devices, as far as they are known."""
        sizes = (device.memory_total_bytes for device in self.devices)
        return tuple(size for size in sizes if size is not None)

    @property
    def fraction(self) -> float | None:
        """The part of each device's memory that frameworks are told; None without a cap."""
        if self.memory_cap == "none":
            return None
        part = self.share
        if isinstance(self.memory_cap, int) and self.totals:
            part = Fraction(self.memory_cap, max(self.totals))
        # Rounded down: shares that fill a device together never ask for more than it has.
        return math.floor(part * _STEPS) / _STEPS if part < 1 else None

    @property
    def where(self) -> str:
        """The devices in words."""
        if len(self.devices) == 1:
            return _name(self.devices[0])
        known = len(self.totals) == len(self.devices)
        return "each GPU" if known else "each GPU whose size is known"

    def allowed_bytes(self, fraction: float | None) -> int | None:
        """Return what a fraction allows on the largest device, None where that is not known."""
        return int(max(self.totals) * fraction) if self.totals and fraction is not None else None

    def amount(self, fraction: float) -> str:
        """Return a fraction of a device in words: ``"35.1 GiB"``."""
        if not self.totals:
            return f"{fraction:.4g} of the memory"
        return f"{in_gib(self.allowed_bytes(fraction))} GiB"


def _through_mps(case: _Case) -> ShareCaps:
    assert case.mps is not None
    directory, total = case.mps.directory, case.devices[0].memory_total_bytes
    environment = {PIPE_DIRECTORY: directory}
    logs = own_log_directory(directory)
    if logs is not None:
        environment[LOG_DIRECTORY] = logs
    percent = max(1.0, math.floor(case.share * 10_000) / 100)
    own_percent = _number(case.environ.get(THREAD_PERCENTAGE))
    if own_percent is None or not 0 < own_percent <= percent:
        environment[THREAD_PERCENTAGE] = f"{percent:g}"
        threads = f"at most {fraction_words(case.share)} of them"
    else:
        threads = f"at most {own_percent:g} in 100, your own setting"
    threads = f"Multiprocessors: {threads}, in each process (MPS)."
    faults = (
        "MPS limits no bandwidth, and a fault in one program on the GPU can end the others there "
        "that use the same daemon."
    )
    if case.cap_bytes is None:
        if case.memory_cap == "none":
            return ShareCaps(environment, (_uncapped(case), threads, faults))
        # The size of the device is unknown: the driver cannot be told an amount.
        held_back = _by_frameworks(case, advise=False)
        both = {**environment, **held_back.environment}
        return ShareCaps(both, (*held_back.words, threads, faults), held_back.hardness)
    limit, own = case.cap_bytes // _MIB * _MIB, _own_limit(case.environ)
    lower = own is not None and own <= limit
    if own is not None and lower:
        limit = own
    else:
        environment[MEMORY_LIMIT] = f"0={limit // _MIB}M"
    fraction = case.fraction if total is None else _below(limit) / total
    environment |= _jax(case, fraction)
    yours = ", your own setting," if lower else ""
    memory = (
        f"Memory: at most {in_gib(limit)} GiB{yours} in each process, whatever library takes it, "
        "the CUDA context included (MPS). What is more fails as out of memory. A child process "
        "may take as much again."
    )
    return ShareCaps(environment, (memory, threads, faults), "mps", limit)


def _by_frameworks(case: _Case, *, advise: bool = True) -> ShareCaps:
    if case.memory_cap == "none":
        return ShareCaps({}, (_uncapped(case), *(_turns(case) if advise else ())))
    fraction = case.fraction
    if fraction is None:
        why = "is the whole of it" if case.totals else "cannot be compared: its size is unknown"
        return ShareCaps({}, (f"Memory: no cap on {case.where}: memory_cap {why}.",))
    environment, capped, words = _torch(case, fraction)
    environment |= _jax(case, fraction)
    own_jax = jax_cap({**case.environ, **environment})
    jax = case.amount(fraction if own_jax is None else own_jax)
    others = f"JAX takes at most {jax} in each process. TensorFlow grows as it needs, uncapped."
    more = _turns(case) if advise else ()
    hardness: Hardness = "none" if capped is None else "torch"
    allowed = case.allowed_bytes(capped)
    return ShareCaps(environment, (*words, others, *more), hardness, allowed)


def _torch(case: _Case, fraction: float) -> tuple[dict[str, str], float | None, tuple[str, ...]]:
    """Return torch's setting, the fraction in force, and what is said of it."""
    way = torch_way(begun=False, imported=False, version=case.torch)
    if way != "environment":
        return {}, None, (f"Memory: torch has no cap: {_WHY_NOT[way].format(case.torch)}.",)
    own, yours = torch_cap(case.environ), ""
    environment: dict[str, str] = {}
    if own is not None and own <= fraction:
        fraction, yours = own, ", your own setting"
    else:
        # A variable that held nothing but a cap cannot be taken away here: it gets the same one.
        mine = torch_setting({}, fraction)[TORCH_VARIABLES[-1]] or ""
        changes = torch_setting(case.environ, fraction)
        environment = {name: value or mine for name, value in changes.items()}
    words = (
        f"Memory: torch's cache at most {case.amount(fraction)} of {case.where} (torch "
        f"{case.torch}){yours}. This does not cover the CUDA context, other libraries or child "
        "processes, and isolates nothing."
    )
    return environment, fraction, (words,)


def _jax(case: _Case, fraction: float | None) -> dict[str, str]:
    own = jax_cap(case.environ)
    if fraction is None or (own is not None and own <= fraction):
        return {}
    # Six digits, rounded down: what is written is never above what is meant.
    changes = jax_setting(case.environ, math.floor(fraction * _STEPS) / _STEPS)
    return {name: value for name, value in changes.items() if value is not None}


def _turns(case: _Case) -> tuple[str, ...]:
    """Return what is not limited without MPS, and what limits it."""
    if case.share == 1:
        return ()
    turns = "Multiprocessors: all of them, in turns with the others on the GPU."
    if case.devices[0].kind == "mig":
        return (turns,)
    harder = () if case.simulated else (_HARD,)
    if case.mps is not None and case.mps.daemon is None:
        hidden = f"Whether the MPS control daemon of {case.mps.directory} runs cannot be seen here"
        return (turns, f"{hidden}, so nothing relies on it.", *harder)
    if case.memory_cap == "none":
        return (turns,)
    return (turns, *harder)


def _uncapped(case: _Case) -> str:
    return (
        f"Memory: no cap, because memory_cap is none: this program can fill all of {case.where}, "
        "the others' part too."
    )


def _below(limit: int) -> int:
    """Return what JAX may take under a limit, so that it never runs into it.

    The context counts toward the limit, so there is less room than that.
    """
    return max(limit - LEAST_BYTES, limit // 2)


def _own_limit(environ: Mapping[str, str]) -> int | None:
    """Return the bytes that the person's own limit allows on visible ordinal 0, None without."""
    for entry in environ.get(MEMORY_LIMIT, "").split(","):
        ordinal, _, amount = entry.partition("=")
        found = _LIMIT.fullmatch(amount.strip().upper())
        if ordinal.strip() == "0" and found is not None:
            return int(float(found[1]) * _UNITS[found[2]])
    return None


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


_CONTEXT = f"the {LEAST_BYTES // 10**6} MB that a CUDA context takes"


def _part_words(share: Fraction | None, device: Device, most: str) -> str:
    if share is None or share == 1:
        return f"the {most} GiB that {_name(device)} has"
    return f"the {most} GiB that are {fraction_words(share)} of {_name(device)}"


def _name(device: Device) -> str:
    if device.kind == "gpu":
        return f"GPU {device.index}"
    profile = f"{device.profile} " if device.profile else ""
    return f"MIG device {profile}of GPU {device.index}"


def _in_mb(number_bytes: int) -> str:
    return f"{number_bytes / 1e6:.0f} MB"
