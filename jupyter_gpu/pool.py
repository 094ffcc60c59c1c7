"""The pool: which devices of the machine this program may lease at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.variables import LEASE, VISIBLE
from jupyter_gpu.core.visibility import read


@dataclass(frozen=True, slots=True)
class Limit:
    """A value of CUDA_VISIBLE_DEVICES that cuts the pool down, and whose it is."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices that may be leased, in physical order.

    ``ancestors`` are the leases above, outermost first; ``limited_by`` names what cut the pool
    down, None where nothing did; ``relatives`` are pids that belong to the lease above.
    ``capacity`` is how much of each device there is, in units: less than the whole below a lease
    on a share.
    """

    devices: tuple[Device, ...]
    ancestors: tuple[str, ...] = ()
    limited_by: str | None = None
    relatives: tuple[int, ...] = ()
    capacity: int = DEVICE_UNITS


def limits_of(
    environ: Mapping[str, str], kernelspec_env: Mapping[str, str] | None = None
) -> tuple[Limit, ...]:
    """Return the limits that the server's environment and a kernelspec's ``env`` set."""
    sources = (
        (environ, "the environment"),
        (kernelspec_env or {}, "the kernelspec's env"),
    )
    return tuple(Limit(env[VISIBLE], name) for env, name in sources if VISIBLE in env)


def written_limits(limits: tuple[Limit, ...]) -> str:
    """Return limits as a kernel keeps them in its environment, for a later change of devices."""
    return json.dumps([[limit.value, limit.source] for limit in limits])


def read_limits(text: str) -> tuple[Limit, ...]:
    """Return the limits that a kernel was started under; what cannot be read allows no device."""
    try:
        found = json.loads(text)
        return tuple(Limit(str(value), str(source)) for value, source in found)
    except (TypeError, ValueError, RecursionError):
        return (Limit("", "a value that cannot be read"),)


def find_pool(
    inventory: Inventory,
    limits: tuple[Limit, ...],
    environ: Mapping[str, str],
    store: LeaseStore | None,
) -> Pool:
    """Return the pool: what the machine has, every limit allows, and the lease above holds."""
    devices = inventory.devices
    words = []
    for limit in limits:
        reading = read(limit.value, inventory)
        named = () if reading.twice is not None else reading.devices
        devices = tuple(device for device in devices if device in named)
        words.append(f"{VISIBLE}={limit.value} in {limit.source}")
    ancestors: tuple[str, ...] = ()
    relatives: tuple[int, ...] = ()
    capacity = DEVICE_UNITS
    above = environ.get(LEASE)
    if store is not None and above and store.is_live(above):
        record = store.own_live_record(above)
        held: tuple[str, ...] = ()  # without a record to be believed, nothing may be parted
        ancestors = (above,)
        if record is not None:
            ancestors = (*record.ancestors, above)
            held = tuple(u for u in record.uuids if not store.is_free(record.ancestors, u))
            capacity = record.units
            relatives = tuple(process.pid for process in record.owner.processes)
        devices = tuple(device for device in devices if device.uuid in held)
        words.append("the lease that this program runs under")
    if devices == inventory.devices and capacity == DEVICE_UNITS:
        words = []
    return Pool(devices, ancestors, " and ".join(words) or None, relatives, capacity)
