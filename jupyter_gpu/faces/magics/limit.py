"""``%gpu limit 50%``: caps what torch and JAX take of this kernel's GPUs, or shows the caps."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from jupyter_gpu.adapters import framework_caps
from jupyter_gpu.adapters.framework_memory import torch_memory
from jupyter_gpu.core.caps import (
    Cap,
    DeviceCap,
    JaxWay,
    TorchWay,
    caps_standing,
    device_caps,
    jax_cap,
    jax_setting,
    parse_cap,
    reads_fraction,
    torch_cap,
    torch_setting,
    torch_way,
    visible_devices,
)
from jupyter_gpu.core.caps_view import Limits, limits_answer, limits_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.core.devices import Device
    from jupyter_gpu.faces.magics.context import Context

    Devices = tuple[tuple[int, Device], ...]


class Limit(Subcommand):
    """Sets, shows or takes away the caps of this kernel."""

    name = "limit"
    about = (
        "Cap what torch's cache, and JAX, take of each visible GPU; without a cap, show those "
        "in force."
    )
    example = "  %gpu limit 50%\n  %gpu limit 20GiB\n  %gpu limit off"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the cap."""
        parser.add_argument(
            "cap", nargs="*", metavar="CAP", help='"50%%", "0.5", "20GiB", or "off"'
        )

    def answer(self, context: Context, options: Options) -> Answer:
        """Set the cap where it can be set now, or have it set as soon as it can."""
        asked = parse_cap(" ".join(options.cap)) if options.cap else None
        overview = context.overview()
        assert overview.process is not None, "a kernel asks"
        devices = visible_devices(overview, overview.process)
        state = framework_caps.torch_state(frozen=overview.process.state == "frozen")
        way = torch_way(
            begun=state.begun,
            imported=state.imported,
            version=state.version,
            count=overview.process.torch_count,
        )
        if options.cap:
            caps = _wanted(asked, devices)
            limits = _set(caps, way, state.version, capped=asked is not None)
        else:
            limits = _shown(devices, way, state.version)
        return Answer(limits_view(limits), limits_answer(limits))


SUBCOMMAND = Limit()


def _wanted(cap: Cap | None, devices: Devices) -> tuple[DeviceCap, ...]:
    if cap is None:
        return tuple(DeviceCap(ordinal, device, None) for ordinal, device in devices)
    return device_caps(cap, devices)


def _set(
    caps: tuple[DeviceCap, ...], way: TorchWay, version: str | None, *, capped: bool
) -> Limits:
    fractions = {cap.ordinal: cap.fraction for cap in caps if cap.fraction is not None}
    # One value serves all devices there: the smallest never allows more than was asked for.
    common = min(fractions.values()) if fractions else None
    code = None
    if way == "now":
        framework_caps.set_caps({cap.ordinal: cap.fraction or 1.0 for cap in caps})
    elif way == "later" and not framework_caps.set_caps_later(fractions) and capped:
        way = "after import"
    if way == "after import" and common is not None:
        code = f"torch.cuda.set_per_process_memory_fraction({common:g})"
    changes = torch_setting(os.environ, common if way == "environment" else None)
    jax = _jax_way()
    if jax == "environment":
        changes |= jax_setting(os.environ, common)
    _apply(changes, os.environ)
    held = torch_memory(tuple(fractions)) if way == "now" else {}
    return Limits(
        caps if way in ("now", "later", "environment") else (),
        way,
        jax,
        jax_cap(os.environ),
        environment=changes | caps_standing(os.environ, jax=jax == "environment"),
        version=version,
        code=code,
        held_bytes={ordinal: memory.reserved_bytes for ordinal, memory in held.items()},
    )


def _shown(devices: Devices, way: TorchWay, version: str | None) -> Limits:
    found: Mapping[int, float] = {}
    if way == "now":
        found = framework_caps.caps_now([ordinal for ordinal, _ in devices])
    elif way == "later":
        found = framework_caps.caps_waiting()
    # What is told directly counts; without that, torch reads the variable as it begins.
    read = way == "environment" or (way == "later" and not found and reads_fraction(version))
    fraction = torch_cap(os.environ) if read else None
    caps = tuple(
        DeviceCap(ordinal, device, found.get(ordinal, fraction)) for ordinal, device in devices
    )
    jax = _jax_way()
    return Limits(
        () if way == "without CUDA" else caps,
        way,
        jax,
        jax_cap(os.environ),
        changed=False,
        environment=caps_standing(os.environ, jax=jax == "environment"),
        version=version,
    )


def _jax_way() -> JaxWay:
    begun = framework_caps.jax_has_begun()
    if begun is None:
        return "absent"
    return "too late" if begun else "environment"


def _apply(changes: Mapping[str, str | None], environ: MutableMapping[str, str]) -> None:
    for name, value in changes.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
