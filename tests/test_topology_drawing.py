import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_topology import SHAPES, topology_of

from jupyter_gpu.core.topology import Link, Place, Topology
from jupyter_gpu.core.topology_drawing import WIDTH, topology_drawing

HOSTILE = """<script>alert(1)</script>"'&</svg>"""
LETTER = 7.4  # a wide font's letter at 12 px


class Drawing(HTMLParser):
    """The parts of a drawing, as a browser reads them."""

    def __init__(self, svg):
        super().__init__()
        # HTML's parser gives names of attributes in lower case: ``viewbox``.
        self.parts, self.words, self.open, self.place = [], [], [], {}
        self.feed(svg)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.parts.append((tag, dict(attrs)))
        self.open.append(tag)
        self.place = dict(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append((data, self.open[-1], self.place))

    def attributes(self, tag):
        return [attributes for name, attributes in self.parts if name == tag]

    def texts(self):
        return [words for words, tag, _ in self.words if tag == "text"]


def joined(count, pairs, *, nodes=None, path=None):
    """A topology of so many GPUs, of which these pairs have NVLink."""
    nodes = nodes or [0] * count
    return Topology(
        tuple(Place(str(n), n, nodes[n], (n,)) for n in range(count)),
        tuple(
            Link(str(one), str(other), path, (one, other) in pairs, 2)
            for other in range(count)
            for one in range(other)
        ),
    )


def inside(drawing):
    """Whether everything stays within the drawing, words included."""
    (svg,) = drawing.attributes("svg")
    _, _, width, height = map(float, svg["viewbox"].split())
    for frame in drawing.attributes("rect"):
        assert float(frame["x"]) + float(frame["width"]) <= width
        assert float(frame["y"]) + float(frame["height"]) <= height
    for dot in drawing.attributes("circle"):
        assert 4 <= float(dot["cx"]) <= width - 4
        assert 4 <= float(dot["cy"]) <= height - 4
    for line in drawing.attributes("path"):
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)", line["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height
    for words, tag, place in drawing.words:
        if tag == "text" and place["text-anchor"] == "start":
            assert float(place["x"]) + LETTER * len(words) <= width + 8, words
    return True


@pytest.mark.parametrize("name", [name for name in SHAPES if len(SHAPES[name]["levels"]) > 1])
def test_every_gpu_is_in_the_drawing_once_and_everything_is_inside(name):
    topology = topology_of(name)
    drawing = Drawing(topology_drawing(topology, {}, "words"))
    for place in topology.places:
        assert drawing.texts().count(f"GPU {place.index}") == 1
    assert inside(drawing)


def test_one_gpu_or_none_needs_no_drawing():
    assert topology_drawing(topology_of("one GPU"), {}, "words") == ""
    assert topology_drawing(topology_of("no GPU"), {}, "words") == ""


def test_it_says_in_words_what_it_shows_for_those_who_do_not_see_it():
    drawing = Drawing(topology_drawing(topology_of("two NVLink pairs"), {}, "4 GPUs: in pairs"))
    (svg,) = drawing.attributes("svg")
    assert (svg["role"], svg["aria-label"]) == ("img", "4 GPUs: in pairs")
    assert ("4 GPUs: in pairs", "title", {}) in drawing.words


def test_it_fits_a_narrow_place_and_both_themes():
    svg = topology_drawing(topology_of("eight on NVSwitch"), {"x": "cuda:0"}, "words")
    (attributes,) = Drawing(svg).attributes("svg")
    assert attributes["width"] == "100%"
    assert "max-width" in attributes["style"]
    assert attributes["viewbox"].startswith(f"0 0 {WIDTH:g} ")
    colours = set(re.findall(r"(?:fill|stroke|color):([^;\"]+)", svg))
    assert colours == {
        "none",
        "currentColor",
        "var(--jp-brand-color1,currentColor)",
        "var(--jp-ui-font-color1,currentColor)",
    }


