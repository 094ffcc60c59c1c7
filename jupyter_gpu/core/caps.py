"""Caps on what this kernel's frameworks take of a GPU's memory, and what each cap covers. Pure.

Sources: torch's allocator reads ``per_process_memory_fraction`` from the environment since 2.10
(its release notes), and only once: 2.11 when it initialises CUDA (measured on an H200), others
perhaps when it is imported, so that only a value set before the import is sure to count.
``PYTORCH_CUDA_ALLOC_CONF`` is looked up first; ``PYTORCH_ALLOC_CONF`` is the name that newer
versions ask for. JAX fails when both of its variables are set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import GPUError, RequestError, UsageError
from jupyter_gpu.core.frameworks import version_pair
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_gib, parse_bytes

# How a cap reaches torch: at once; when torch initialises CUDA; through the environment, at its
# import; not before it is imported (an older version); not at all (it is not installed, or is a
# build without CUDA).
TorchWay = Literal["now", "later", "environment", "after import", "absent", "without CUDA"]
JaxWay = Literal["environment", "too late", "absent"]

OFF = "off"
TORCH_READS_FRACTION_SINCE = (2, 10)
TORCH_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
JAX_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# What a CUDA context takes by itself, some 430 to 560 MB as measured, and a little to work with.
LEAST_BYTES = 600 * 10**6
_KEY = "per_process_memory_fraction"
_PART = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
_ACCEPTED = 'a share such as "50%" or "0.5", an amount such as "20GiB", or "off"'


@dataclass(frozen=True, slots=True)
class Cap:
    """What is asked for: a fraction of each GPU, or a number of bytes on each."""

    fraction: float | None = None
    number_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCap:
    """A cap on one visible device; ``fraction`` is None where there is none, or none is known."""

    ordinal: int
    device: Device
    fraction: float | None

    @property
    def number_bytes(self) -> int | None:
        """The bytes that it allows, None where they are unknown."""
        total = self.device.memory_total_bytes
        return None if total is None or self.fraction is None else int(total * self.fraction)

    def as_json(self) -> dict[str, object]:
        """Return it for a program."""
        return {
            "ordinal": self.ordinal,
            "index": self.device.index,
            "uuid": self.device.uuid,
            "fraction": self.fraction,
            "bytes": self.number_bytes,
        }


def parse_cap(text: str) -> Cap | None:
    """Return the cap that a person writes, None for ``"off"``.

    Raises
    ------
    UsageError
        When it is no cap; a bare number above 1 is neither a share nor an amount.
    """
    text = text.strip()
    if text.lower() == OFF:
        return None
    percent = text.endswith("%")
    try:
        number = float(text[:-1] if percent else text)
    except ValueError:
        try:
            return Cap(number_bytes=parse_bytes("limit", text))
        except RequestError:
            raise UsageError(f"%gpu limit: {text!r} is not {_ACCEPTED}.") from None
    fraction = number / 100 if percent else number
    if not 0 < fraction <= 1:
        raise UsageError(f"%gpu limit: {text!r} is not {_ACCEPTED}.")
    return Cap(fraction)


def visible_devices(overview: Overview, process: KernelProcess) -> tuple[tuple[int, Device], ...]:
    """Return the devices that this kernel sees, with their ordinals.

    Raises
    ------
    GPUError
        When there are none, so that nothing can be capped.
    """
    shown: Sequence[tuple[int, str | None]]
    if process.in_force is not None:
        shown = [(one.ordinal, one.uuid) for one in process.in_force]
    else:
        shown = [(one.ordinal, one.uuid) for one in overview.visible.devices]
    found = [
        (ordinal, overview.inventory.find(uuid)) for ordinal, uuid in shown if uuid is not None
    ]
    devices = tuple((ordinal, device) for ordinal, device in found if device is not None)
    if not devices or process.state in ("absent", "forked"):
        why = "this process was forked" if process.state == "forked" else "no GPU is visible here"
        raise GPUError(f"There is nothing to cap: {why}.")
    return devices


def device_caps(cap: Cap, devices: Sequence[tuple[int, Device]]) -> tuple[DeviceCap, ...]:
    """Return what a cap means on each device.

    Raises
    ------
    GPUError
        When it is more than a device has, or less than a CUDA context takes by itself.
    """
    found = []
    for ordinal, device in devices:
        total = device.memory_total_bytes
        fraction = cap.fraction
        if cap.number_bytes is not None:
            if total is None:
                raise GPUError(
                    f"The memory of cuda:{ordinal} is unknown here: give a share, as in  50%."
                )
            if cap.number_bytes > total:
                raise GPUError(f"cuda:{ordinal} has {in_gib(total)} GiB, which is less than that.")
            # Rounded down: never more than was asked for.
            fraction = math.floor(cap.number_bytes / total * 1e6) / 1e6
        one = DeviceCap(ordinal, device, fraction)
        asked = one.number_bytes if cap.number_bytes is None else cap.number_bytes
        if asked is not None and asked < LEAST_BYTES:
            raise GPUError(
                f"A cap of {asked / 1e6:.0f} MB on cuda:{ordinal} is refused: a CUDA context takes "
                "some 600 MB by itself, which no cap covers. The least is  %gpu limit 600MB"
            )
        found.append(one)
    return tuple(found)


def torch_way(
    *, begun: bool, imported: bool, version: str | None, count: int | None = None
) -> TorchWay:
    """Return how a cap can reach torch, as it stands in this process.

    ``count`` is the number of devices that a loaded torch will repeat: 0 of a build without CUDA.
    """
    if begun:
        return "now"
    if (count == 0 and imported) or "+cpu" in (version or ""):
        return "without CUDA"
    if imported:
        return "later"
    if version is None:
        return "absent"
    return "environment" if reads_fraction(version) else "after import"


def reads_fraction(version: str | None) -> bool:
    """Return whether this torch reads a cap from the environment."""
    pair = version_pair(version)
    return pair is not None and pair >= TORCH_READS_FRACTION_SINCE


def torch_setting(environ: Mapping[str, str], fraction: float | None) -> dict[str, str | None]:
    """Return the change of a variable that caps torch, or takes the cap away for None.

    The person's own settings stay. A value of None means that the variable is to be removed.
    """
    changes: dict[str, str | None] = {}
    for name in TORCH_VARIABLES:
        if name in environ and cap_in(environ[name]) is not None:
            changes[name] = ",".join(_others(environ[name])) or None
    if fraction is not None:
        name = next((name for name in TORCH_VARIABLES if name in environ), TORCH_VARIABLES[-1])
        others = _others(environ.get(name, ""))
        changes[name] = ",".join((*others, f"{_KEY}:{fraction:g}"))
    return {name: value for name, value in changes.items() if environ.get(name) != value}


def cap_in(value: str | None) -> float | None:
    """Return the fraction that a value of torch's variable sets, None where it sets none."""
    for part in _PART.findall(value or ""):
        key, _, number = part.partition(":")
        if key.strip() == _KEY:
            return _fraction(number)
    return None


