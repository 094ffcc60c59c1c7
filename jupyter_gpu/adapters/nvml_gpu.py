"""One GPU, and its MIG devices, read through NVML.

Each question has its own guard: a GPU that is lost, or that knows nothing of fans and watts, still
gives a row. Nothing here imports ``pynvml``; questions go through a callable that never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.devices import Device, Process

MEMORY_V2 = 0x02000028  # nvml.h: version 2 in the top byte, sizeof(nvmlMemory_v2_t) below
TEMPERATURE_OF_THE_CHIP = 0  # nvml.h: NVML_TEMPERATURE_GPU
MIG_ENABLED = 1  # nvml.h: NVML_DEVICE_MIG_ENABLE
PROHIBITED = 2  # nvml.h: nvmlComputeMode_t
EXCLUSIVE_PROCESS = 3

# A GPU or a driver that lacks a feature is healthy all the same.
LACKING = (nvml_words.NOT_SUPPORTED, nvml_words.FUNCTION_NOT_FOUND)
# Whatever was asked, these say that the GPU itself is gone.
FATAL = (nvml_words.GPU_IS_LOST, nvml_words.RESET_REQUIRED)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one NVML call gave: a value, or an error code other than 0."""

    value: Any
    code: int = nvml_words.SUCCESS

    @property
    def text(self) -> str | None:
        """The value as a string, or None after an error; some nvidia-ml-py answer in bytes."""
        if self.code:
            return None
        if isinstance(self.value, bytes):
            return self.value.decode(errors="replace")
        return str(self.value)


Ask = Callable[..., Answer]
# Told of every code, and of those that are harmless.
Note = Callable[[int, tuple[int, ...]], None]


