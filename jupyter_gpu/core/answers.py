"""What programs read: the JSON of interface.md, made of an overview. Unknown is always null."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.standing import standing

if TYPE_CHECKING:
    from jupyter_gpu.core.kernel_process import KernelProcess
    from jupyter_gpu.core.visibility import Visible

SCHEMA = 1


def status_answer(overview: Overview) -> dict[str, object]:
    """Return the answer of ``status``; for a kernel that asks, that of ``%gpu``."""
    inventory, process = overview.inventory, overview.process
    answer: dict[str, object] = {
        "schema": SCHEMA,
        "machine": {
            "source": inventory.source,
            "driver": inventory.driver,
            "cuda": inventory.cuda,
            "problem": inventory.problem,
        },
        "devices": [_device(device, overview) for device in inventory.devices],
        "visible": _visible(overview.visible),
        "leasing": _leasing(overview),
        "queue": _queue(overview),
        "rules": _rules(overview),
    }
    if process is not None:
        lease = overview.lease
        answer["process"] = _process(process)
        answer["lease"] = None if lease is None else lease.as_json()
    return answer


def who_answer(overview: Overview) -> dict[str, object]:
    """Return the answer of ``who``: the leases, and those who wait in their order."""
    holdings = overview.holdings
    return {
        "schema": SCHEMA,
        "leases": [
            {**lease.as_json(), "memory_used_bytes": overview.memory_used_on(lease)}
            for lease in holdings.leases
        ],
        "queue": _queue(overview),
        "unclaimed": list(holdings.unclaimed),
        "leasing": _leasing(overview),
        "rules": _rules(overview),
    }


def map_answer(visible: Visible) -> dict[str, object]:
    """Return the answer of ``map``."""
    return {"schema": SCHEMA, **_visible(visible)}


def _device(device: Device, overview: Overview) -> dict[str, object]:
    hold = overview.holds.holding(device)
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "kind": device.kind,
        "parent": device.parent,
        "profile": device.profile,
        "pci_bus_id": device.pci_bus_id,
        "memory_total_bytes": device.memory_total_bytes,
        "memory_used_bytes": device.memory_used_bytes,
        "utilization_percent": device.utilization_percent,
        "temperature_celsius": device.temperature_celsius,
        "power_watts": device.power_watts,
        "processes": _processes(device, overview),
        "leases": [lease.as_json() for lease in overview.holdings.on(device.uuid)],
        "hold": None if hold is None else hold.as_json(),
        "free_share": standing(device, overview).free_units / DEVICE_UNITS,
        "problem": device.problem,
    }


def _queue(overview: Overview) -> list[dict[str, object]]:
    held_back = {} if overview.rules is None else overview.rules.held_back
    return [
        {**waiter.as_json(place), "held_back": held_back.get(waiter.record.id)}
        for place, waiter in enumerate(overview.holdings.waiters, 1)
    ]


def _rules(overview: Overview) -> dict[str, object] | None:
    rules = overview.rules
    return None if rules is None else {**rules.answer, "problem": rules.problem}


def _processes(device: Device, overview: Overview) -> list[dict[str, object]]:
    known = overview.known
    rows: list[dict[str, object]] = []
    for process in device.processes:
        seen = known.get(process.pid)
        rows.append(
            {
                "pid": process.pid,
                "memory_bytes": process.memory_bytes,
                "user": None if seen is None else seen.user,
                "command": None if seen is None else seen.command,
            }
        )
    return rows


def _visible(visible: Visible) -> dict[str, object]:
    return {
        "value": visible.value,
        "devices": [
            {"ordinal": device.ordinal, "index": device.index, "uuid": device.uuid}
            for device in visible.devices
        ],
        "cuinit": visible.cuinit,
        "notes": list(visible.notes),
    }


def _leasing(overview: Overview) -> dict[str, object]:
    leasing = overview.leasing
    return {
        "directory": leasing.directory,
        "exclusive": leasing.exclusive,
        "problem": leasing.problem,
        "warning": leasing.warning,
    }


def _process(process: KernelProcess) -> dict[str, object]:
    in_force = process.in_force
    return {
        "pid": process.pid,
        "launched_with": process.launched_with,
        "set_now": process.set_now,
        "in_force": None
        if in_force is None
        else [
            {"ordinal": device.ordinal, "index": device.index, "uuid": device.uuid}
            for device in in_force
        ],
        "state": process.state,
        "frozen_by": _frozen_by(process),
        "contexts": list(process.contexts),
        "torch_count": process.torch_count,
        "imports": [
            {"module": one.module, "version": one.version, "cell": one.cell}
            for one in process.history.imports
        ],
        "changes": [
            {"cell": one.cell, "before": one.before, "after": one.after, "how": one.how}
            for one in process.history.changes
        ],
        "forked_frozen": process.history.forked_frozen,
        "notices": [*process.notices, *process.advice, *process.missing],
    }


def _frozen_by(process: KernelProcess) -> dict[str, object] | None:
    frozen = process.history.frozen
    if frozen is None or frozen.when == "before" or process.state != "frozen":
        return None
    return {
        "cell": frozen.cell,
        "import": frozen.by_import,
        "chain": list(frozen.chain),
        "call": frozen.call,
        "when": frozen.when,
    }
