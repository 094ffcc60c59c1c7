import pytest

from jupyter_gpu.core.topology import PATHS, Link
from jupyter_gpu.core.topology_words import cpu_words, kind_meaning, together_words


def nvlink(count=None, switched=None):
    return Link("a", "b", "node", True, count, switched)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([nvlink(18, True)], "NVLink, 18 links through a switch"),
        ([nvlink(1)], "NVLink, 1 link"),
        ([nvlink(1), nvlink(2)], "NVLink, 1 to 2 links"),
        ([nvlink(), nvlink(4)], "NVLink, 4 links"),
        ([nvlink()], "NVLink"),
        ([Link("a", "b", "system", False)], "between CPUs"),
        ([Link("a", "b")], "the driver does not say"),
    ],
)
def test_a_kind_of_link_is_explained(links, words):
    assert words in kind_meaning(links)


def test_every_way_over_pcie_has_words_of_its_own():
    assert len({kind_meaning([Link("a", "b", path)]) for path in PATHS}) == len(PATHS)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([nvlink()], "joined by NVLink"),
        ([nvlink(), nvlink()], "NVLink between every pair"),
        ([nvlink(), Link("a", "c", "node")], "NVLink between some pairs"),
        ([Link("a", "b"), Link("a", "c")], "how they are connected is unknown"),
        ([Link("a", "b", "node")], "PCIe, and whether NVLink too is unknown"),
        ([Link("a", "b", "node", False)], "no NVLink, only PCIe"),
    ],
)
def test_several_gpus_together_are_said_in_a_few_words(links, words):
    assert together_words(links) == words


@pytest.mark.parametrize(
    ("cpus", "words"),
    [
        (None, "–"),
        ((*range(32), *range(64, 96)), "0-31, 64-95"),
        (range(0, 64, 2), "0, 2, 4 … 62"),
        ((5,), "5"),
    ],
)
def test_cpus_are_words_that_stay_short(cpus, words):
    assert cpu_words(cpus) == words