def test_what_a_kernel_sees_has_its_name_and_a_frame_of_its_own():
    topology = topology_of("two NVLink pairs")
    seen = topology.places[2].uuid
    plain = Drawing(topology_drawing(topology, {}, "words"))
    marked = Drawing(topology_drawing(topology, {seen: "cuda:0"}, "words"))
    assert "cuda:0" in marked.texts()
    assert "visible in this kernel" in marked.texts()
    assert "visible in this kernel" not in plain.texts()
    bold = [frame for frame in marked.attributes("rect") if "stroke-width:3" in frame["style"]]
    assert len(bold) == 2, "the GPU and the key"


@pytest.mark.parametrize(
    ("name", "words", "never"),
    [
        ("eight on NVSwitch", {"NV18", "SYS: between CPUs"}, "not between every pair"),
        ("two NVLink pairs", {"NV12", "SYS: between CPUs"}, "PCIe switches"),
        ("eight on PCIe", {"SYS: between CPUs"}, "NVLink"),
    ],
)
def test_each_shape_is_told_apart(name, words, never):
    drawing = Drawing(topology_drawing(topology_of(name), {}, "words"))
    assert words <= set(drawing.texts())
    assert not any(never in text for text in drawing.texts())


def test_a_group_in_which_not_every_pair_is_joined_has_a_broken_line():
    svg = topology_drawing(joined(3, {(0, 1), (1, 2)}), {}, "words")
    assert "stroke-dasharray:8 4" in svg
    assert "NVLink, but not between every pair" in Drawing(svg).texts()
    whole = topology_drawing(joined(3, {(0, 1), (1, 2), (0, 2)}), {}, "words")
    assert "stroke-dasharray:8 4" not in whole


def test_a_group_over_several_rows_is_one_line_down_the_side():
    drawing = Drawing(topology_drawing(joined(8, {(0, 7)}, nodes=[0] * 4 + [1] * 4), {}, "words"))
    dots = drawing.attributes("circle")
    assert len({dot["cx"] for dot in dots} - {"8", "40"}) == 3
    assert inside(drawing)


def test_neighbours_on_pcie_stand_beside_each_other():
    links = (Link("0", "1", "node"), Link("0", "2", "single"), Link("1", "2", "node"))
    places = tuple(Place(str(n), n, 0) for n in range(3))
    drawing = Drawing(topology_drawing(Topology(places, links), {}, "words"))
    assert drawing.texts()[1:4] == ["GPU 0", "GPU 2", "GPU 1"]


def test_cpus_are_named_where_they_fit():
    short = joined(2, set())
    assert "NUMA node 0 · CPUs 0" in Drawing(topology_drawing(short, {}, "words")).texts()
    scattered = Place("0", 0, 0, (1000, 1020, 1040, 3000, 4000, 8000))
    unknown = Place("1", 1)
    texts = Drawing(topology_drawing(Topology((scattered, unknown)), {}, "words")).texts()
    assert "NUMA node 0" in texts
    assert "NUMA node unknown" in texts


@given(st.text(min_size=1) | st.just(HOSTILE))
def test_whatever_a_name_is_it_is_only_text(text):
    plain = Drawing(topology_drawing(joined(2, {(0, 1)}), {"0": "x"}, "x"))
    named = Drawing(topology_drawing(joined(2, {(0, 1)}), {"0": text}, text))
    assert [tag for tag, _ in named.parts] == [tag for tag, _ in plain.parts]


@given(st.integers(2, 20), st.data())
def test_whatever_is_joined_the_drawing_stays_inside(count, data):
    pairs = [(one, other) for other in range(count) for one in range(other)]
    chosen = data.draw(st.sets(st.sampled_from(pairs), max_size=12))
    nodes = data.draw(st.lists(st.sampled_from((None, 0, 1)), min_size=count, max_size=count))
    path = data.draw(st.sampled_from((None, "single", "node", "system")))
    topology = joined(count, chosen, nodes=nodes, path=path)
    drawing = Drawing(topology_drawing(topology, {"0": "cuda:0"}, "words"))
    assert sum(text.startswith("GPU ") for text in drawing.texts()) == count
    assert inside(drawing)
