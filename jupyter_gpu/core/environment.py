"""What the kernel gets: the variables that a lease sets. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.request import Identifiers
from jupyter_gpu.core.variables import CAPS, LEASE_FD, NOTICE, ORDER, VISIBLE

# Set only where the person has not: TensorFlow and JAX otherwise take nearly all the memory of
# every visible device at once (their own documentation).
_FRAMEWORK_DEFAULTS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def numbering_is_cudas(inventory: Inventory) -> bool:
    """Return whether physical indices are provably the kernel's own CUDA indices.

    With ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` CUDA numbers the GPUs it can open by bus id. That is
    NVML's numbering when every GPU can be read, none is in MIG mode or has a problem, and the
    indices 0, 1, … follow the bus ids.
    """
    gpus = inventory.gpus
    buses = [gpu.pci_bus_id for gpu in gpus]
    return (
        inventory.problem is None
        and all(gpu.problem is None and not gpu.mig_mode for gpu in gpus)
        and [gpu.index for gpu in gpus] == list(range(len(gpus)))
        and all(bus is not None for bus in buses)
        and buses == sorted(bus for bus in buses if bus is not None)
    )


def visible_value(
    devices: tuple[Device, ...], inventory: Inventory, identifiers: Identifiers
) -> str:
    """Return the CUDA_VISIBLE_DEVICES that means exactly these devices; ``-1`` for none."""
    if not devices:
        return "-1"
    by_index = identifiers == "index" or (identifiers == "auto" and numbering_is_cudas(inventory))
    if by_index and all(device.kind == "gpu" for device in devices):
        return ",".join(str(device.index) for device in devices)
    return ",".join(device.uuid for device in devices if device.uuid is not None)


def variables(
    devices: tuple[Device, ...],
    inventory: Inventory,
    identifiers: Identifiers,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that a lease on these devices sets in a process.

    ``environ`` is what the process would have without us; framework settings that stand there
    are left alone.
    """
    result = {ORDER: "PCI_BUS_ID", VISIBLE: visible_value(devices, inventory, identifiers)}
    if devices:
        result |= {k: v for k, v in _FRAMEWORK_DEFAULTS.items() if k not in environ}
    return result


def merged(
    environ: Mapping[str, str], granted: Mapping[str, str], notice: str | None = None
) -> dict[str, str]:
    """Return a process's environment with what a lease sets put into it.

    The devices win over whatever stood there; framework settings do not, so that a restart takes
    up what the person has set meanwhile. Traces of another lease are dropped, its caps where the
    new one has its own. An order of devices
    that gives way is named in the notice, which the kernel shows.
    """
    before = without_caps(environ) if CAPS in granted else environ
    result = {k: v for k, v in before.items() if k not in (LEASE_FD, NOTICE)}
    for name, value in granted.items():
        if name not in _FRAMEWORK_DEFAULTS or name not in result:
            result[name] = value
    order = environ.get(ORDER, "PCI_BUS_ID")
    notices = [] if notice is None else [notice]
    if order != granted.get(ORDER, order):
        notices.append(
            f"{ORDER} was {clean(order)}; the lease has set {granted[ORDER]}, "
            "so that device numbers are physical indices."
        )
    if notices:
        result[NOTICE] = "\n".join(notices)
    return result


def remembered_caps(environ: Mapping[str, str], caps: Mapping[str, str]) -> str:
    """Return what caps are set and what stood there before, for whoever takes them away again."""
    return json.dumps({name: [value, environ.get(name)] for name, value in caps.items()})


def without_caps(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the caps of a lease; what the person has set since stays."""
    result = dict(environ)
    try:
        caps = json.loads(result.pop(CAPS, "{}"))
        entries = [(str(name), *pair) for name, pair in caps.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return result
    for name, value, before in (entry for entry in entries if len(entry) == _ENTRY):
        if result.get(name) != value:
            continue
        if isinstance(before, str):
            result[name] = before
        else:
            del result[name]
    return result


_ENTRY = 3
