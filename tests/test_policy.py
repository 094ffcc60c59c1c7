"""The choice among devices."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.policy import (
    Candidate,
    choose,
    count_wanted,
    eligible,
    leasable,
    named,
    require_possible,
)
from jupyter_gpu.core.request import Request

GIB = 2**30


def gpu(index, **facts):
    facts = {"name": "NVIDIA H200", "memory_total_bytes": 140 * GIB, **facts}
    return Device(index, f"GPU-{index:02}", **facts)


def candidates(number=4, **reasons):
    """So many free GPUs; ``d2="leased"`` says why number 2 cannot be had."""
    return tuple(Candidate(gpu(i), reasons.get(f"d{i}")) for i in range(number))


def indices(choice):
    return None if choice is None else [device.index for device in choice.devices]


@pytest.mark.parametrize(
    ("options", "reasons", "chosen"),
    [
        ({}, {}, [0]),
        ({"gpus": 2}, {}, [0, 1]),
        ({"gpus": 2}, {"d0": "leased"}, [1, 2]),
        ({"gpus": "all"}, {}, [0, 1, 2, 3]),
        ({"gpus": "all"}, {"d3": "leased"}, None),
        ({"gpus": 4}, {"d3": "leased"}, None),
        ({"gpus": 5}, {}, None),
        ({"devices": [3, 1]}, {}, [3]),
        ({"gpus": 2, "devices": [3, 1]}, {}, [3, 1]),
        ({"gpus": 1, "devices": [3, 1]}, {"d3": "leased"}, [1]),
        ({"devices": ["gpu-02"]}, {}, [2]),
        ({"devices": [2]}, {"d2": "leased"}, None),
        ({"model": "h200"}, {}, [0]),
        ({"model": "L4"}, {}, None),
        ({"min_free_memory": "200GiB"}, {}, None),
    ],
)
def test_devices_are_chosen_by_name_then_by_index(options, reasons, chosen):
    assert indices(choose(Request.parse(options), candidates(**reasons))) == chosen


def test_what_the_notebook_had_last_time_comes_first():
    choice = choose(Request(gpus=2), candidates(), recent=("GPU-03",))
    assert indices(choice) == [0, 3]
    assert choice.because == ("physical 3 is what this notebook had last time",)


@pytest.mark.parametrize(
    ("recent", "why"),
    [
        (("GPU-00", "GPU-01", "GPU-02"), "what this notebook had last time"),
        (("GPU-02", "GPU-01"), "physical 1, 2 are what this notebook had last time"),
        (("GPU-09",), "free at that moment, lowest physical index first"),
    ],
)
def test_only_what_it_had_is_called_what_it_had(recent, why):
    assert choose(Request(gpus=3), candidates(), recent=recent).because == (why,)


def test_the_displays_gpu_is_left_for_last():
    some = (Candidate(gpu(0, display=True)), Candidate(gpu(1)), Candidate(gpu(2)))
    assert indices(choose(Request(gpus=1), some)) == [1]
    assert choose(Request(gpus=1), some).because == ("the display's GPU is left for last",)
    assert indices(choose(Request(gpus=3), some)) == [0, 1, 2]
    assert "too few others" in choose(Request(gpus=3), some).because[0]


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({}, "free at that moment, lowest physical index first"),
        ({"devices": [1]}, "asked for by name"),
        ({"model": "H200"}, "model H200"),
        ({"min_free_memory": "20GiB"}, "20.0 GiB of memory free"),
    ],
)
def test_a_choice_says_why(options, because):
    assert choose(Request.parse(options), candidates()).because == (because,)


def test_a_choice_names_uuids_in_visible_order():
    assert choose(Request.parse({"gpus": 2, "devices": [2, 0]}), candidates()).uuids == (
        "GPU-02",
        "GPU-00",
    )


def test_all_means_all_that_work():
    broken = dataclasses.replace(gpu(1), problem="lost")
    some = (Candidate(gpu(0)), Candidate(broken, "lost"))
    assert indices(choose(Request(gpus="all"), some)) == [0]


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ((gpu(0), gpu(1)), 2),
        ((gpu(0), gpu(1, problem="lost")), 1),
        ((gpu(0, problem="lost"), gpu(1, problem="lost")), 2),
        ((), 0),
    ],
)
def test_all_counts_what_works_or_else_everything(devices, wanted):
    assert count_wanted(Request(gpus="all"), devices) == wanted
    assert count_wanted(Request(gpus=7), devices) == 7


@pytest.mark.parametrize(
    ("device", "can_be"),
    [
        (gpu(0), True),
        (gpu(0, problem="lost"), True),
        (gpu(0, mig_mode=True), False),
        (Device(0, None, "lost"), False),
        (Device(0, "MIG-a", "part", kind="mig"), True),
    ],
)
def test_devices_with_a_name_are_leasable_and_gpus_in_mig_mode_are_not(device, can_be):
    assert leasable(device) == can_be


@pytest.mark.parametrize(
    ("name", "means"),
    [("2", True), ("02", True), ("3", False), ("GPU-02", True), ("gpu-0", True), ("GPU-03", False)],
)
def test_a_device_is_named_by_its_index_or_the_start_of_its_uuid(name, means):
    assert named(gpu(2), name) == means


def test_a_gpu_too_lost_for_a_uuid_is_named_by_its_index_only():
    lost = Device(2, None, "lost")
    assert named(lost, "2")
    assert not named(lost, "GPU-02")


def test_a_device_named_twice_serves_once():
    assert eligible(Request(devices=("1", "GPU-01")), (gpu(0), gpu(1))) == (gpu(1),)


POOL = tuple(gpu(i) for i in range(2))
MACHINE = Inventory("simulated", devices=(*POOL, gpu(2)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": 3}, "3 GPUs are asked for, and this machine has 3 GPUs"),
        ({"devices": [9]}, "There is no device 9 here: this machine has 3 GPUs"),
        ({"devices": [2]}, "Device 2 is outside the pool"),
        ({"devices": [0, "GPU-00"]}, "two names mean the same device"),
        ({"gpus": 2, "devices": [0]}, "2 GPUs out of device 0 are asked for"),
        ({"model": "L4"}, "1 GPU of model L4 is asked for"),
        ({"gpus": "all", "model": "L4"}, "All GPUs of model L4 are asked for"),
        ({"min_free_memory": "1TiB"}, "1 GPU with 1024.0 GiB free is asked for"),
    ],
)
def test_what_this_machine_can_never_do_is_refused_with_what_it_has(options, sentence):
    with pytest.raises(ImpossibleRequest) as caught:
        require_possible(Request.parse(options), MACHINE, POOL, "A Slurm job")
    assert sentence in str(caught.value)
    assert "NVIDIA H200 (140.0 GiB)" in str(caught.value)
    assert str(caught.value).endswith("A Slurm job leaves 0, 1.")


@pytest.mark.parametrize(
    "options", [{"gpus": 0}, {"gpus": 2}, {"gpus": "all"}, {"gpus": 1, "devices": [1, 0]}]
)
def test_what_this_machine_could_do_is_not_refused(options):
    require_possible(Request.parse(options), MACHINE, POOL)


def test_a_machine_without_gpus_says_why():
    nothing = Inventory("none", problem="There is no NVIDIA driver.")
    with pytest.raises(ImpossibleRequest, match="no GPU that can be seen"):
        require_possible(Request(), nothing, ())
    require_possible(Request(gpus=0), nothing, ())


def test_a_gpu_in_mig_mode_is_not_for_whole_requests_and_the_sentence_says_so():
    split = dataclasses.replace(gpu(0), mig_mode=True, problem="in MIG mode")
    with pytest.raises(ImpossibleRequest, match="in MIG mode"):
        require_possible(Request(), Inventory("simulated", devices=(split,)), (split,))


CANDIDATES = st.lists(
    st.tuples(st.sampled_from([None, "leased"]), st.booleans(), st.sampled_from(["H200", "L4"])),
    max_size=8,
).map(
    lambda rows: tuple(
        Candidate(gpu(i, display=display, name=model), reason)
        for i, (reason, display, model) in enumerate(rows)
    )
)
REQUESTS = st.builds(
    Request,
    gpus=st.integers(1, 4) | st.just("all"),
    model=st.sampled_from([None, "H200"]),
    devices=st.lists(st.integers(0, 7).map(str), max_size=3, unique=True).map(tuple),
)
RECENT = st.lists(st.integers(0, 7).map(lambda i: f"GPU-{i:02}"), max_size=3).map(tuple)


@given(REQUESTS, CANDIDATES, RECENT)
def test_the_choice_is_the_same_every_time_and_only_of_free_devices(request, some, recent):
    choice = choose(request, some, recent)
    assert choice == choose(request, some, recent)
    serving = eligible(request, tuple(c.device for c in some))
    wanted = count_wanted(request, serving)
    free = [c.device for c in some if c.reason is None and c.device in serving]
    if choice is None:
        assert not wanted or len(free) < wanted
    else:
        assert len(choice.devices) == wanted == len(set(choice.devices))
        assert set(choice.devices) <= set(free)
        assert choice.because
