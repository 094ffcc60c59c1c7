"""The topology as NVML reports it: NVLink, the way over PCIe, and what is near each GPU.

Every question has its own guard: what a GPU, a driver or a container does not answer is unknown,
and never an error. Nothing here imports ``pynvml``; questions go through a callable that never
raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from jupyter_gpu.adapters.nvml_gpu import Answer, Ask, numa_node
from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.topology import Link, Path, Place, Topology

# nvml.h: nvmlGpuTopologyLevel_t.
_PATHS: dict[int, Path] = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}
P2P_NVLINK = 2  # nvml.h: NVML_P2P_CAPS_INDEX_NVLINK
P2P_OK = 0  # nvml.h: nvmlGpuP2PStatus_t
P2P_UNKNOWN = 6
SWITCH = 2  # nvml.h: NVML_NVLINK_DEVICE_TYPE_SWITCH
MOST_LINKS = 36  # nvml.h: NVML_NVLINK_MAX_LINKS of the newest drivers; 18 until Hopper
NEAREST = 0  # nvml.h: NVML_AFFINITY_SCOPE_NODE
WORD_BITS = 64  # an unsigned long, as on every 64-bit Linux
CPU_WORDS = 8192 // WORD_BITS  # the most CPUs that distributions build Linux for
NODE_WORDS = 1024 // WORD_BITS


@dataclass(frozen=True, slots=True)
class Lane:
    """The far end of one active NVLink: a switch, the GPU at a PCI address, or unknown."""

    switch: bool = False
    bus_id: str | None = None


@dataclass(frozen=True, slots=True)
class _GPU:
    """One GPU as it answers for itself; ``lanes`` is None where NVLink cannot be asked about."""

    handle: object
    place: Place
    bus_id: str | None
    lanes: tuple[Lane, ...] | None


def read_topology(ask: Ask | None) -> Topology:
    """Return the topology of all GPUs that have a UUID; empty where NVML lists none.

    Parameters
    ----------
    ask
        Calls one function of pynvml by name and returns its Answer; None where there is no NVML.
    """
    if ask is None:
        return Topology()
    count = ask("nvmlDeviceGetCount")
    handles = [
        (index, ask("nvmlDeviceGetHandleByIndex", index)) for index in range(count.value or 0)
    ]
    found = (_gpu(ask, index, handle.value) for index, handle in handles if not handle.code)
    gpus = [gpu for gpu in found if gpu is not None]
    return Topology(
        tuple(gpu.place for gpu in gpus),
        tuple(_link(ask, one, other) for one, other in combinations(gpus, 2)),
    )


def _gpu(ask: Ask, index: int, handle: object) -> _GPU | None:
    """Read what concerns one GPU; a GPU so lost that it has no UUID is left out."""
    uuid = ask("nvmlDeviceGetUUID", handle).text
    if uuid is None:
        return None
    bus = ask("nvmlDeviceGetPciInfo", handle)
    bus_id = _bus_id(bus)
    cpus = _members(ask("nvmlDeviceGetCpuAffinity", handle, CPU_WORDS))
    nodes = _members(ask("nvmlDeviceGetMemoryAffinity", handle, NODE_WORDS, NEAREST))
    # NVML names nodes as a set; where that is not one node, the kernel's own answer counts.
    node = nodes[0] if nodes is not None and len(nodes) == 1 else numa_node(bus_id)
    return _GPU(handle, Place(uuid, index, node, cpus), bus_id, _lanes(ask, handle))


def _lanes(ask: Ask, handle: object) -> tuple[Lane, ...] | None:
    """Return the far ends of a GPU's active NVLinks; a link that it lacks is passed over."""
    lanes = []
    for number in range(MOST_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, number)
        if state.code in (nvml_words.INVALID_ARGUMENT, nvml_words.NOT_SUPPORTED):
            continue
        if state.code:
            return None
        if state.value:
            kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            if kind.value == SWITCH:
                lanes.append(Lane(switch=True))
            else:
                far = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
                lanes.append(Lane(bus_id=_bus_id(far)))
    return tuple(lanes)


def _link(ask: Ask, one: _GPU, other: _GPU) -> Link:
    level = ask("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
    path = None if level.code else _PATHS.get(level.value)
    status = ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, P2P_NVLINK)
    nvlink = _joined(status, one, other)
    if not nvlink:
        return Link(one.place.uuid, other.place.uuid, path, nvlink)
    direct = _direct(one, other)
    if direct:
        return Link(one.place.uuid, other.place.uuid, path, nvlink, direct, through_switch=False)
    shared = [_to_switches(gpu) for gpu in (one, other)]
    count = min(shared) or None
    switched = True if count else None
    return Link(one.place.uuid, other.place.uuid, path, nvlink, count, switched)


def _joined(status: Answer, one: _GPU, other: _GPU) -> bool | None:
    """Return whether NVLink joins two GPUs: by the driver's word, else by where the links end."""
    if status.code == nvml_words.SUCCESS and status.value == P2P_OK:
        return True
    if _direct(one, other):
        return True
    if status.code == nvml_words.SUCCESS and status.value != P2P_UNKNOWN:
        return False
    return False if () in (one.lanes, other.lanes) else None


def _direct(one: _GPU, other: _GPU) -> int:
    """Return how many NVLinks lead from one GPU straight to the other."""
    if other.bus_id is None:
        return 0
    return sum(lane.bus_id == other.bus_id for lane in one.lanes or ())


def _to_switches(gpu: _GPU) -> int:
    return sum(lane.switch for lane in gpu.lanes or ())


def _bus_id(pci: Answer) -> str | None:
    """Return a PCI address in one spelling: NVML's functions differ in case and leading zeros."""
    if pci.code:
        return None
    text = Answer(pci.value.busId).text
    return text.upper().rjust(16, "0") if text else None


def _members(mask: Answer) -> tuple[int, ...] | None:
    """Return the numbers whose bits are set in NVML's words; None where there are none."""
    if mask.code:
        return None
    return tuple(_bits(mask.value)) or None


def _bits(words: Iterable[int]) -> Iterable[int]:
    for position, word in enumerate(words):
        bits = int(word)
        while bits:
            lowest = bits & -bits
            yield position * WORD_BITS + lowest.bit_length() - 1
            bits ^= lowest
