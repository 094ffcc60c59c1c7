"""Reads the overview of a machine: the inventory, the leases, and what is visible.

What cannot be read becomes a sentence in it, so that the rest is shown all the same.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.machine import Machine, find_machine, is_simulated
from jupyter_gpu.adapters.place import find_place, safety
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.errors import SimulationError, StoreError
from jupyter_gpu.core.holds import Holds
from jupyter_gpu.core.leases import Holdings
from jupyter_gpu.core.notes import pool_notes
from jupyter_gpu.core.overview import Leasing, Overview, RulesShown, SeenProcess
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.visibility import Visible, read, visible

NOT_EXCLUSIVE = (
    "Not exclusive here: this system has no open-file-description locks, as Linux has them, "
    "so GPUs are chosen but not leased."
)


def read_overview(
    environ: Mapping[str, str], *, machine: Machine | None = None, sensors: bool = True
) -> Overview:
    """Return the overview of the machine that an environment means.

    Parameters
    ----------
    environ
        Names the machine, the lease directory and what is visible.
    machine
        An open machine to read instead of opening one; it stays open.
    sensors
        Also read utilisation, temperature and power, which is slow.
    """
    inventory = _read_machine(environ, machine, sensors=sensors)
    holdings, leasing = _read_leases(environ, inventory)
    # A machine whose driver library has stopped to answer says nothing about a value.
    silent = inventory.problem is not None and not inventory.devices
    asked = Inventory("none") if silent else inventory
    return Overview(
        inventory,
        visible(environ.get(VISIBLE), asked, environment=environ),
        holdings,
        leasing,
        _processes_on(inventory),
        holds=_read_holds(environ),
        rules=_read_rules(environ, inventory, holdings),
    )


def read_value(value: str | None, inventory: Inventory, environ: Mapping[str, str]) -> Visible:
    """Return what CUDA makes of a value, with a note on devices that are not in this pool.

    The pool is what this environment's own CUDA_VISIBLE_DEVICES leaves.
    """
    found = visible(value, inventory, environment=environ)
    own = environ.get(VISIBLE)
    if own is None or value == own:
        return found
    reading = read(own, inventory)
    pool = () if reading.twice is not None else [device.uuid or "" for device in reading.devices]
    notes = (*found.notes, *pool_notes(value, inventory, pool))
    return dataclasses.replace(found, notes=notes)


def _read_machine(
    environ: Mapping[str, str], machine: Machine | None, *, sensors: bool
) -> Inventory:
    try:
        if machine is not None:
            return machine.read(sensors=sensors)
        with find_machine(environ) as opened:
            return opened.read(sensors=sensors)
    except SimulationError as error:
        return Inventory("none", problem=str(error))


def _read_leases(environ: Mapping[str, str], inventory: Inventory) -> tuple[Holdings, Leasing]:
    if sys.platform != "linux":
        return Holdings(), Leasing(exclusive=False, problem=NOT_EXCLUSIVE)
    # Only where it can work: the store needs what other systems' os module does not have.
    from jupyter_gpu.adapters.store import LeaseStore  # noqa: PLC0415

    place = find_place(environ, simulated=is_simulated(environ))
    directory = str(place.directory)
    try:
        with LeaseStore(place) as store:
            if not store.supported:
                return Holdings(), Leasing(directory, exclusive=False, problem=NOT_EXCLUSIVE)
            uuids = [device.uuid for device in inventory.devices if device.uuid is not None]
            return store.holdings(uuids), Leasing(directory, warning=safety(place))
    except StoreError as error:
        return Holdings(), Leasing(directory, exclusive=False, problem=str(error))


def _read_holds(environ: Mapping[str, str]) -> Holds:
    if sys.platform != "linux":
        return Holds()
    from jupyter_gpu.adapters.holds_file import read_holds  # noqa: PLC0415 - as the store

    return read_holds(find_place(environ, simulated=is_simulated(environ)))


def _read_rules(
    environ: Mapping[str, str], inventory: Inventory, holdings: Holdings
) -> RulesShown | None:
    if sys.platform != "linux":
        return None
    from jupyter_gpu.adapters.rules_file import find_rules_path  # noqa: PLC0415 - as the store

    place = find_place(environ, simulated=is_simulated(environ))
    if find_rules_path(place, environ) is None:
        return None  # and readers are quick
    from jupyter_gpu.site import rules_shown  # noqa: PLC0415 - only where there are rules

    return rules_shown(place, environ, inventory, holdings)


def _processes_on(inventory: Inventory) -> tuple[SeenProcess, ...]:
    simulated = inventory.source == "simulated"
    places = {
        process.pid: device.minor for device in inventory.devices for process in device.processes
    }
    infos = (
        processes.named_by_driver(pid, minor, simulated=simulated)
        for pid, minor in sorted(places.items())
    )
    return tuple(
        SeenProcess(
            info.pid,
            info.user,
            f"{info.command} (a zombie)" if info.state in "ZX" else info.command,
        )
        for info in infos
        if info is not None
    )
