import random
import time
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_topology import numbers, topology_of

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.neighbours import (
    affinity_words,
    best_words,
    closest,
    cpus_near,
    joined_words,
)
from jupyter_gpu.core.topology import PATHS, Link, Place, Topology

SWITCHED, PAIRS, PCIE = "eight on NVSwitch", "two NVLink pairs", "eight on PCIe"
FEW_GPUS = 7


def gpus(topology, *indices):
    """The GPUs of a topology, all of them or those with these indices in this order."""
    found = {p.index: Device(p.index, p.uuid, "NVIDIA X") for p in topology.places}
    return tuple(found[index] for index in indices or found)


def mig(gpu, number):
    return Device(gpu.index, f"MIG-{gpu.index}-{number}", "X", "mig", gpu.uuid, "1g.18gb")


def indices(devices):
    return None if devices is None else [device.index for device in devices]


def of_links(count, *links):
    """A topology of so many GPUs; each link is two indices, a path, and the NVLinks if any."""
    return Topology(
        tuple(Place(f"GPU-{index}", index) for index in range(count)),
        tuple(
            Link(f"GPU-{one}", f"GPU-{other}", path, nvlink, count_of or None)
            for one, other, path, nvlink, count_of in links
        ),
    )


@st.composite
def topologies(draw, most=FEW_GPUS):
    count = draw(st.integers(1, most))
    kinds = st.tuples(
        st.sampled_from([*PATHS, None]),
        st.sampled_from([True, True, False, None]),
        st.sampled_from([None, 2, 4, 18]),
    )
    links = []
    for one, other in combinations(range(count), 2):
        if draw(st.integers(0, 9)):  # the topology does not know every pair
            path, nvlink, lanes = draw(kinds)
            links.append((one, other, path, nvlink, lanes if nvlink else None))
    return of_links(count, *links)


def links_of(topology, devices):
    return topology.among(device.uuid for device in devices)


def badness(topology, ranked, devices):
    """The stated order of sets, spelled out: what is smaller is taken first."""
    links = links_of(topology, devices)
    kinds = [(link.distance[0], link.distance[1]) for link in links]
    return (
        max(kinds),
        sum(kind for kind, _ in kinds),
        sum(lanes for _, lanes in kinds),
        [ranked.index(device) for device in devices],
    )


@given(topologies(), st.data())
def test_no_other_set_is_nearer(topology, data):
    ranked = tuple(data.draw(st.permutations(gpus(topology))))
    wanted = data.draw(st.integers(1, len(ranked)))
    found = closest(ranked, wanted, topology, require=False)
    assert len(set(found)) == wanted
    assert sorted(found, key=ranked.index) == list(found)
    if wanted == 1:
        assert found == ranked[:1]
    else:
        every = combinations(ranked, wanted)
        assert found == min(every, key=lambda one: badness(topology, ranked, one))


@given(topologies(), st.data())
def test_what_requires_nvlink_gets_nvlink_between_every_pair_or_nothing(topology, data):
    ranked = tuple(data.draw(st.permutations(gpus(topology))))
    wanted = data.draw(st.integers(1, len(ranked)))
    found = closest(ranked, wanted, topology, require=True)
    joined = [
        one
        for one in combinations(ranked, wanted)
        if all(link.nvlink for link in links_of(topology, one))
    ]
    assert (found is None) == (joined == [])
    assert found is None or found in joined


@given(topologies(), st.randoms(use_true_random=False), st.integers(1, FEW_GPUS))
def test_the_order_in_which_the_driver_tells_links_does_not_matter(topology, chance, wanted):
    turned = [Link(x.other, x.one, x.path, x.nvlink, x.nvlinks) for x in topology.links]
    places = list(topology.places)
    chance.shuffle(turned)
    chance.shuffle(places)
    again = Topology(tuple(places), tuple(turned))
    ranked = gpus(topology)
    for require in (False, True):
        assert closest(ranked, wanted, topology, require=require) == closest(
            ranked, wanted, again, require=require
        )


@given(topologies(), st.data())
def test_words_say_nvlink_only_where_it_is(topology, data):
    devices = tuple(data.draw(st.permutations(gpus(topology))))
    links = links_of(topology, devices)
    words = joined_words(devices, topology)
    assert words.startswith("joined by NVLink") == (
        links != () and all(link.nvlink for link in links)
    )
    assert "\n" not in words
    wanted = data.draw(st.integers(1, len(devices)))
    best = best_words(devices, wanted, topology)
    if closest(devices, wanted, topology, require=True) is None:
        assert "NVLink" in best or "unknown" in best


