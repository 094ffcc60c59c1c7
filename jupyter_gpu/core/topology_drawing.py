"""The drawing of a topology: one SVG element, for the HTML of ``%gpu topo``.

Each NUMA node is a panel, each GPU a box in it. A thick line with dots joins the GPUs that have
NVLink, a bracket under boxes those below one PCIe switch; what this kernel sees has a bold frame
and its ordinal. Shapes and words say everything, colours nothing. The colours are JupyterLab's, or
the surrounding text's. Drawn for 400 pixels, it grows and shrinks with its place.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jupyter_gpu.core.topology import Place, Topology
from jupyter_gpu.core.topology_words import cpu_words

WIDTH, MARGIN, PAD = 400.0, 4.0, 8.0
BOX, GAP, PER_ROW = 38.0, 10.0, 4
LANE, BRACKET, HEADING, BETWEEN, KEY = 20.0, 14.0, 22.0, 26.0, 18.0
RAIL, RAILS = 14.0, 112.0  # the room of one line down the right side, and of all of them
HEADING_LENGTH = 52

_BESIDE = ("internal", "single", "multiple")  # paths that stay below the host bridge
_NVLINK = "fill:none;stroke:var(--jp-brand-color1,currentColor);stroke-width:3"
_BROKEN = f"{_NVLINK};stroke-dasharray:8 4"
_DOT = "fill:var(--jp-brand-color1,currentColor);stroke:none"
_THIN = "fill:none;stroke:currentColor;stroke-width:1.5"
_PANEL = "fill:none;stroke:currentColor;stroke-width:1;stroke-dasharray:2 3;opacity:0.7"


@dataclass(frozen=True, slots=True)
class _Group:
    """GPUs that NVLink joins; ``whole`` where every pair is joined directly or by a switch."""

    uuids: tuple[str, ...]
    words: str
    whole: bool
    rail: float | None  # where its line down the side is, if it has members in several rows


@dataclass(frozen=True, slots=True)
class _Row:
    """At most four GPUs beside each other; ``lanes`` are the NVLink groups, bottom lane first."""

    places: tuple[Place, ...]
    lanes: tuple[_Group, ...]
    brackets: tuple[tuple[int, int], ...]

    @property
    def height(self) -> float:
        return LANE * len(self.lanes) + BOX + (BRACKET if self.brackets else 0) + PAD


def topology_drawing(topology: Topology, marks: Mapping[str, str], label: str) -> str:
    """Return the drawing, or an empty string where there are no two GPUs to connect.

    Parameters
    ----------
    topology
        What to draw.
    marks
        What this kernel calls a GPU (``cuda:0``), by UUID.
    label
        What the drawing says, in words, for those who do not see it.
    """
    if len(topology.places) < 2:  # noqa: PLR2004 - a pair
        return ""
    panels = _panels(topology)
    rows = [row for panel in panels for row in panel]
    groups = _groups(topology, rows)
    box = (_right(groups) - MARGIN - 2 * PAD - (PER_ROW - 1) * GAP) / PER_ROW
    parts: list[str] = []
    ends: dict[_Group, list[float]] = {}
    top = MARGIN
    for number, panel in enumerate(panels):
        if number:
            parts.append(_between(topology, panels[number - 1], panel, top - BETWEEN, groups))
        drawn = [_row(topology, row, groups) for row in panel]
        bottom = top + HEADING + sum(row.height for row in drawn)
        parts.append(_panel(panel[0][0], top, bottom, _right(groups)))
        top += HEADING
        for row in drawn:
            parts += _boxes(row, top, box, marks)
            parts += _lanes(row, top, box, ends)
            top += row.height
        top = bottom + BETWEEN
    parts += [_rail(group, heights) for group, heights in ends.items()]
    top -= BETWEEN - 4
    key = _key(topology, groups, marks)
    parts += [_key_line(*line, top + n * KEY) for n, line in enumerate(key)]
    return _svg("".join(parts), top + len(key) * KEY + MARGIN, label)


def _panels(topology: Topology) -> list[list[tuple[Place, ...]]]:
    """Return the rows of each NUMA node, neighbours on PCIe beside each other."""
    nodes = sorted({place.numa_node for place in topology.places}, key=lambda n: (n is None, n))
    panels = []
    for node in nodes:
        here = [place for place in topology.places if place.numa_node == node]
        first = _first_neighbours(topology, here)
        here.sort(key=lambda place: (first[place.uuid], place.index))
        panels.append([tuple(here[n : n + PER_ROW]) for n in range(0, len(here), PER_ROW)])
    return panels


def _first_neighbours(topology: Topology, here: Sequence[Place]) -> dict[str, int]:
    """Return for each GPU the lowest physical index below the same PCIe switch."""
    first = {place.uuid: place.index for place in here}
    for link in topology.among(place.uuid for place in here):
        if link.path in _BESIDE:
            first[link.other] = min(first[link.one], first[link.other])
    return first


def _groups(topology: Topology, rows: Sequence[tuple[Place, ...]]) -> tuple[_Group, ...]:
    row_of = {place.uuid: number for number, row in enumerate(rows) for place in row}
    found = topology.nvlink_groups()
    crossing = [group for group in found if len({row_of[uuid] for uuid in group}) > 1]
    pitch = min(RAIL, RAILS / len(crossing)) if crossing else 0
    rails = {
        group: WIDTH - MARGIN - pitch * (number + 0.5) for number, group in enumerate(crossing)
    }
    groups = []
    for group in found:
        links = topology.among(group)
        whole = all(link.nvlink for link in links)
        kinds = {link.short for link in links if link.nvlink}
        words = kinds.pop() if len(kinds) == 1 else "NVLink"
        groups.append(_Group(group, words, whole, rails.get(group)))
    return tuple(groups)


def _right(groups: tuple[_Group, ...]) -> float:
    """Return where the panels end, and the lines down the side begin."""
    rails = [group.rail for group in groups if group.rail is not None]
    if not rails:
        return WIDTH - MARGIN
    return WIDTH - MARGIN - min(RAIL, RAILS / len(rails)) * len(rails) - 4


def _row(topology: Topology, places: tuple[Place, ...], groups: tuple[_Group, ...]) -> _Row:
    uuids = [place.uuid for place in places]
    lanes = tuple(group for group in groups if set(group.uuids) & set(uuids))
    first = _first_neighbours(topology, places)
    heads = [first[uuid] for uuid in uuids]
    spans = ((heads.index(head), len(heads) - 1 - heads[::-1].index(head)) for head in heads)
    brackets = tuple(span for span in dict.fromkeys(spans) if span[0] < span[1])
    return _Row(places, lanes, brackets)


def _middle(column: int, box: float) -> float:
    return MARGIN + PAD + column * (box + GAP) + box / 2


def _panel(place: Place, top: float, bottom: float, right: float) -> str:
    words = "NUMA node unknown" if place.numa_node is None else f"NUMA node {place.numa_node}"
    near = cpu_words(place.cpus)
    longer = f"{words} · CPUs {near}"
    if place.cpus is not None and len(longer) <= HEADING_LENGTH:
        words = longer
    frame = (
        f'<rect x="{MARGIN}" y="{top:g}" width="{right - MARGIN:g}" '
        f'height="{bottom - top:g}" rx="6" style="{_PANEL}"/>'
    )
    return frame + _text(words, MARGIN + PAD, top + 14)


def _boxes(row: _Row, top: float, box: float, marks: Mapping[str, str]) -> list[str]:
    """Draw the GPUs of a row, and the brackets under those below one PCIe switch."""
    parts = []
    y = top + LANE * len(row.lanes)
    for column, place in enumerate(row.places):
        middle, mark = _middle(column, box), marks.get(place.uuid)
        parts.append(_frame(middle - box / 2, y, box, BOX, 1 if mark is None else 3))
        named = f"GPU {place.index}"
        if mark is None:
            parts.append(_text(named, middle, y + BOX / 2 + 4, anchor="middle"))
        else:
            parts.append(_text(named, middle, y + 16, anchor="middle", bold=True))
            parts.append(_text(mark, middle, y + 30, anchor="middle", bold=True))
    below = y + BOX
    for first, last in row.brackets:
        left, right = _middle(first, box), _middle(last, box)
        parts.append(_line(f"M{left:g} {below:g}v8H{right:g}v-8", _THIN))
    return parts


def _lanes(row: _Row, top: float, box: float, ends: dict[_Group, list[float]]) -> list[str]:
    """Draw the NVLinks of a row, and note in ``ends`` where they meet the lines down the side."""
    parts = []
    boxes = top + LANE * len(row.lanes)
    for lane, group in enumerate(row.lanes):
        y = boxes - LANE * lane - 6
        columns = [n for n, place in enumerate(row.places) if place.uuid in group.uuids]
        middles = [_middle(column, box) for column in columns]
        stop = middles[-1] if group.rail is None else group.rail
        stubs = "".join(f"M{middle:g} {y:g}V{boxes:g}" for middle in middles)
        parts.append(_line(f"M{middles[0]:g} {y:g}H{stop:g}", _nvlink(group)))
        parts.append(_line(stubs, _NVLINK))
        parts += [_dot(middle, y) for middle in middles]
        parts.append(_text(group.words, middles[0] + 6, y - 4))
        if group.rail is not None:
            ends.setdefault(group, []).append(y)
    return parts


def _nvlink(group: _Group) -> str:
    return _NVLINK if group.whole else _BROKEN


def _rail(group: _Group, heights: Sequence[float]) -> str:
    assert group.rail is not None, "only such a group has ends"
    line = _line(f"M{group.rail:g} {heights[0]:g}V{heights[-1]:g}", _nvlink(group))
    return line + "".join(_dot(group.rail, y) for y in heights)


def _between(
    topology: Topology,
    above: Sequence[tuple[Place, ...]],
    below: Sequence[tuple[Place, ...]],
    top: float,
    groups: tuple[_Group, ...],
) -> str:
    """Draw the way between two NUMA nodes, where the driver says that there is one."""
    upper = {place.uuid for row in above for place in row}
    lower = {place.uuid for row in below for place in row}
    ends = (frozenset((link.one, link.other)) for link in topology.links if link.path == "system")
    if not any(pair & upper and pair & lower for pair in ends):
        return ""
    x = (MARGIN + _right(groups)) / 2
    line = _line(f"M{x:g} {top:g}v{BETWEEN:g}", _THIN)
    return line + _text("SYS: between CPUs", x + 6, top + BETWEEN / 2 + 4)


def _key(
    topology: Topology, groups: tuple[_Group, ...], marks: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the shapes that are there, by name, each with what it means."""
    key = []
    if any(group.whole for group in groups):
        key.append(("line", "NVLink between every pair that the line joins"))
    if not all(group.whole for group in groups):
        key.append(("broken line", "NVLink, but not between every pair"))
    if any(link.path in _BESIDE for link in topology.links):
        key.append(("bracket", "connected by PCIe switches, below the CPU"))
    if marks:
        key.append(("frame", "visible in this kernel"))
    return key


