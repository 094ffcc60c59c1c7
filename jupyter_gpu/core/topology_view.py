"""The view of ``%gpu topo``: how the GPUs are connected, as a table, in words and as a picture."""

from __future__ import annotations

from itertools import combinations, groupby

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.overview import Leasing, Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.render_text import WIDTH
from jupyter_gpu.core.topology import UNKNOWN, Link, Place, Topology, cpu_list, runs
from jupyter_gpu.core.topology_drawing import topology_drawing
from jupyter_gpu.core.topology_words import cpu_words, kind_meaning, together_words
from jupyter_gpu.core.view import Column, Table, View, machine_notes, machine_words

SCHEMA = 1
ITSELF = "X"  # as nvidia-smi marks it
_PLACES = (Column("NUMA node"), Column("GPUs"), Column("CPUs near them"))
_GAP = 2  # the renderer's, before each column
_PAIR = 2
_SHORT = 2  # letters of a link's name where 16 GPUs stand in one table


def topology_view(overview: Overview, topology: Topology) -> View:
    """Return the view of ``%gpu topo``.

    Parameters
    ----------
    overview
        The machine, with the kernel that asks if there is one.
    topology
        How its GPUs are connected. What it does not know of the machine is shown as unknown.
    """
    gpus = overview.inventory.gpus
    marks = _marks(overview)
    links = topology.among(gpu.uuid for gpu in gpus if gpu.uuid is not None)
    title = _title(overview, topology, links)
    table = _matrix(gpus, topology, marks)
    places = _places(topology)
    legend = _legend(links, short=table is not None and _is_short(table))
    if table is None and len(gpus) >= _PAIR:
        legend.append(_too_wide(topology, len(gpus)))
    if gpus and not marks:
        legend.append("No GPU is visible in this kernel.")
    said = ". ".join((title, *_group_words(topology), *legend))
    return View(
        title=title,
        machine=machine_words(overview.inventory),
        tables=tuple(one for one in (table, places) if one is not None),
        lines=tuple(legend),
        notes=(*_mig_notes(gpus), *machine_notes(overview.inventory, Leasing())),
        drawing=topology_drawing(topology, marks, said),
    )


def topology_answer(overview: Overview, topology: Topology) -> dict[str, object]:
    """Return the JSON of ``%gpu topo``; unknown is null."""
    inventory = overview.inventory
    ordinals = {device.uuid: device.ordinal for device in overview.shown}
    index_of = {place.uuid: place.index for place in topology.places}
    devices: list[dict[str, object]] = []
    for device in inventory.devices:
        place = topology.place(device.uuid if device.parent is None else device.parent)
        devices.append(
            {
                "index": device.index,
                "uuid": device.uuid,
                "kind": device.kind,
                "parent": device.parent,
                "ordinal": None if device.uuid is None else ordinals.get(device.uuid),
                "numa_node": None if place is None else place.numa_node,
                "cpus": None if place is None else cpu_list(place.cpus),
            }
        )
    return {
        "schema": SCHEMA,
        "devices": devices,
        "links": [link.as_json(index_of) for link in topology.links],
        "problem": inventory.problem,
    }


def _marks(overview: Overview) -> dict[str, str]:
    """Return what this kernel calls each physical GPU, by UUID: ``cuda:0``, ``part cuda:0``."""
    marks: dict[str, str] = {}
    for shown in overview.shown:
        device = None if shown.uuid is None else overview.inventory.find(shown.uuid)
        if device is None or device.uuid is None:
            continue
        if device.parent is None:
            marks[device.uuid] = f"cuda:{shown.ordinal}"
        else:
            before = marks.get(device.parent)
            marks[device.parent] = f"{f'{before}, ' if before else 'part cuda:'}{shown.ordinal}"
    return marks


def _title(overview: Overview, topology: Topology, links: tuple[Link, ...]) -> str:
    """Answer for the GPUs of this kernel where it sees some of them, else for all."""
    gpus = overview.inventory.gpus
    if not gpus:
        return "No GPU can be seen here"
    if len(gpus) == 1:
        return "1 GPU: there is no other to connect it with"
    own = tuple(shown.uuid for shown in overview.shown if shown.uuid is not None)
    if _PAIR <= len(own) < len(gpus) and all(topology.place(uuid) for uuid in own):
        return f"This kernel's {len(own)} GPUs: {together_words(topology.among(own))}"
    return f"{in_words(len(gpus))}: {together_words(links) if links else 'nothing is known'}"