@pytest.mark.parametrize(
    ("shape", "free", "wanted", "prefer", "require"),
    [
        (SWITCHED, (), 2, [0, 1], [0, 1]),
        (SWITCHED, (3, 6, 7), 2, [3, 6], [3, 6]),
        (SWITCHED, (), 8, list(range(8)), list(range(8))),
        (SWITCHED, (0, 1), 3, None, None),
        (PAIRS, (), 1, [0], [0]),
        (PAIRS, (), 2, [0, 1], [0, 1]),
        (PAIRS, (1, 2, 3), 2, [2, 3], [2, 3]),
        (PAIRS, (3, 2, 1, 0), 2, [3, 2], [3, 2]),
        (PAIRS, (1, 2), 2, [1, 2], None),
        (PAIRS, (), 3, [0, 1, 2], None),
        (PAIRS, (), 4, [0, 1, 2, 3], None),
        (PCIE, (), 2, [0, 1], None),
        (PCIE, (1, 2, 3), 2, [2, 3], None),
        (PCIE, (1, 2, 4, 6, 7), 2, [6, 7], None),
        (PCIE, (1, 4, 2), 2, [1, 2], None),
        (PCIE, (1, 4, 6), 2, [4, 6], None),
        (PCIE, (7, 6, 0, 1), 2, [7, 6], None),
        (PCIE, (3, 4, 5, 6, 7), 4, [4, 5, 6, 7], None),
        (PCIE, (0, 1, 4, 5, 6), 3, [4, 5, 6], None),
        (PCIE, (), 4, [0, 1, 2, 3], None),
        (PCIE, (0, 2, 4, 5), 3, [0, 4, 5], None),
    ],
)
def test_neighbours_on_recorded_machines(shape, free, wanted, prefer, require):
    topology = topology_of(shape)
    ranked = gpus(topology, *free)
    assert indices(closest(ranked, wanted, topology, require=False)) == prefer
    assert indices(closest(ranked, wanted, topology, require=True)) == require


def test_more_nvlinks_come_before_fewer():
    topology = of_links(3, (0, 1, "single", True, 2), (0, 2, "node", True, 4))
    assert indices(closest(gpus(topology), 2, topology, require=False)) == [0, 2]


def test_nvlinks_that_come_late_in_a_set_count_too():
    links = {(0, 1): 2, (0, 2): 2, (1, 2): 2, (0, 3): 2, (1, 3): 2, (2, 3): 18}
    topology = of_links(4, *((*pair, "node", True, count) for pair, count in links.items()))
    assert indices(closest(gpus(topology), 3, topology, require=False)) == [0, 2, 3]


def test_nvlink_between_all_comes_before_one_that_is_near_on_pcie():
    topology = of_links(3, (0, 1, "internal", False, None), (1, 2, "system", True, None))
    assert indices(closest(gpus(topology), 2, topology, require=False)) == [1, 2]


def test_a_pair_that_is_unknown_is_farther_than_any_other():
    topology = of_links(3, (1, 2, "system", False, None))
    assert indices(closest(gpus(topology), 2, topology, require=False)) == [1, 2]
    assert closest(gpus(topology), 2, topology, require=True) is None
    assert indices(closest(gpus(topology), 2, Topology(), require=False)) == [0, 1]


def test_no_device_at_all_is_an_answer_too():
    assert closest((), 0, Topology(), require=True) == ()
    assert closest((), 1, Topology(), require=False) is None


def test_a_lost_gpu_without_a_uuid_is_nobodys_neighbour():
    topology = topology_of(PCIE)
    lost = (Device(8, None, "X"), Device(9, None, "X"))
    assert indices(closest((*lost, *gpus(topology)), 2, topology, require=False)) == [0, 1]
    assert joined_words(lost, topology) == "how they are joined is unknown"


def test_a_mig_device_stands_where_its_gpu_stands():
    topology = topology_of(PCIE)
    zero, one, four = gpus(topology, 0, 1, 4)
    parts = (mig(four, 1), mig(zero, 1), mig(one, 1), mig(zero, 2))
    assert closest(parts, 2, topology, require=False) == (parts[1], parts[3])
    assert closest(parts[:3], 2, topology, require=False) == (parts[1], parts[2])
    assert joined_words((parts[1], parts[3]), topology) == "parts of one GPU"
    assert joined_words(parts[1:3], topology) == (
        "no NVLink between them: the closest path is over one PCIe switch (PIX)"
    )


def test_nvlink_does_not_reach_a_mig_device():
    topology = topology_of(SWITCHED)
    zero, one, two = gpus(topology, 0, 1, 2)
    assert closest((mig(zero, 1), mig(one, 1), two), 2, topology, require=True) is None
    assert best_words((mig(zero, 1), mig(zero, 2), one), 2, topology) == (
        "NVLink joins none of the 3 devices here; the closest 2 are "
        "MIG 1g.18gb on 0 and MIG 1g.18gb on 0, on one board (PSB)"
    )