def _key_line(shape: str, words: str, top: float) -> str:
    middle = top + KEY / 2
    if shape == "bracket":
        drawn = _line(f"M8 {middle - 4:g}v8H40v-8", _THIN)
    elif shape == "frame":
        drawn = _frame(12, middle - 6, 24, 12, 3)
    else:
        drawn = _line(f"M8 {middle:g}H40", _NVLINK if shape == "line" else _BROKEN)
        drawn += _dot(8, middle) + _dot(40, middle)
    return drawn + _text(words, 50, middle + 4)


def _frame(x: float, y: float, width: float, height: float, stroke: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
        f'style="fill:none;stroke:currentColor;stroke-width:{stroke:g}"/>'
    )


def _line(path: str, style: str) -> str:
    return f'<path d="{path}" style="{style}"/>'


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" style="{_DOT}"/>'


def _text(words: str, x: float, y: float, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ";font-weight:bold" if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
        f'style="fill:currentColor;stroke:none;font-size:12px{weight}">'
        f"{html.escape(words, quote=True)}</text>"
    )


def _svg(content: str, height: float, label: str) -> str:
    said = html.escape(label, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{said}" '
        f'viewBox="0 0 {WIDTH:g} {height:g}" width="100%" '
        'style="display:block;max-width:520px;height:auto;margin:8px 0;font-family:inherit;'
        f'color:var(--jp-ui-font-color1,currentColor)"><title>{said}</title>{content}</svg>'
    )
