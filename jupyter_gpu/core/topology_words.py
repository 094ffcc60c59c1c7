"""What the kinds of links mean in plain words, and CPU numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jupyter_gpu.core.topology import UNKNOWN, Kind, Link, runs

_RUNS_SHOWN = 6
_MEANINGS: dict[Kind | None, str] = {
    "internal": "both on one board, through its own PCIe switch",
    "single": "through one PCIe switch",
    "multiple": "through several PCIe switches, without the CPU",
    "hostbridge": "through a PCIe host bridge, which is the CPU's",
    "node": "through several PCIe host bridges of one NUMA node",
    "system": "through the link between CPUs, from one NUMA node to another",
    None: "the driver does not say",
}


def kind_meaning(links: Sequence[Link]) -> str:
    """Return in words how links of one kind go; counts are named where they are known."""
    first = links[0]
    if first.kind != "nvlink":
        return _MEANINGS[first.kind]
    counts = sorted({link.nvlinks for link in links if link.nvlinks})
    if not counts:
        return "NVLink"
    most = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = f"NVLink, {most} link{'s' if counts[-1] > 1 else ''}"
    if all(link.through_switch for link in links):
        return f"{words} through a switch: each GPU shares them among all the others"
    return words


def together_words(links: Sequence[Link]) -> str:
    """Return in words how GPUs are connected, given the links of all their pairs."""
    joined = [link.nvlink for link in links]
    if all(joined):
        return "joined by NVLink" if len(links) == 1 else "NVLink between every pair"
    if any(joined):
        return "NVLink between some pairs"
    if all(link.kind is None for link in links):
        return "how they are connected is unknown"
    if None in joined:
        return "PCIe, and whether NVLink too is unknown"
    return "no NVLink, only PCIe"


def cpu_words(cpus: Iterable[int] | None) -> str:
    """Return CPU numbers as ``"0-31, 64-95"``, in short where they are scattered.

    Some machines number their CPUs from socket to socket in turn: ``"0, 2, 4 … 94"``.
    """
    if cpus is None:
        return UNKNOWN
    found = runs(cpus)
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    if len(shown) <= _RUNS_SHOWN:
        return ", ".join(shown)
    return f"{', '.join(shown[:3])} … {shown[-1]}"