@pytest.mark.parametrize("wanted", [2, 5, 16, 64, 100, 126, 127, 128])
def test_of_128_devices_the_nearest_are_found_at_once(wanted):
    chance = random.Random(wanted)
    kinds = [*((path, False, None) for path in PATHS), ("node", True, 4), (None, None, None)]
    topology = of_links(
        128, *((*pair, *chance.choice(kinds)) for pair in combinations(range(128), 2))
    )
    ranked = gpus(topology)
    taken = []
    for _ in range(2):
        begin = time.process_time()
        taken.append(closest(ranked, wanted, topology, require=False))
        spent = time.process_time() - begin
    assert taken[0] == taken[1]
    assert len(set(taken[0])) == wanted
    assert spent < 0.5  # about 0.04 on one core; a coverage run takes several times as long


@pytest.mark.parametrize("wanted", [2, 8, 16, 24, 64])
def test_sets_that_are_grown_keep_to_the_groups_of_a_large_machine(wanted):
    # Groups of 16 that NVLink joins, of which the 1st, 3rd and so on stand on the first node;
    # the ranks go round the groups in turn.
    links = []
    for one, other in combinations(range(128), 2):
        path = "node" if one % 8 % 2 == other % 8 % 2 else "system"
        links.append((one, other, path, one % 8 == other % 8, 18))
    topology = of_links(128, *links)
    found = closest(gpus(topology), wanted, topology, require=False)
    groups = sorted({device.index % 8 for device in found})
    assert groups == list(range(0, 8, 2))[: -(-wanted // 16)]
    joined = closest(gpus(topology), wanted, topology, require=True)
    assert joined == (found if wanted <= 16 else None)


@settings(max_examples=30)
@given(st.integers(17, 24), st.integers(6, 12), st.randoms(use_true_random=False))
def test_sets_that_are_grown_never_pass_for_joined(count, wanted, chance):
    pairs = combinations(range(count), 2)
    topology = of_links(
        count, *((*pair, "node", chance.random() < 0.9, chance.choice([2, 4])) for pair in pairs)
    )
    found = closest(gpus(topology), wanted, topology, require=True)
    if found is not None:
        assert len(set(found)) == wanted
        assert all(link.nvlink for link in links_of(topology, found))
    assert len(set(closest(gpus(topology), wanted, topology, require=False))) == wanted


@pytest.mark.parametrize(
    ("shape", "which", "words"),
    [
        (SWITCHED, (0, 5), "joined by NVLink (NV18)"),
        (SWITCHED, (), "joined by NVLink (NV18)"),
        (PAIRS, (2, 3), "joined by NVLink (NV12)"),
        (PAIRS, (0, 2), "no NVLink between them: the closest path is over the link between CPUs"),
        (PAIRS, (), "NVLink between some of them: the farthest two are joined over the link"),
        (PCIE, (0, 1), "the closest path is over one PCIe switch (PIX)"),
        (PCIE, (0, 1, 2), "the farthest two are joined over several PCIe switches (PXB)"),
        (PCIE, (3,), "one device, which needs no neighbour"),
    ],
)
def test_it_says_how_devices_are_joined(shape, which, words):
    topology = topology_of(shape)
    assert words in joined_words(gpus(topology, *which), topology)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([(0, 1, None, True, None)], "joined by NVLink"),
        ([(0, 1, None, None, None)], "how they are joined is unknown"),
        (
            [(0, 1, "single", None, None)],
            "joined over one PCIe switch (PIX); whether by NVLink too is unknown",
        ),
        (
            [(0, 1, None, False, None)],
            "no NVLink that is known of, and not every path between them is known",
        ),
        (
            [(0, 1, None, True, 2), (0, 2, None, True, 4), (1, 2, None, True, 3)],
            "joined by NVLink (NV2 to NV4)",
        ),
        (
            [(0, 1, None, True, 2), (0, 2, "node", False, None)],
            "NVLink between some of them: for the others it is unknown",
        ),
        (
            [(0, 1, "node", False, None), (0, 2, "node", False, None)],
            "no NVLink that is known of, and not every path between them is known",
        ),
    ],
)
def test_what_is_unknown_is_said_to_be_unknown(links, words):
    topology = of_links(1 + max(other for _, other, *_ in links), *links)
    assert joined_words(gpus(topology), topology) == words


def test_what_would_be_best_names_the_pairs_and_the_nearest():
    kinds = {(0, 1): True, (2, 3): True}
    topology = of_links(
        4, *((*pair, "hostbridge", pair in kinds, 4) for pair in combinations(range(4), 2))
    )
    assert best_words(gpus(topology), 3, topology) == (
        "NVLink joins at most 2 here (0 and 1; 2 and 3); "
        "the closest 3 are 0, 1, 2, over the CPU's host bridge (PHB)"
    )


