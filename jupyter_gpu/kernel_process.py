"""What is true in the kernel that asks: its lease, and the CUDA driver's state in it."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping

from jupyter_gpu.adapters.driver import DriverState, look_at_driver
from jupyter_gpu.adapters.launch import restarts_by_itself
from jupyter_gpu.adapters.loaded import is_torch_without_gpus, names_in
from jupyter_gpu.cell_watch import CellWatch
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.frameworks import advice
from jupyter_gpu.core.kernel_process import InForce, KernelProcess, ProcessState
from jupyter_gpu.core.leases import Holdings, clean
from jupyter_gpu.core.variables import LEASE, NOTICE, VISIBLE

FRAMEWORK = "JUPYTER_GPU_FRAMEWORK"
# Import name to the name people know and the pip command's argument.
_FRAMEWORKS = {"torch": ("PyTorch", "torch")}


def look_at_kernel(
    environ: Mapping[str, str], inventory: Inventory, watch: CellWatch
) -> KernelProcess:
    """Return what is true in this process; the CUDA driver is asked and never initialised."""
    launch = watch.launch
    driver = look_at_driver(launch.pid)
    history = watch.history()
    return KernelProcess(
        pid=os.getpid(),
        launched_with=launch.visible,
        set_now=environ.get(VISIBLE),
        state=_state(driver, inventory),
        in_force=_in_force(driver, inventory, watch.known_devices),
        lease_id=environ.get(LEASE),
        notices=_notices(environ),
        missing=tuple(_missing(environ)),
        history=history,
        contexts=driver.contexts,
        torch_count=_torch_count(),
        advice=advice(history, environ, frozen=driver.state == "frozen"),
        renewable=restarts_by_itself(environ),
    )


def _state(driver: DriverState, inventory: Inventory) -> ProcessState:
    if driver.state == "forked":
        return "forked"
    if inventory.source == "simulated":
        return "simulated"
    if driver.state == "absent" and inventory.devices:
        return "open"  # there is a driver, and this process has not even loaded it
    return driver.state


def _in_force(
    driver: DriverState, inventory: Inventory, known: dict[str, tuple[int, str | None]]
) -> tuple[InForce, ...] | None:
    """Return what the driver has given to this process.

    ``known`` are the devices of earlier looks, by their digits, which stand in where NVML has
    stopped to answer meanwhile (a driver update under a running system); the new ones are added.
    """
    known |= {_digits(device.uuid): (device.index, device.uuid) for device in inventory.devices}
    if driver.uuids is None or inventory.source == "simulated":
        return None
    found = (known.get(digits, (None, None)) for digits in driver.uuids)
    return tuple(InForce(ordinal, index, uuid) for ordinal, (index, uuid) in enumerate(found))


def _digits(uuid: str | None) -> str:
    return (uuid or "").partition("-")[2].replace("-", "").lower()


def remember_leased(watch: CellWatch, holdings: Holdings) -> None:
    """Note the devices that are leased, for the case that NVML stops to answer."""
    for lease in holdings.leases:
        record = lease.record
        for uuid, index in zip(record.uuids, record.indices, strict=False):
            watch.known_devices.setdefault(_digits(uuid), (index, uuid))


def _torch_count() -> int | None:
    """Return the number of devices that torch remembers, without asking torch anything.

    From 2.3 on it keeps it when CUDA is initialised, before that from the first question on.
    """
    names, without = names_in("torch.cuda"), is_torch_without_gpus()
    if names is None or without is None:
        return None
    if without:
        return 0
    kept = names.get("_cached_device_count")
    if isinstance(kept, int):
        return kept
    counter = names.get("device_count")
    if isinstance(counter, functools._lru_cache_wrapper) and counter.cache_info().currsize:  # noqa: SLF001 - the only name of this type
        count = counter()  # the cache answers, nothing is asked
        return count if isinstance(count, int) else None
    return None


def _notices(environ: Mapping[str, str]) -> tuple[str, ...]:
    notices = (clean(line.strip()) for line in environ.get(NOTICE, "").splitlines())
    return tuple(filter(None, notices))


def _missing(environ: Mapping[str, str]) -> Iterator[str]:
    framework = environ.get(FRAMEWORK, "")
    if framework in _FRAMEWORKS and not _importable(framework):
        name, package = _FRAMEWORKS[framework]
        # IPython's own %pip is that of the kernel's Python.
        yield f"{name} is not installed in this kernel's Python:  %pip install {package}"


def _importable(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a half-installed package can fail already here
        return False
