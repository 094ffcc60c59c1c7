import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_topology import numbers, topology_of

from jupyter_gpu.core.topology import PATHS, Link, Place, Topology, cpu_list, runs


@pytest.mark.parametrize(
    ("link", "kind", "short"),
    [
        (Link("a", "b", "node", True, 18, True), "nvlink", "NV18"),
        (Link("a", "b", None, True), "nvlink", "NV"),
        (Link("a", "b", "internal", False), "internal", "PSB"),
        (Link("a", "b", "single", False), "single", "PIX"),
        (Link("a", "b", "multiple"), "multiple", "PXB"),
        (Link("a", "b", "hostbridge"), "hostbridge", "PHB"),
        (Link("a", "b", "node"), "node", "NODE"),
        (Link("a", "b", "system", False), "system", "SYS"),
        (Link("a", "b", None, False), None, "–"),
        (Link("a", "b"), None, "–"),
    ],
)
def test_a_link_is_named_as_nvidia_smi_names_it(link, kind, short):
    assert (link.kind, link.short) == (kind, short)


def test_nearer_links_come_first_and_unknown_ones_last():
    nvlinks = [Link("a", "b", "system", True, count) for count in (18, 4, None)]
    over_pcie = [Link("a", "b", path, False) for path in PATHS]
    ordered = [*nvlinks, *over_pcie, Link("a", "b")]
    farthest_first = ordered[::-1]
    assert sorted(farthest_first, key=lambda link: link.distance) == ordered


def test_json_names_both_ends_and_says_null_for_what_is_unknown():
    assert Link("a", "b").as_json({"a": 0, "b": 3}) == {
        "uuids": ["a", "b"],
        "indices": [0, 3],
        "kind": None,
        "short": None,
        "nvlink": None,
        "nvlinks": None,
        "through_switch": None,
        "path": None,
    }


def test_links_among_some_gpus_come_in_the_order_of_their_pairs():
    topology = topology_of("two NVLink pairs")
    first, second, third, fourth = (place.uuid for place in topology.places)
    assert [link.short for link in topology.among((fourth, third, first))] == ["NV12", "SYS", "SYS"]
    assert topology.among((first,)) == topology.among(()) == topology.among((first, first)) == ()
    assert topology.among((second, "GPU-of-nobody")) == (Link(second, "GPU-of-nobody"),)


def test_a_place_is_found_by_uuid():
    topology = topology_of("eight on NVSwitch")
    assert all(topology.place(place.uuid) == place for place in topology.places)
    assert topology.place("GPU-of-nobody") is topology.place(None) is None


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("eight on NVSwitch", [tuple(range(8))]),
        ("two NVLink pairs", [(0, 1), (2, 3)]),
        ("eight on PCIe", []),
        ("one GPU", []),
        ("no GPU", []),
    ],
)
def test_nvlink_groups_are_what_nvlink_joins(name, groups):
    topology = topology_of(name)
    index_of = {place.uuid: place.index for place in topology.places}
    found = [tuple(index_of[uuid] for uuid in group) for group in topology.nvlink_groups()]
    assert found == groups


@given(st.integers(0, 9), st.data())
def test_whatever_is_joined_each_gpu_is_in_one_group_at_most(count, data):
    pairs = [(one, other) for other in range(count) for one in range(other)]
    joined = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    topology = Topology(
        tuple(Place(str(index), index) for index in range(count)),
        tuple(Link(str(one), str(other), nvlink=(one, other) in joined) for one, other in pairs),
    )
    groups = topology.nvlink_groups()
    members = [uuid for group in groups for uuid in group]
    assert len(members) == len(set(members))
    assert all(len(group) > 1 for group in groups)
    for one, other in joined:
        assert any({str(one), str(other)} <= set(group) for group in groups)
    assert set(members) == {str(end) for pair in joined for end in pair}


@given(st.sets(st.integers(0, 8191), min_size=1))
def test_a_list_of_cpus_says_exactly_which(cpus):
    assert set(numbers(cpu_list(cpus))) == cpus
    assert all(first <= last for first, last in runs(cpus))


def test_a_list_of_cpus_is_written_as_linux_writes_it():
    assert cpu_list((*range(32), *range(64, 96), 200)) == "0-31,64-95,200"
    assert cpu_list(None) is None
    assert cpu_list(()) == ""
