"""The topology: how each pair of GPUs is connected, and which CPUs and memory are near each GPU.

Keyed by UUID, so that a choice among devices can use what was read by somebody else at another
moment. Only physical GPUs are in it: a MIG device stands where its parent stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Literal, get_args

# The nearest thing that two GPUs have in common on PCIe, from near to far, in the words of NVML's
# nvmlGpuTopologyLevel_t.
Path = Literal["internal", "single", "multiple", "hostbridge", "node", "system"]
Kind = Literal["nvlink", "internal", "single", "multiple", "hostbridge", "node", "system"]

PATHS: tuple[Path, ...] = get_args(Path)
# As `nvidia-smi topo -m` prints them.
_SHORT = {
    "internal": "PSB",
    "single": "PIX",
    "multiple": "PXB",
    "hostbridge": "PHB",
    "node": "NODE",
    "system": "SYS",
}
UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs are connected; ``None`` is unknown, everywhere.

    ``one`` and ``other`` are UUIDs, in physical order. ``nvlinks`` is how many NVLinks a transfer
    between the two can use; where ``through_switch`` is true, each GPU shares them among all its
    peers. ``path`` is the way over PCIe, which is there with NVLink too.
    """

    one: str
    other: str
    path: Path | None = None
    nvlink: bool | None = None
    nvlinks: int | None = None
    through_switch: bool | None = None

    @property
    def kind(self) -> Kind | None:
        """The best way between the two: NVLink, else the way over PCIe."""
        return "nvlink" if self.nvlink else self.path

    @property
    def short(self) -> str:
        """The kind as ``nvidia-smi topo`` prints it: ``NV18``, ``PIX``; ``–`` is unknown."""
        if self.nvlink:
            return f"NV{self.nvlinks or ''}"
        return UNKNOWN if self.path is None else _SHORT[self.path]

    @property
    def distance(self) -> tuple[int, int]:
        """What to sort links by: the nearest first, more NVLinks before fewer, unknown last."""
        if self.nvlink:
            return (0, -(self.nvlinks or 0))
        return (len(PATHS) + 1 if self.path is None else PATHS.index(self.path) + 1, 0)

    def as_json(self, index_of: dict[str, int]) -> dict[str, object]:
        """Return the link for programs; ``index_of`` gives the physical indices."""
        return {
            "uuids": [self.one, self.other],
            "indices": [index_of.get(self.one), index_of.get(self.other)],
            "kind": self.kind,
            "short": None if self.kind is None else self.short,
            "nvlink": self.nvlink,
            "nvlinks": self.nvlinks,
            "through_switch": self.through_switch,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where one GPU stands: its NUMA node, and the CPUs near it by number, in order."""

    uuid: str
    index: int
    numa_node: int | None = None
    cpus: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The places of all GPUs, in physical order, and one link for each pair of them."""

    places: tuple[Place, ...] = ()
    links: tuple[Link, ...] = ()

    def place(self, uuid: str | None) -> Place | None:
        """Return where the GPU with this UUID stands, or None for one that is not in it."""
        return next((place for place in self.places if place.uuid == uuid), None)

    def among(self, uuids: Iterable[str]) -> tuple[Link, ...]:
        """Return the link of every pair of these GPUs, in the order of the pairs.

        A pair that the topology does not know has a link of which everything is unknown.
        """
        known = {frozenset((link.one, link.other)): link for link in self.links}
        return tuple(
            known.get(frozenset(pair), Link(*pair))
            for pair in combinations(tuple(dict.fromkeys(uuids)), 2)
        )

    def nvlink_groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the sets of GPUs that NVLink joins, directly or through others, of two or more."""
        group_of = {place.uuid: {place.uuid} for place in self.places}
        for link in self.links:
            if link.nvlink and group_of[link.one] is not group_of[link.other]:
                joined = group_of[link.one] | group_of[link.other]
                group_of.update(dict.fromkeys(joined, joined))
        groups = (
            tuple(place.uuid for place in self.places if place.uuid in group_of[one.uuid])
            for one in self.places
        )
        return tuple(group for group in dict.fromkeys(groups) if len(group) > 1)


def cpu_list(cpus: Iterable[int] | None) -> str | None:
    """Return CPU numbers as Linux writes them, ``"0-31,64-95"``; None where they are unknown."""
    if cpus is None:
        return None
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in runs(cpus)
    )


def runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as runs without gaps, each by its first and its last, in order."""
    ordered = sorted(set(numbers))
    grouped = groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])
    members = ([number for _, number in group] for _, group in grouped)
    return tuple((run[0], run[-1]) for run in members)
