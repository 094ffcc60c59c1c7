"""The topology as NVML reports it, over a double of the driver library."""

import dataclasses

import pytest
from doubles import DriverDouble, gpu, mig
from doubles.fixtures import driver_libraries, kept_reader
from support_topology import SHAPES, driver_gpus, topology_of

from jupyter_gpu.adapters.nvml_topology import read_topology
from jupyter_gpu.core.topology import Topology

__all__ = ["driver_libraries", "kept_reader"]

QUESTIONS = (
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetPciInfo",
)


@pytest.fixture
def read(kept_reader):
    """Write a machine and return the topology that our adapter reports of it."""
    double, ask = kept_reader

    def write_and_read(*gpus, **machine):
        double.write(*gpus, **machine)
        return ask(topology=True)

    return write_and_read


def shorts(topology):
    return [link.short for link in topology.links]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_read_as_it_is(read, name):
    assert read(*driver_gpus(name)) == topology_of(name)


@pytest.mark.parametrize("code", [2, 3, 4, 9, 13, 15, 16, 18, 25, 999])
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_refused_is_unknown_and_everything_else_stays(read, question, code):
    whole = topology_of("two NVLink pairs")
    refused = read(*driver_gpus("two NVLink pairs"), errors={question: code})
    assert [place.uuid for place in refused.places] == [place.uuid for place in whole.places]
    for link, known in zip(refused.links, whole.links, strict=True):
        for field in dataclasses.fields(link):
            found = getattr(link, field.name)
            assert found in (None, getattr(known, field.name)), (question, code, field.name)
    for place, known in zip(refused.places, whole.places, strict=True):
        assert place.cpus in (None, known.cpus)
        assert place.numa_node in (None, known.numa_node)


def test_a_gpu_that_answers_nothing_is_a_place_of_which_nothing_is_known(read):
    (place,) = read(gpu(0, errors=dict.fromkeys(QUESTIONS, 999))).places
    assert (place.index, place.numa_node, place.cpus) == (0, None, None)


@pytest.mark.parametrize("error", [{"*": 15}, {"nvmlDeviceGetHandleByIndex": 4}])
def test_a_lost_or_hidden_gpu_is_left_out_and_the_others_keep_their_index(read, error):
    first, second, third, _ = driver_gpus("two NVLink pairs")
    topology = read(first, second | {"errors": error}, third)
    assert [place.index for place in topology.places] == [0, 2]
    assert shorts(topology) == ["SYS"]


@pytest.mark.parametrize("question", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_fails_has_an_empty_topology(driver_libraries, tmp_path, question):
    double = DriverDouble(driver_libraries, tmp_path / "machine.json")
    double.write(gpu(0), errors={question: 9})
    with double.reader() as ask:
        assert ask(topology=True) == Topology()


def test_without_nvml_the_topology_is_empty():
    assert read_topology(None) == Topology()


def test_a_level_that_nobody_knows_yet_is_unknown(read):
    (link,) = read(gpu(0, ancestors={"1": 35}), gpu(1)).links
    assert (link.path, link.nvlink, link.kind, link.short) == (None, False, None, "–")


@pytest.mark.parametrize(
    ("lanes", "status", "nvlink", "count", "switched"),
    [
        ((["switch"] * 18, ["switch"] * 16), None, True, 16, True),
        (([1, 1, None], [0, 0, None]), None, True, 2, False),
        (([1, 1, "switch"], [0, 0, "switch"]), None, True, 2, False),
        ((["unknown"] * 4, ["unknown"] * 4), 0, True, None, None),
        ((None, None), 0, True, None, None),
        (([None] * 4, ["switch"] * 4), 6, False, None, None),
        ((["unknown"], ["unknown"]), 6, None, None, None),
        (([1], [0]), 6, True, 1, False),
        (([1], [0]), 4, True, 1, False),
        (([], []), None, False, None, None),
    ],
)
def test_nvlinks_are_counted_where_their_ends_are_known(
    read, lanes, status, nvlink, count, switched
):
    described = [gpu(index, nvlinks=own, p2p_status=status) for index, own in enumerate(lanes)]
    (link,) = read(*described).links
    assert (link.nvlink, link.nvlinks, link.through_switch) == (nvlink, count, switched)


def test_links_between_gpus_are_matched_whatever_the_spelling_of_the_address(read):
    near = gpu(0, pci_bus_id="00000000:AB:00.0", nvlinks=[1])
    far = gpu(1, pci_bus_id="00000000:CD:00.0", nvlinks=[0])
    assert shorts(read(near, far)) == ["NV1"]


def test_cpus_beyond_the_first_word_are_read(read):
    (place,) = read(gpu(0, cpus=[0, 63, 64, 1000, 8191])).places
    assert place.cpus == (0, 63, 64, 1000, 8191)


@pytest.mark.parametrize("nodes", [[], [0, 1], None])
def test_no_single_node_is_no_node(read, nodes):
    """The double's GPU stands in no /sys, which would be asked next."""
    nowhere = gpu(0, memory_nodes=nodes, pci_bus_id="0000FFFF:FE:1F.0")
    assert read(nowhere).places[0].numa_node is None


def test_a_mig_device_has_no_place_of_its_own(read):
    topology = read(gpu(0, mig_mode=True, mig=[mig(0), mig(1)]), gpu(1))
    assert [place.uuid for place in topology.places] == [gpu(0)["uuid"], gpu(1)["uuid"]]
