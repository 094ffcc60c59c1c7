"""The simulated machine: ``JUPYTER_GPU_SIMULATE=4xH200``, or a JSON file that describes one.

For learning and testing where there is no GPU. It answers in exactly the shapes of a real one,
and the same description gives the same UUIDs every time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from jupyter_gpu.core.devices import Device, Inventory, Process
from jupyter_gpu.core.errors import SimulationError

if TYPE_CHECKING:
    from jupyter_gpu.adapters.gauge import Gauge
    from jupyter_gpu.adapters.simulated_topology import GivenLink
    from jupyter_gpu.core.topology import Topology

_T = TypeVar("_T", str, int, float)

DEFAULT_DRIVER = "580.95.05"

# Marketing name and memory in MiB as nvidia-smi prints them for each model.
_MODELS = {
    "A10": ("NVIDIA A10", 23028),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920),
    "A40": ("NVIDIA A40", 46068),
    "B200": ("NVIDIA B200", 183359),
    "GH200": ("NVIDIA GH200 480GB", 97871),
    "H100": ("NVIDIA H100 80GB HBM3", 81559),
    "H200": ("NVIDIA H200", 143771),
    "L4": ("NVIDIA L4", 23034),
    "L40S": ("NVIDIA L40S", 46068),
    "RTX3090": ("NVIDIA GeForce RTX 3090", 24576),
    "RTX4090": ("NVIDIA GeForce RTX 4090", 24564),
    "RTX5090": ("NVIDIA GeForce RTX 5090", 32607),
    "T4": ("Tesla T4", 15360),
    "V100": ("Tesla V100-SXM2-32GB", 32768),
}
# CUDA version that a driver branch brings (NVIDIA's CUDA compatibility table).
_CUDA_OF_BRANCH = {
    "525": "12.0",
    "535": "12.2",
    "550": "12.4",
    "560": "12.6",
    "570": "12.8",
    "575": "12.9",
    "580": "13.0",
}
_GROUP = re.compile(r"\s*([0-9]{1,3})\s*[xX×]\s*([A-Za-z0-9]+)\s*")
_GROUPS_LIMIT = 128
_LARGEST = 2**63
_GPU_KEYS = frozenset(
    {
        "uuid",
        "name",
        "memory_total_bytes",
        "memory_used_bytes",
        "pci_bus_id",
        "mig",
        "processes",
        "links",
        "numa_node",
        "problem",
        "utilization_percent",
        "temperature_celsius",
        "power_watts",
        "exclusive",
        "display",
    }
)
_MIG_KEYS = frozenset({"uuid", "profile", "memory_total_bytes", "memory_used_bytes", "processes"})
_IN_MIG_MODE = "in MIG mode: it is used in parts, listed below it"


class SimulatedMachine:
    """A machine that exists in a description only; read anew at every ``read``.

    Parameters
    ----------
    description
        ``4xH200``, ``2xH200+1xL4``, or the path of a JSON file (see interface.md).
    """

    def __init__(self, description: str) -> None:
        self.description = description
        self._from_groups: _Described | None = None  # such a machine never changes

    def __enter__(self) -> SimulatedMachine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; there is nothing to close."""

    def read(self, *, sensors: bool = True) -> Inventory:  # noqa: ARG002 - the seam's signature
        """Return the inventory.

        Raises
        ------
        SimulationError
            When the description cannot be read, with what is wrong with it.
        """
        return self._described().inventory

    def gauge(self, uuids: Sequence[str]) -> Gauge:
        """Return what reads these devices from the description."""
        from jupyter_gpu.adapters.gauge import InventoryGauge  # noqa: PLC0415 - as in nvml

        return InventoryGauge(self.read, uuids)

    def topology(self) -> Topology:
        """Return how the GPUs are connected: as described, else as such machines usually are.

        Raises
        ------
        SimulationError
            As ``read`` does.
        """
        from jupyter_gpu.adapters.simulated_topology import (  # noqa: PLC0415 - few ask
            simulated_topology,
        )

        described = self._described()
        return simulated_topology(described.inventory.gpus, described.links)

    def _described(self) -> _Described:
        if self._from_groups is not None:
            return self._from_groups
        groups = [_GROUP.fullmatch(part) for part in self.description.split("+")]
        if all(groups):
            found = [group for group in groups if group is not None]
            self._from_groups = _from_groups(self.description, found)
            return self._from_groups
        return _from_file(self.description)


