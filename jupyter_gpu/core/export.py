"""The devices of a kernel as a line for a shell, so that a script sees the same ones. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.core.answers import SCHEMA
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.environment import visible_value
from jupyter_gpu.core.kernel_process import KernelProcess
from jupyter_gpu.core.late import meant_otherwise, outside_lease, outside_note
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.variables import CAPS, ORDER, VISIBLE
from jupyter_gpu.core.view import View, listed, value_words

_ALL = "CUDA_VISIBLE_DEVICES is not set here, so a script sees every GPU."
_UNKNOWN = (
    "The driver has given this kernel a device that cannot be named here, so this is what is set, "
    "not what is in force."
)


@dataclass(frozen=True, slots=True)
class Export:
    """The variables, the line that sets them, and what one should know about it."""

    environment: Mapping[str, str]
    line: str
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the answer of ``%gpu export --json``."""
        return {"schema": SCHEMA, "environment": dict(self.environment), "line": self.line}


def exported(overview: Overview, process: KernelProcess, environ: Mapping[str, str]) -> Export:
    """Return what a script needs to see this kernel's devices.

    Parameters
    ----------
    overview
        The machine.
    process
        The kernel that asks: what is in force in it counts, else what is set.
    environ
        Its environment now.
    """
    environment = {name: environ[name] for name in (ORDER, VISIBLE) if name in environ}
    notes = []
    meant = tuple(device.uuid for device in overview.visible.devices)
    if process.in_force is not None and tuple(d.uuid for d in process.in_force) != meant:
        given = _given(process, overview.inventory)
        if given is None:
            notes.append(_UNKNOWN)
        else:
            value = visible_value(given, overview.inventory, "auto")
            environment = {ORDER: "PCI_BUS_ID", VISIBLE: value}
            notes.append(_late(process, given))
    else:
        notes.extend(meant_otherwise(overview, process.set_now))
        outside = outside_lease(overview, overview.shown)
        notes.extend([outside_note(overview, process, outside)] if outside else [])
    if VISIBLE not in environment:
        notes.append(_ALL)
    environment |= _caps(environ)
    notes.append(_lease_note(overview, process))
    return Export(environment, _line(environment), tuple(notes))


def export_view(export: Export) -> View:
    """Return it for a person: the line whole, to be copied."""
    return View("For a script in a shell:", code=(export.line,), lines=export.notes)


def _caps(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that cap this kernel's share, as they are now."""
    try:
        named = json.loads(environ.get(CAPS, "{}"))
    except (ValueError, RecursionError):
        return {}
    names = named if isinstance(named, dict) else ()
    return {name: environ[name] for name in names if name.isidentifier() and name in environ}


def _given(process: KernelProcess, inventory: Inventory) -> tuple[Device, ...] | None:
    uuids = [device.uuid for device in process.in_force or ()]
    found = [inventory.find(uuid) for uuid in uuids if uuid is not None]
    devices = tuple(device for device in found if device is not None)
    return devices if len(devices) == len(uuids) else None


def _late(process: KernelProcess, given: tuple[Device, ...]) -> str:
    indices = listed(device.index for device in given)
    force = f"physical {indices}" if given else "no device"
    return (
        f"This is what is in force: {force}. CUDA_VISIBLE_DEVICES is {value_words(process.set_now)}"
        " now, which came too late here and is not exported."
    )


def _lease_note(overview: Overview, process: KernelProcess) -> str:
    lease = overview.lease
    amount = max(1, len(overview.shown)) if lease is None else lease.record.request.amount
    own = f"To lease GPUs for itself, start it with  jupyter gpu run --gpus {amount} -- COMMAND"
    if lease is not None or process.lease_id is not None:
        return (
            "A script that uses this runs under this kernel's lease only while this kernel lives; "
            f"after that, others may get its GPUs. {own}"
        )
    return f"No lease stands behind this: others may use the same GPUs. {own}"


def _line(environment: Mapping[str, str]) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    parts = [f"export {' '.join(words)}"] if words else []
    if VISIBLE not in environment:
        parts.insert(0, f"unset {VISIBLE}")
    return "; ".join(parts)