def torch_cap(environ: Mapping[str, str]) -> float | None:
    """Return the fraction that torch reads from an environment."""
    name = next((name for name in TORCH_VARIABLES if name in environ), None)
    return None if name is None else cap_in(environ[name])


def jax_setting(environ: Mapping[str, str], fraction: float | None) -> dict[str, str | None]:
    """Return the change of a variable that caps JAX, in the one of its two that is in use."""
    name = next((name for name in JAX_VARIABLES if environ.get(name)), JAX_VARIABLES[-1])
    value = None if fraction is None else f"{fraction:g}"
    return {} if environ.get(name) == value else {name: value}


def jax_cap(environ: Mapping[str, str]) -> float | None:
    """Return the fraction that JAX reads from an environment."""
    name = next((name for name in JAX_VARIABLES if environ.get(name)), None)
    return None if name is None else _fraction(environ[name])


def caps_standing(environ: Mapping[str, str], *, jax: bool) -> dict[str, str]:
    """Return the variables that set a cap: torch's, and JAX's where it is still to read them."""
    names = [name for name in TORCH_VARIABLES if cap_in(environ.get(name)) is not None]
    if jax:
        names += [name for name in JAX_VARIABLES if environ.get(name)][:1]
    return {name: environ[name] for name in names}


def _others(value: str) -> tuple[str, ...]:
    parts = (part.strip() for part in _PART.findall(value))
    return tuple(part for part in parts if part and part.partition(":")[0].strip() != _KEY)


def _fraction(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None
