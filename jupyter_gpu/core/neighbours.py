"""Neighbours: which of several devices are nearest to each other, and the CPUs near them.

Pure over a topology that was read before, so that the same machine always gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from operator import add

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.topology import Link, Path, Place, Topology, cpu_list
from jupyter_gpu.core.topology_words import cpu_words

_PAIR = 2
# Every set is compared while that means no more pairs than this: 8 of 16 GPUs are 360,360.
_MOST_PAIRS = 400_000
# Beyond that, sets are grown, in this many additions in all (about 10 microseconds each for 128).
_MOST_ADDITIONS = 2_500
# Between two ways of different kinds; far above the NVLinks of all pairs taken together.
_STEP = 1 << 24
_GROUPS_NAMED = 4
_LIST_SHOWN = 40  # letters of a list of CPUs

_OVER: dict[Path, str] = {
    "internal": "on one board",
    "single": "over one PCIe switch",
    "multiple": "over several PCIe switches",
    "hostbridge": "over the CPU's host bridge",
    "node": "over the host bridges of one NUMA node",
    "system": "over the link between CPUs",
}

Distances = tuple[tuple[int, ...], ...]


def closest(
    ranked: tuple[Device, ...], wanted: int, topology: Topology, *, require: bool
) -> tuple[Device, ...] | None:
    """Choose the devices that are nearest to each other, in order of preference.

    Sets of which NVLink joins every pair come first, those with more links before those with
    fewer. Otherwise the pair that is farthest apart decides, then the sum over all pairs, then
    the preference. A pair of which nothing is known is the farthest of all. A MIG device stands
    where its GPU stands, and NVLink does not reach it (NVIDIA's MIG user guide).

    All sets are compared as long as there are few enough, which holds for 8 of 16 devices.
    Beyond that sets are grown from one device each, and a better one may be missed.

    Parameters
    ----------
    ranked
        Devices that can be had, the preferred first; each is there once.
    wanted
        How many of them.
    topology
        How the physical GPUs are connected. What it does not know is unknown.
    require
        Take nothing but a set of which NVLink joins every pair.

    Returns
    -------
    tuple of Device, or None
        None where there are fewer devices than wanted, or no set that ``require`` accepts.
    """
    if wanted > len(ranked):
        return None
    if wanted < _PAIR:
        return ranked[: max(wanted, 0)]
    far = _distances(ranked, topology)
    if comb(len(ranked), wanted) * comb(wanted, 2) <= _MOST_PAIRS:
        search = _Search(far, wanted, min(min(row) for row in far))
        search.extend((), 0)
        members = search.found
    else:
        members = _grown(far, wanted)
    # Only NVLink has a distance that is not above zero.
    if require and any(far[one][other] > 0 for one, other in combinations(members, 2)):
        return None
    return tuple(ranked[member] for member in members)


def _home(device: Device) -> str | None:
    """Return the UUID of the physical GPU on which a device is."""
    return device.parent or device.uuid


def _links(devices: tuple[Device, ...], topology: Topology) -> tuple[Link, ...]:
    """Return the link of every pair of devices, in the order of the pairs."""
    known = {frozenset((link.one, link.other)): link for link in topology.links}
    return tuple(_link(one, other, known) for one, other in combinations(devices, 2))


def _link(one: Device, other: Device, known: dict[frozenset[str], Link]) -> Link:
    here, there = _home(one), _home(other)
    if here is None or there is None:
        return Link(here or "", there or "")
    if here == there:
        return Link(here, there, "internal", nvlink=False)
    link = known.get(frozenset((here, there))) or Link(here, there)
    if link.nvlink and "mig" in (one.kind, other.kind):
        return replace(link, nvlink=False, nvlinks=None, through_switch=None)
    return link


def _distances(devices: tuple[Device, ...], topology: Topology) -> Distances:
    """Return how far every device is from every other: as numbers, NVLink at most zero.

    A kind of way counts more than all NVLinks together, so that sums compare by kinds first.
    """
    rows = [[0] * len(devices) for _ in devices]
    pairs = combinations(range(len(devices)), 2)
    for (one, other), link in zip(pairs, _links(devices, topology), strict=True):
        kind, links = link.distance
        rows[one][other] = rows[other][one] = kind * _STEP + links
    return tuple(map(tuple, rows))


@dataclass(slots=True)
class _Search:
    """Goes through all sets of a size in order of preference, and leaves out what cannot win.

    ``worst`` and ``total`` are those of ``found``, the best set so far; ``nearest`` is a bound
    below which no distance lies.
    """

    far: Distances
    wanted: int
    nearest: int
    found: tuple[int, ...] = ()
    worst: int = 0
    total: int = 0

    def extend(self, members: tuple[int, ...], total: int, worst: int = -_STEP) -> None:
        """Look at all sets that begin with these members."""
        missing = self.wanted - len(members)
        if missing == 0:
            self.found, self.worst, self.total = members, worst, total
            return
        first = members[-1] + 1 if members else 0
        # What the pairs that are not there yet add at least, once the next member is in.
        rest = (comb(self.wanted, 2) - comb(len(members) + 1, 2)) * self.nearest
        for member in range(first, len(self.far) - missing + 1):
            row = self.far[member]
            steps = [row[other] for other in members]
            farthest = max(worst, *steps) if steps else worst
            length = total + sum(steps)
            # The first of equals stays: it is the preferred one.
            if self.found and (farthest, length + rest) >= (self.worst, self.total):
                continue
            self.extend((*members, member), length, farthest)


def _grown(far: Distances, wanted: int) -> tuple[int, ...]:
    """Return the best of the sets that grow from one device by the nearest one each time.

    They start from every device where the additions allow it, else from those that have the
    nearest others.
    """
    weights = _weights(far, wanted)
    taken = wanted * max(map(max, weights)) + 1
    promise = [sum(sorted(row)[:wanted]) for row in weights]
    seeds = sorted(range(len(far)), key=lambda seed: (promise[seed], seed))
    grown: set[tuple[int, ...]] = set()
    for seed in seeds[: max(1, _MOST_ADDITIONS // wanted)]:
        members, costs = [seed], list(weights[seed])
        costs[seed] = taken
        while len(members) < wanted:
            nearest = costs.index(min(costs))
            members.append(nearest)
            costs = list(map(add, costs, weights[nearest]))
            costs[nearest] = taken
        grown.add(tuple(sorted(members)))
    return min(grown, key=lambda members: (*_measures(far, members), members))


def _weights(far: Distances, wanted: int) -> Distances:
    """Return the distances as weights: one of a kind outweighs all nearer ones of a set."""
    kinds = sorted({distance for row in far for distance in row})
    weight = {kind: (wanted + 1) ** place for place, kind in enumerate(kinds)}
    return tuple(tuple(map(weight.__getitem__, row)) for row in far)


def _measures(far: Distances, members: tuple[int, ...]) -> tuple[int, int]:
    """Return the farthest pair of a set and the sum over its pairs."""
    rows = [
        tuple(map(far[member].__getitem__, members[:place]))
        for place, member in enumerate(members)
        if place
    ]
    return max(map(max, rows)), sum(map(sum, rows))


def joined_words(devices: tuple[Device, ...], topology: Topology) -> str:
    """Return in one phrase how devices that were chosen together are joined."""
    links = _links(devices, topology)
    if not links:
        return "one device, which needs no neighbour"
    if len({_home(device) for device in devices}) == 1 and _home(devices[0]) is not None:
        return "parts of one GPU"
    if all(link.nvlink for link in links):
        return f"joined by NVLink{_counts(links)}"
    return _apart_words(links)


def _apart_words(links: tuple[Link, ...]) -> str:
    """Return in one phrase how devices are joined of which NVLink does not join all pairs."""
    if _unknown(links):
        return "how they are joined is unknown"
    way = _way(links)
    if any(link.nvlink for link in links):
        farthest = f"the farthest two are joined {way}" if way else "for the others it is unknown"
        return f"NVLink between some of them: {farthest}"
    if way is None:
        return "no NVLink that is known of, and not every path between them is known"
    if any(link.nvlink is None for link in links):
        return f"joined {way}; whether by NVLink too is unknown"
    which = "closest path is" if len(links) == 1 else "farthest two are joined"
    return f"no NVLink between them: the {which} {way}"


def _unknown(links: tuple[Link, ...]) -> bool:
    """Return whether nothing is known of any pair, not even that NVLink does not join it."""
    return all(link.nvlink is None and link.path is None for link in links)


def _counts(links: tuple[Link, ...]) -> str:
    """Return how many NVLinks join pairs, ``" (NV18)"``; empty where that is unknown."""
    counts = sorted({link.nvlinks for link in links if link.nvlinks})
    ends = dict.fromkeys(f"NV{count}" for count in counts[:1] + counts[-1:])
    return f" ({' to '.join(ends)})" if ends else ""


def _way(links: tuple[Link, ...]) -> str | None:
    """Return over what the pair goes that is farthest apart, not by NVLink; None is unknown."""
    farthest = max(links, key=lambda link: link.distance)
    return None if farthest.path is None else f"{_OVER[farthest.path]} ({farthest.short})"


def best_words(pool: tuple[Device, ...], wanted: int, topology: Topology) -> str:
    """Return what would be the best where NVLink between all was required, in one phrase.

    Parameters
    ----------
    pool
        The devices that could serve, in physical order, whether they are free or not.
    wanted
        How many were asked for.
    topology
        How the physical GPUs are connected.
    """
    if len(pool) < wanted:
        return f"only {in_words(len(pool), 'device')} here could serve"
    joined = closest(pool, wanted, topology, require=True)
    if joined is not None:
        are = "is" if len(joined) == 1 else "are"
        return f"the closest {wanted} {are} {_names(joined)}, {joined_words(joined, topology)}"
    links = _links(pool, topology)
    if _unknown(links):
        return "how the devices here are joined is unknown"
    near = closest(pool, wanted, topology, require=False) or ()
    way = _way(_links(near, topology)) or "but how they are joined is not all known"
    nearest = f"the closest {wanted} are {_names(near)}, {way}"
    known = "is known to join" if any(link.nvlink is None for link in links) else "joins"
    groups = _largest_groups(pool, wanted, topology)
    if not groups:
        return f"NVLink {known} none of the {in_words(len(pool), 'device')} here; {nearest}"
    listed = "; ".join(_names(group) for group in groups[:_GROUPS_NAMED])
    more = "; …" if len(groups) > _GROUPS_NAMED else ""
    return f"NVLink {known} at most {len(groups[0])} here ({listed}{more}); {nearest}"


def _largest_groups(
    pool: tuple[Device, ...], below: int, topology: Topology
) -> tuple[tuple[Device, ...], ...]:
    """Return sets of the largest size that NVLink joins, without a device that is in two."""
    size, too_many = 1, below
    while too_many - size > 1:
        middle = (size + too_many) // 2
        if closest(pool, middle, topology, require=True) is None:
            too_many = middle
        else:
            size = middle
    groups: list[tuple[Device, ...]] = []
    left = pool
    while size >= _PAIR and len(groups) <= _GROUPS_NAMED:
        group = closest(left, size, topology, require=True)
        if group is None:
            break
        groups.append(group)
        left = tuple(device for device in left if device not in group)
    return tuple(groups)


def _names(devices: tuple[Device, ...]) -> str:
    names = [
        str(device.index) if device.kind == "gpu" else f"MIG {device.profile} on {device.index}"
        for device in devices
    ]
    return " and ".join(names) if len(names) == _PAIR else ", ".join(names)


def _places(devices: tuple[Device, ...], topology: Topology) -> tuple[Place, ...]:
    found = (topology.place(_home(device)) for device in devices)
    return tuple(place for place in found if place is not None)


def cpus_near(devices: tuple[Device, ...], topology: Topology) -> tuple[int, ...] | None:
    """Return the CPUs near any of the devices, in order; None where no device's are known."""
    near = {cpu for place in _places(devices, topology) for cpu in place.cpus or ()}
    return tuple(sorted(near)) or None


def affinity_words(
    devices: tuple[Device, ...],
    topology: Topology,
    cpus: tuple[int, ...] | None,
    allowed: frozenset[int] | None = None,
) -> str:
    """Return in one phrase on which CPUs a kernel runs that was to be near its devices.

    Parameters
    ----------
    devices, topology
        What the kernel got, and where that stands.
    cpus
        The CPUs that it was bound to; None where it was not bound.
    allowed
        The CPUs that it could have had, which tells why it was not bound; None where the system
        does not let one choose.
    """
    near = cpus_near(devices, topology)
    it = "it" if len(devices) == 1 else "them"
    if cpus is not None:
        cut = near is not None and set(cpus) < set(near)
        which = "on the CPUs near" if not cut else "on those CPUs that may be used near"
        return f"{which} {it}{_where(devices, topology, cpus)}"
    if near is None:
        return f"on any CPU: which are near {it} is unknown"
    if allowed is None:
        return "on any CPU: this system does not let one choose"
    if allowed <= set(near):
        return f"all CPUs that may be used are near {it}{_where(devices, topology, allowed)}"
    return f"on any CPU: none of those near {it} may be used ({_listed(near)})"


def _where(
    devices: tuple[Device, ...], topology: Topology, cpus: tuple[int, ...] | frozenset[int]
) -> str:
    nodes = {place.numa_node for place in _places(devices, topology)}
    known = sorted(node for node in nodes if node is not None)
    if not known or None in nodes:
        return f" ({_listed(cpus)})"
    named = " and ".join(map(str, known)) if len(known) <= _PAIR else ", ".join(map(str, known))
    return f": NUMA node{'s' if len(known) > 1 else ''} {named} ({_listed(cpus)})"


def _listed(cpus: tuple[int, ...] | frozenset[int]) -> str:
    """Return CPU numbers as Linux writes them, in short where they are scattered."""
    listed = cpu_list(cpus) or ""
    return listed if len(listed) <= _LIST_SHOWN else cpu_words(cpus)