def _matrix(gpus: tuple[Device, ...], topology: Topology, marks: dict[str, str]) -> Table | None:
    """Return the links of every pair, in the width of a terminal; None where nothing fits."""
    if len(gpus) < _PAIR:
        return None
    names = [_row_name(gpu, marks) for gpu in gpus]
    cells = _cells(gpus, topology)
    for letters in (None, _SHORT):
        rows = [[cell[:letters] for cell in row] for row in cells]
        needed = (max(map(len, row)) for row in rows)
        room = sum(max(size, len(str(gpu.index))) for size, gpu in zip(needed, gpus, strict=True))
        width = max(map(len, names)) + room + _GAP * (len(gpus) + 1)
        if width <= WIDTH:
            heads = (Column("GPU", shrinks=True), *(Column(str(gpu.index)) for gpu in gpus))
            lines = tuple((name, *row) for name, row in zip(names, rows, strict=True))
            return Table("Links between the GPUs", heads, lines, headed=True)
    return None


def _cells(gpus: tuple[Device, ...], topology: Topology) -> list[list[str]]:
    """Return the short names of all links, row by row; the table is its own mirror image."""
    cells = [[ITSELF if one is other else UNKNOWN for other in gpus] for one in gpus]
    known = [n for n, gpu in enumerate(gpus) if topology.place(gpu.uuid) is not None]
    links = topology.among(gpus[n].uuid or "" for n in known)
    for (one, other), link in zip(combinations(known, 2), links, strict=True):
        cells[one][other] = cells[other][one] = link.short
    return cells


def _row_name(gpu: Device, marks: dict[str, str]) -> str:
    mark = None if gpu.uuid is None else marks.get(gpu.uuid)
    if mark is None:
        return str(gpu.index)
    return f"{gpu.index} = {mark}" if mark.startswith("cuda") else f"{gpu.index} {mark}"


def _is_short(table: Table) -> bool:
    """Return whether the names in a table are cut to their first two letters."""
    return all(len(cell) <= _SHORT for row in table.rows for cell in row[1:])


def _legend(links: tuple[Link, ...], *, short: bool) -> list[str]:
    """Return what each kind of link that is there means, the nearest first."""
    ordered = sorted(links, key=lambda link: link.distance)
    lines = []
    for name, group in groupby(ordered, lambda link: _name(link, short=short)):
        lines.append(f"{name}: {kind_meaning(tuple(group))}")
    return lines


def _name(link: Link, *, short: bool) -> str:
    name = link.short[:_SHORT] if short else link.short
    return name if link.nvlink or name == link.short else f"{name} ({link.short})"


def _too_wide(topology: Topology, count: int) -> str:
    groups = "; ".join(_group_words(topology))
    known = f" {groups}." if groups else ""
    return (
        f"A table of {count} GPUs is wider than a terminal: "
        f"`%gpu topo --json` has every pair.{known}"
    )


def _group_words(topology: Topology) -> list[str]:
    """Return which GPUs NVLink joins, ``"NVLink joins 0-3"``."""
    index_of = {place.uuid: place.index for place in topology.places}
    return [
        f"NVLink joins {cpu_words(index_of[uuid] for uuid in group)}"
        for group in topology.nvlink_groups()
    ]


def _places(topology: Topology) -> Table | None:
    """Return which GPUs and which CPUs stand together; None where nothing is known of it."""
    if all(place.numa_node is None and place.cpus is None for place in topology.places):
        return None
    together: dict[tuple[int | None, tuple[int, ...] | None], list[Place]] = {}
    for place in topology.places:
        together.setdefault((place.numa_node, place.cpus), []).append(place)
    rows = tuple(
        (
            UNKNOWN if node is None else str(node),
            ", ".join(
                str(first) if first == last else f"{first}-{last}"
                for first, last in runs(place.index for place in places)
            ),
            cpu_words(cpus),
        )
        for (node, cpus), places in together.items()
    )
    return Table("Near each GPU", _PLACES, rows, headed=True)


def _mig_notes(gpus: tuple[Device, ...]) -> tuple[str, ...]:
    """Say of GPUs in MIG mode what their links are worth (NVIDIA's MIG user guide)."""
    indices = ", ".join(str(gpu.index) for gpu in gpus if gpu.mig_mode)
    if not indices:
        return ()
    return (f"GPU {indices}: in MIG mode no part reaches another one, or another GPU, directly.",)