@pytest.mark.parametrize(
    ("shape", "wanted", "words"),
    [
        (
            PAIRS,
            4,
            "NVLink joins at most 2 here (0 and 1; 2 and 3); the closest 4 are 0, 1, 2, 3, ",
        ),
        (PCIE, 2, "NVLink joins none of the 8 devices here; the closest 2 are 0 and 1, over one "),
        (PCIE, 9, "only 8 devices here could serve"),
        (PAIRS, 2, "the closest 2 are 0 and 1, joined by NVLink (NV12)"),
    ],
)
def test_what_would_be_best_on_recorded_machines(shape, wanted, words):
    topology = topology_of(shape)
    assert best_words(gpus(topology), wanted, topology).startswith(words)


def test_what_would_be_best_is_not_claimed_where_links_are_unknown():
    three = gpus(of_links(3))
    assert best_words(three, 2, Topology()) == "how the devices here are joined is unknown"
    topology = of_links(3, (0, 1, "single", True, 2))
    assert best_words(three, 3, topology) == (
        "NVLink is known to join at most 2 here (0 and 1); "
        "the closest 3 are 0, 1, 2, but how they are joined is not all known"
    )


def test_many_groups_are_not_all_named():
    topology = of_links(
        12,
        *(
            (*pair, "system", pair[0] // 2 == pair[1] // 2, 4)
            for pair in combinations(range(12), 2)
        ),
    )
    words = best_words(gpus(topology), 3, topology)
    assert "(0 and 1; 2 and 3; 4 and 5; 6 and 7; …)" in words


def test_the_cpus_near_devices_are_those_of_their_places():
    topology = topology_of(PCIE)
    assert cpus_near(gpus(topology, 1), topology) == (*range(32), *range(64, 96))
    assert cpus_near(gpus(topology, 6, 0), topology) == tuple(range(128))
    assert cpus_near((mig(gpus(topology, 4)[0], 1),), topology) == (
        *range(32, 64),
        *range(96, 128),
    )


def test_cpus_that_are_unknown_are_none_and_those_of_others_count():
    topology = Topology((Place("GPU-0", 0), Place("GPU-1", 1, 0, (4, 2)), Place("GPU-2", 2, 0, ())))
    assert cpus_near(gpus(topology, 0), topology) is None
    assert cpus_near(gpus(topology, 2), topology) is None
    assert cpus_near(gpus(topology), topology) == (2, 4)
    assert cpus_near((Device(5, None, "X"),), topology) is None
    assert cpus_near((), topology) is None


@pytest.mark.parametrize(
    ("which", "cpus", "words"),
    [
        ((0,), "0-31,64-95", "on the CPUs near it: NUMA node 0 (0-31,64-95)"),
        ((4, 5), "32-63,96-127", "on the CPUs near them: NUMA node 1 (32-63,96-127)"),
        ((0, 4), "0-127", "on the CPUs near them: NUMA nodes 0 and 1 (0-127)"),
        ((0,), "0-3", "on those CPUs that may be used near it: NUMA node 0 (0-3)"),
    ],
)
def test_it_says_on_which_cpus_a_kernel_runs(which, cpus, words):
    topology = topology_of(PCIE)
    assert affinity_words(gpus(topology, *which), topology, tuple(numbers(cpus))) == words


@pytest.mark.parametrize(
    ("shape", "allowed", "words"),
    [
        (PCIE, None, "on any CPU: this system does not let one choose"),
        (PCIE, "0-7", "all CPUs that may be used are near it: NUMA node 0 (0-7)"),
        (PCIE, "40-47", "on any CPU: none of those near it may be used (0-31,64-95)"),
    ],
)
def test_it_says_why_a_kernel_is_not_bound(shape, allowed, words):
    topology = topology_of(shape)
    may = None if allowed is None else frozenset(numbers(allowed))
    assert affinity_words(gpus(topology, 0), topology, None, may) == words


def test_cpus_without_a_node_and_scattered_ones_are_said_in_short():
    without = Topology((Place("GPU-0", 0, None, (0, 1)),))
    assert affinity_words(gpus(without), without, (0, 1)) == "on the CPUs near it (0-1)"
    unknown = Topology((Place("GPU-0", 0),))
    assert affinity_words(gpus(unknown), unknown, None) == (
        "on any CPU: which are near it is unknown"
    )
    half = Topology((Place("GPU-0", 0, None, (0, 1)), Place("GPU-1", 1, 0, (2, 3))))
    assert affinity_words(gpus(half), half, (0, 1, 2, 3)) == "on the CPUs near them (0-3)"
    scattered = topology_of(PAIRS)
    one = gpus(scattered, 2)
    assert affinity_words(one, scattered, cpus_near(one, scattered)) == (
        "on the CPUs near it: NUMA node 1 (1, 3, 5 … 63)"
    )