@dataclass(frozen=True, slots=True)
class _Described:
    """A description as it was read; ``links`` is None where it names none."""

    inventory: Inventory
    links: tuple[GivenLink, ...] | None = None


def _from_groups(description: str, groups: list[re.Match[str]]) -> _Described:
    gpus: list[Mapping[str, object]] = []
    for group in groups:
        model = _MODELS.get(group[2].upper())
        if model is None:
            known = ", ".join(_MODELS)
            raise SimulationError(
                f"JUPYTER_GPU_SIMULATE={description}: no model {group[2]!r}. Known: {known}."
            )
        name, memory_mib = model
        gpu = {"name": name, "memory_total_bytes": memory_mib * 2**20}
        gpu |= {"memory_used_bytes": 0, "utilization_percent": 0}
        gpus.extend([gpu] * int(group[1]))
    if not 0 < len(gpus) <= _GROUPS_LIMIT:
        raise SimulationError(
            f"JUPYTER_GPU_SIMULATE={description}: 1 to {_GROUPS_LIMIT} GPUs can be simulated."
        )
    return _machine_of(gpus, DEFAULT_DRIVER)


def _from_file(description: str) -> _Described:
    try:
        data = json.loads(Path(description).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SimulationError(
            f"JUPYTER_GPU_SIMULATE={description}: neither a machine such as 4xH200 or "
            "2xH200+1xL4 nor a file."
        ) from None
    except (OSError, ValueError, RuntimeError) as error:  # endless nesting, or ~nobody
        raise SimulationError(f"JUPYTER_GPU_SIMULATE={description}: {error}") from error
    try:
        return _from_data(data)
    except _WrongDescriptionError as wrong:
        raise SimulationError(f"JUPYTER_GPU_SIMULATE={description}: {wrong}") from wrong


def _from_data(data: object) -> _Described:
    if not isinstance(data, dict):
        raise _WrongDescriptionError("the description is a JSON object with a list 'gpus'")
    _only(data, frozenset({"driver", "gpus", "schema"}), "the machine")
    gpus = data.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise _WrongDescriptionError("'gpus' is a list of objects")
    driver = _optional(data, "driver", str)
    return _machine_of(gpus, DEFAULT_DRIVER if driver is None else driver)


class _WrongDescriptionError(ValueError):
    """Something in the description is not as it should be."""


def _machine_of(gpus: list[Mapping[str, object]], driver: str) -> _Described:
    devices: list[Device] = []
    for index, gpu in enumerate(gpus):
        devices.extend(_devices(index, gpu))
    uuids = [device.uuid for device in devices]
    if len(set(uuids)) < len(uuids):
        raise _WrongDescriptionError("two devices have the same uuid")
    problem = None if gpus else "The simulated machine has no GPU."
    cuda = _CUDA_OF_BRANCH.get(driver.partition(".")[0])
    inventory = Inventory("simulated", driver, cuda, problem, tuple(devices))
    return _Described(inventory, _links(gpus))


def _links(gpus: list[Mapping[str, object]]) -> tuple[GivenLink, ...] | None:
    """Read the links here, so that a wrong one is told at every reading of the machine."""
    if not any(gpu.get("links") is not None for gpu in gpus):
        return None
    from jupyter_gpu.adapters.simulated_topology import (  # noqa: PLC0415 - few have links
        WrongLinksError,
        read_links,
    )

    try:
        return read_links(gpus)
    except WrongLinksError as wrong:
        raise _WrongDescriptionError(str(wrong)) from wrong


def _devices(index: int, gpu: Mapping[str, object]) -> list[Device]:
    _only(gpu, _GPU_KEYS, f"GPU {index}")
    name = _optional(gpu, "name", str)
    if not name:
        raise _WrongDescriptionError(f"GPU {index} has no name")
    parts = gpu.get("mig") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise _WrongDescriptionError(f"GPU {index}: 'mig' is a list of objects")
    problem = _optional(gpu, "problem", str)
    uuid = _optional(gpu, "uuid", str) or "GPU-" + _made_uuid(f"{index} {name}")
    whole = Device(
        index=index,
        uuid=uuid,
        name=name,
        pci_bus_id=_optional(gpu, "pci_bus_id", str) or f"00000000:{index + 1:02X}:00.0",
        memory_total_bytes=_optional(gpu, "memory_total_bytes", int),
        memory_used_bytes=_optional(gpu, "memory_used_bytes", int),
        utilization_percent=_optional(gpu, "utilization_percent", int),
        temperature_celsius=_optional(gpu, "temperature_celsius", int),
        power_watts=_watts(gpu),
        processes=_processes(gpu),
        problem=problem or (_IN_MIG_MODE if parts else None),
        mig_mode=bool(parts),
        minor=index,
        exclusive=_flag(gpu, "exclusive"),
        display=_flag(gpu, "display"),
        numa_node=_optional(gpu, "numa_node", int),
    )
    return [whole, *(_mig_device(whole, number, part) for number, part in enumerate(parts))]


def _mig_device(parent: Device, number: int, part: Mapping[str, object]) -> Device:
    _only(part, _MIG_KEYS, f"MIG device {number} of GPU {parent.index}")
    profile = _optional(part, "profile", str)
    made = "MIG-" + _made_uuid(f"{parent.uuid} {number} {profile}")
    return Device(
        index=parent.index,
        uuid=_optional(part, "uuid", str) or made,
        name=f"{parent.name} MIG {profile or ''}".strip(),
        kind="mig",
        parent=parent.uuid,
        profile=profile,
        pci_bus_id=parent.pci_bus_id,
        memory_total_bytes=_optional(part, "memory_total_bytes", int),
        memory_used_bytes=_optional(part, "memory_used_bytes", int),
        processes=_processes(part),
        minor=parent.minor,
        numa_node=parent.numa_node,
        gpu_instance=number + 1,
        compute_instance=0,
    )


def _processes(data: Mapping[str, object]) -> tuple[Process, ...]:
    rows = data.get("processes") or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _WrongDescriptionError("'processes' is a list of objects")
    found = []
    for row in rows:
        _only(row, frozenset({"pid", "memory_bytes"}), "a process")
        pid = _optional(row, "pid", int)
        if pid is None:
            raise _WrongDescriptionError("a process has no pid")
        found.append(Process(pid, _optional(row, "memory_bytes", int)))
    return tuple(found)


def _only(data: Mapping[str, object], keys: frozenset[str], where: str) -> None:
    for key in data:
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise _WrongDescriptionError(f"{where} has an unknown key {key!r}; known: {known}")


def _optional(data: Mapping[str, object], key: str, kind: type[_T]) -> _T | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, kind):
        raise _WrongDescriptionError(f"{key!r} is {value!r}, not of type {kind.__name__}")
    if isinstance(value, str) and not value.isprintable():
        raise _WrongDescriptionError(f"{key!r} has characters that cannot be printed")
    if isinstance(value, (int, float)) and not 0 <= value < _LARGEST:
        raise _WrongDescriptionError(f"{key!r} is {value!r}, not a number of zero or more")
    return value


def _flag(gpu: Mapping[str, object], key: str) -> bool:
    value = gpu.get(key, False)
    if not isinstance(value, bool):
        raise _WrongDescriptionError(f"{key!r} is {value!r}, neither true nor false")
    return value


def _watts(gpu: Mapping[str, object]) -> float | None:
    value = gpu.get("power_watts")
    watts = float(value) if type(value) is int else value
    return _optional({"power_watts": watts}, "power_watts", float)


def _made_uuid(seed: str) -> str:
    digits = hashlib.sha256(f"jupyter-gpu simulated device {seed}".encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