class GPUReader:
    """Reads the GPU at one physical index once, and remembers the first thing that went wrong."""

    def __init__(self, ask: Ask, index: int, *, sensors: bool) -> None:
        self._raw_ask = ask
        self._index = index
        self._sensors = sensors
        self._code = nvml_words.SUCCESS

    def read(self, handle: Answer) -> tuple[Device, ...]:
        """Return the GPU behind a handle, followed by its MIG devices.

        Where the handle itself was refused (a lost GPU may do that), the row has no UUID and says
        why.
        """
        if handle.code:
            problem = nvml_words.gpu_problem(self._index, handle.code)
            return (Device(self._index, None, "unknown GPU", problem=problem),)
        gpu = self._whole(handle.value)
        migs = self._migs(handle.value, gpu) if gpu.mig_mode else ()
        if self._code:
            # The parts of a broken GPU are broken too, even where they still answer.
            broken = nvml_words.gpu_problem(self._index, self._code)
            migs = tuple(replace(mig, problem=mig.problem or broken) for mig in migs)
            return (replace(gpu, problem=broken), *migs)
        if gpu.mig_mode:
            gpu = replace(gpu, problem=nvml_words.mig_problem(self._index, len(migs)))
        return (gpu, *migs)

    def _whole(self, handle: object) -> Device:
        """Read the GPU itself; what is wrong with it is known only when all has been asked."""
        uuid = self._must("nvmlDeviceGetUUID", handle, lacking=())
        total, used = self._memory(handle)
        bus = self._may("nvmlDeviceGetPciInfo", handle)
        bus_id = None if bus.code else Answer(bus.value.busId).text
        mode = self._may("nvmlDeviceGetComputeMode", handle).value
        gpu = Device(
            self._index,
            uuid.text,
            self._must("nvmlDeviceGetName", handle).text or "unknown GPU",
            pci_bus_id=bus_id,
            memory_total_bytes=total,
            memory_used_bytes=used,
            processes=self._processes(handle),
            mig_mode=(self._may("nvmlDeviceGetMigMode", handle).value or (0,))[0] == MIG_ENABLED,
            minor=self._may("nvmlDeviceGetMinorNumber", handle).value,
            exclusive=mode in (PROHIBITED, EXCLUSIVE_PROCESS),
            display=bool(self._may("nvmlDeviceGetDisplayActive", handle).value),
            numa_node=numa_node(bus_id),
        )
        return self._with_sensors(gpu, handle) if self._sensors else gpu

    def _with_sensors(self, gpu: Device, handle: object) -> Device:
        """Add what takes milliseconds to measure."""
        rates = self._may("nvmlDeviceGetUtilizationRates", handle).value
        milliwatts = self._may("nvmlDeviceGetPowerUsage", handle).value
        return replace(
            gpu,
            utilization_percent=None if rates is None else int(rates.gpu),
            temperature_celsius=self._may(
                "nvmlDeviceGetTemperature", handle, TEMPERATURE_OF_THE_CHIP
            ).value,
            power_watts=None if milliwatts is None else milliwatts / 1000,
        )

    def _migs(self, handle: object, gpu: Device) -> tuple[Device, ...]:
        """Read the MIG devices of a GPU in MIG mode; their slots may have gaps."""
        slots = self._must("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0
        found = []
        for slot in range(slots):
            part = self._raw_ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            # An empty slot is not found; one that belongs to another user may not be opened.
            if not part.code:
                found.append(GPUReader(self._raw_ask, self._index, sensors=False).mig(part, gpu))
        return tuple(found)

    def mig(self, handle: Answer, gpu: Device) -> Device:
        """Return one MIG device of ``gpu``; called by the reader of that GPU, with a new reader."""
        uuid = self._must("nvmlDeviceGetUUID", handle.value, lacking=()).text
        total, used = self._memory(handle.value)
        processes = self._processes(handle.value)
        name = self._must("nvmlDeviceGetName", handle.value).text or f"{gpu.name} MIG"
        return replace(
            gpu,
            uuid=uuid,
            name=name,
            kind="mig",
            parent=gpu.uuid,
            profile=profile_of(name) or self._profile(handle.value, gpu),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilization_percent=None,
            temperature_celsius=None,
            power_watts=None,
            processes=processes,
            problem=nvml_words.gpu_problem(self._index, self._code) if self._code else None,
            mig_mode=False,
            gpu_instance=self._may("nvmlDeviceGetGpuInstanceId", handle.value).value,
            compute_instance=self._may("nvmlDeviceGetComputeInstanceId", handle.value).value,
        )

    def _profile(self, handle: object, gpu: Device) -> str | None:
        """Work a MIG device's profile out from its attributes, for drivers with plain names."""
        attributes = self._may("nvmlDeviceGetAttributes_v2", handle).value
        if attributes is None or gpu.memory_total_bytes is None:
            return None
        return profile_from(
            int(attributes.gpuInstanceSliceCount),
            int(attributes.computeInstanceSliceCount),
            int(attributes.memorySizeMB) << 20,
            gpu.memory_total_bytes,
        )

    def _memory(self, handle: object) -> tuple[int | None, int | None]:
        return memory_of(self._raw_ask, handle, self._note)

    def _processes(self, handle: object) -> tuple[Process, ...]:
        return processes_of(self._raw_ask, handle, self._note)

    def _must(self, name: str, *arguments: object, lacking: tuple[int, ...] = LACKING) -> Answer:
        """Ask what a lease depends on: any error but a lacking feature is the GPU's problem."""
        answer = self._raw_ask(name, *arguments)
        self._note(answer.code, lacking)
        return answer

    def _may(self, name: str, *arguments: object) -> Answer:
        """Ask what is only shown: an error leaves it unknown, unless it says the GPU is gone."""
        answer = self._raw_ask(name, *arguments)
        if answer.code in FATAL:
            self._note(answer.code, ())
        return answer

    def _note(self, code: int, harmless: tuple[int, ...]) -> None:
        """Remember the first error that is not harmless."""
        if code not in harmless:
            self._code = self._code or code


def memory_of(ask: Ask, handle: object, note: Note) -> tuple[int | None, int | None]:
    """Return total and used bytes; both unknown where the total is 0 or memory is shared.

    Version 2 does not count what the driver reserves: on an idle H200 it says 0 bytes are used
    where version 1 says 645 MB.
    """
    name = "nvmlDeviceGetMemoryInfo"
    memory = ask(name, handle, MEMORY_V2)
    if memory.code in (
        nvml_words.INVALID_ARGUMENT,
        nvml_words.FUNCTION_NOT_FOUND,
        nvml_words.ARGUMENT_VERSION_MISMATCH,
    ):
        memory = ask(name, handle)
    note(memory.code, LACKING)
    if memory.code or not memory.value.total:
        return None, None
    return int(memory.value.total), int(memory.value.used)


def processes_of(ask: Ask, handle: object, note: Note) -> tuple[Process, ...]:
    """Return the compute processes, clients of an MPS server included, by pid."""
    memory_by: dict[int, int | None] = {}
    for name in (
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    ):
        answer = ask(name, handle)
        if answer.code in (nvml_words.FUNCTION_NOT_FOUND, nvml_words.INSUFFICIENT_SIZE):
            # A driver before 510, or a list that grew between its two calls.
            answer = ask(f"{name}_v2", handle)
        note(answer.code, LACKING)
        for process in answer.value or ():
            pid = int(process.pid)
            known = (memory_by.get(pid), process.usedGpuMemory)
            memory_by[pid] = max((int(one) for one in known if one is not None), default=None)
    return tuple(Process(pid, memory_by[pid]) for pid in sorted(memory_by))


def profile_of(name: str) -> str | None:
    """Return the profile in a MIG device's name, such as ``1g.18gb`` or ``1c.2g.35gb+me``."""
    match = re.search(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)", name)
    return match[1] if match else None


def profile_from(slices: int, compute_slices: int, memory_bytes: int, whole_bytes: int) -> str:
    """Return the profile name that NVIDIA gives a MIG device of this size.

    The gigabytes in the name are the whole GPU's, rounded up, times the share of memory in eighths,
    rounded up: that is how 16 GiB of an H200 come to be called ``18gb`` (source: NVIDIA's go-nvlib,
    which names the profiles for its container toolkit).
    """
    eighths = -(-memory_bytes * 8 // whole_bytes)
    gigabytes = round(-(-whole_bytes // 2**30) * eighths / 8)
    part = "" if compute_slices in (0, slices) else f"{compute_slices}c."
    return f"{part}{slices}g.{gigabytes}gb"


def numa_node(pci_bus_id: str | None, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node nearest to a PCI device, or None where the kernel names none.

    NVML's own ``nvmlDeviceGetNumaNodeId`` is for GPUs that are NUMA nodes themselves, so the kernel
    is asked. NVML writes the domain with eight digits, sysfs with four.
    """
    if pci_bus_id is None:
        return None
    try:
        node = int((devices / pci_bus_id[-12:].lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
