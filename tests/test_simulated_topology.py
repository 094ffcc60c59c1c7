import os

import pytest

from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.adapters.simulated_topology import GivenLink, WrongLinksError, read_links
from jupyter_gpu.core.errors import SimulationError
from jupyter_gpu.core.topology import cpu_list


def simulated():
    with find_machine(os.environ) as machine:
        return machine.topology()


def shorts(topology):
    return [link.short for link in topology.links]


def described(links, **keys):
    """A machine of as many GPUs as there are descriptions of links."""
    return {"gpus": [{"name": "NVIDIA X", "links": own, **keys} for own in links]}


@pytest.mark.parametrize(
    ("machine", "links"),
    [("8xH200", 18), ("8xH100", 18), ("4xA100", 12), ("16xV100", 6), ("2xB200", 18)],
)
def test_models_of_an_nvswitch_board_are_all_joined(simulate, machine, links):
    inventory = simulate(machine)
    topology = simulated()
    assert [place.uuid for place in topology.places] == [gpu.uuid for gpu in inventory.gpus]
    assert set(shorts(topology)) == {f"NV{links}"}
    assert all(link.through_switch for link in topology.links)


@pytest.mark.parametrize("machine", ["8xL4", "4xT4", "2xRTX4090", "4xL40S", "2xA10"])
def test_other_models_are_joined_by_pcie(simulate, machine):
    simulate(machine)
    assert {link.nvlink for link in simulated().links} == {False}


def test_different_models_are_not_joined_by_nvlink(simulate):
    simulate("2xH200+1xH100")
    assert shorts(simulated()) == ["NV18", "NODE", "NODE"]


def test_more_than_four_gpus_stand_on_two_nodes(simulate):
    simulate("8xL4")
    topology = simulated()
    assert [place.numa_node for place in topology.places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cpu_list(topology.places[0].cpus) == "0-47,96-143"
    assert cpu_list(topology.places[7].cpus) == "48-95,144-191"
    assert shorts(topology)[:4] == ["PIX", "NODE", "NODE", "SYS"]
    simulate("4xL4")
    assert {place.numa_node for place in simulated().places} == {0}


def test_a_gpu_in_mig_mode_is_not_joined(simulate):
    part = {"profile": "1g.18gb"}
    simulate({"gpus": [{"name": "NVIDIA H200", "mig": [part]}, *[{"name": "NVIDIA H200"}] * 2]})
    assert [link.nvlink for link in simulated().links] == [False, False, True]


def test_links_that_are_described_stand_for_themselves(simulate):
    simulate(described([{"1": "nvlink", "2": "PXB"}, {}, {"3": "NV4"}, {"0": "system"}]))
    assert shorts(simulated()) == ["NV", "PXB", "SYS", "–", "–", "NV4"]
    simulate({"gpus": [{"name": "NVIDIA H200", "links": {}}, {"name": "NVIDIA H200"}]})
    assert [link.nvlink for link in simulated().links] == [False]


def test_numa_nodes_that_are_described_tell_the_way_over_pcie(simulate):
    gpus = [{"name": "NVIDIA H200", "numa_node": node} for node in (0, 1, None, 0)]
    simulate({"gpus": gpus})
    topology = simulated()
    assert [place.numa_node for place in topology.places] == [0, 1, None, 0]
    assert [link.path for link in topology.links] == ["system", None, "node", None, "system", None]
    assert topology.places[2].cpus is None


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([{"1": "rope"}, {}], "'rope' is no kind of link"),
        ([{"1": 18}, {}], "18 is no kind of link"),
        ([{"1": "NV0"}, {}], "no kind of link"),
        ([{"2": "nvlink"}, {}], "names no other GPU by '2'"),
        ([{"0": "nvlink"}, {}], "names no other GPU by '0'"),
        ([{"-1": "nvlink"}, {}], "names no other GPU by '-1'"),
        ([{"1": "NV4"}, {"0": "NV2"}], "GPU 0 and GPU 1 disagree"),
        ([["nvlink"], {}], "'links' is an object"),
    ],
)
def test_wrong_links_are_told_at_every_reading(simulate, links, words):
    with pytest.raises(SimulationError, match=words):
        simulate(described(links))
    with pytest.raises(SimulationError, match=words):
        simulated()
    with pytest.raises(WrongLinksError, match=words):
        read_links(described(links)["gpus"])


def test_a_link_may_be_named_on_both_sides():
    links = read_links(described([{"1": "nv2"}, {"0": "NV2"}])["gpus"])
    assert links == (GivenLink(0, 1, None, 2, nvlink=True),)
    assert read_links([{"name": "NVIDIA X"}]) is None
    assert read_links([{"links": None}, {"links": {}}]) == ()
    assert read_links([{"links": None}]) is read_links([]) is None


def test_a_machine_without_gpus_has_an_empty_topology(simulate):
    simulate({"gpus": []})
    assert simulated().places == simulated().links == ()
