"""The topology of a simulated machine: what its description says, else what such machines have.

Links that a description names stand for themselves. Where it names none, models that come on an
NVSwitch board are joined by NVLink, the others through PCIe; where it names no NUMA node either,
more than four GPUs stand on two nodes. The CPUs are simulated too: they say nothing about those of
the computer that simulates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.topology import PATHS, Link, Path, Place, Topology

# The models that are sold on an NVSwitch board, by the NVLinks that each GPU has there.
_SWITCHED = {
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA B200": 18,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200": 18,
    "Tesla V100-SXM2-32GB": 6,
}
_SHORT: dict[str, Path] = {
    "PSB": "internal",
    "PIX": "single",
    "PXB": "multiple",
    "PHB": "hostbridge",
    "NODE": "node",
    "SYS": "system",
}
_NVLINK = re.compile(r"NVLINK|NV([1-9][0-9]?)")
_ONE_NODE = 4  # as many GPUs as machines have on one socket
_CORES = 48  # of each node, with two threads each


class WrongLinksError(ValueError):
    """The links of a description are not as they should be."""


@dataclass(frozen=True, slots=True)
class GivenLink:
    """One link of a description, between two physical indices in order."""

    one: int
    other: int
    path: Path | None = None
    nvlinks: int | None = None
    nvlink: bool = False


def read_links(gpus: Sequence[Mapping[str, object]]) -> tuple[GivenLink, ...] | None:
    """Return the links that the GPUs of a description name, or None where they name none.

    A link needs to be named by one of its two GPUs only.

    Raises
    ------
    WrongLinksError
        When a link leads nowhere, is of an unknown kind, or two GPUs disagree on it.
    """
    found: dict[tuple[int, int], GivenLink] = {}
    named = {index: gpu.get("links") for index, gpu in enumerate(gpus)}
    for index, links in named.items():
        if links is None:
            continue
        if not isinstance(links, dict):
            raise WrongLinksError(f'GPU {index}: \'links\' is an object such as {{"1": "nvlink"}}')
        for far, kind in links.items():
            link = _given(index, far, kind, len(gpus))
            pair = (link.one, link.other)
            if found.setdefault(pair, link) != link:
                raise WrongLinksError(f"GPU {link.one} and GPU {link.other} disagree on their link")
    unnamed = all(links is None for links in named.values())
    return None if unnamed else tuple(found.values())


def _given(index: int, far: str, kind: object, count: int) -> GivenLink:
    if not (far.isascii() and far.isdigit() and int(far) < count and int(far) != index):
        raise WrongLinksError(f"GPU {index}: 'links' names no other GPU by {far!r}")
    one, other = sorted((index, int(far)))
    word = kind.upper() if isinstance(kind, str) else ""
    nvlink = _NVLINK.fullmatch(word)
    if nvlink:
        return GivenLink(one, other, None, int(nvlink[1]) if nvlink[1] else None, nvlink=True)
    path = _SHORT.get(word) or next((path for path in PATHS if path.upper() == word), None)
    if path is None:
        known = ", ".join(("nvlink", "NV4", *PATHS, *_SHORT))
        raise WrongLinksError(f"GPU {index}: {kind!r} is no kind of link; known: {known}")
    return GivenLink(one, other, path)


def simulated_topology(gpus: tuple[Device, ...], given: tuple[GivenLink, ...] | None) -> Topology:
    """Return the topology of simulated GPUs.

    Parameters
    ----------
    gpus
        The physical GPUs of the machine, in order.
    given
        What ``read_links`` found in its description.
    """
    nodes = [gpu.numa_node for gpu in gpus]
    if given is None and set(nodes) == {None}:
        half = (len(gpus) + 1) // 2 if len(gpus) > _ONE_NODE else len(gpus)
        nodes = [0 if position < half else 1 for position in range(len(gpus))]
    places = tuple(
        Place(gpu.uuid or "", gpu.index, node, _cpus(node, nodes))
        for gpu, node in zip(gpus, nodes, strict=True)
    )
    named = {(link.one, link.other): link for link in given or ()}
    links = []
    for one, other in combinations(range(len(gpus)), 2):
        link = named.get((one, other))
        path = _path(places[one], places[other])
        if link is None and given is None:
            links.append(_usual(gpus[one], gpus[other], path))
        elif link is None:
            links.append(Link(places[one].uuid, places[other].uuid, path, nvlink=False))
        else:
            ends = (places[one].uuid, places[other].uuid)
            links.append(Link(*ends, link.path or path, link.nvlink, link.nvlinks))
    return Topology(places, tuple(links))


def _usual(one: Device, other: Device, path: Path | None) -> Link:
    """Return the link that two GPUs of these models have where a description names none."""
    ends = (one.uuid or "", other.uuid or "")
    count = _SWITCHED.get(one.name)
    # In MIG mode a GPU reaches no other one (NVIDIA's MIG user guide).
    if count is not None and one.name == other.name and not (one.mig_mode or other.mig_mode):
        return Link(*ends, path, nvlink=True, nvlinks=count, through_switch=True)
    return Link(*ends, path, nvlink=False)


def _path(one: Place, other: Place) -> Path | None:
    """Return a way over PCIe: two GPUs under each switch, and the nodes' own bridges above."""
    if one.numa_node is None or other.numa_node is None:
        return None
    if one.numa_node != other.numa_node:
        return "system"
    return "single" if one.index // 2 == other.index // 2 else "node"


def _cpus(node: int | None, nodes: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the CPUs of a node as Linux numbers them: the second threads after all the cores."""
    if node is None:
        return None
    cores = _CORES * (max(number for number in nodes if number is not None) + 1)
    first = range(_CORES * node, _CORES * (node + 1))
    return (*first, *(cores + core for core in first))
