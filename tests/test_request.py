"""What a kernel asks for, read strictly."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.request import OPTIONS, Request

UUID = "GPU-f80415fc-4434-cae0-abda-3d93d53208ba"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def test_nothing_said_means_one_gpu_of_any_kind_and_a_short_wait():
    assert Request.parse({}) == Request(
        gpus=1,
        share=None,
        profile=None,
        devices=(),
        min_free_memory_bytes=None,
        model=None,
        wait_seconds=8.0,
        identifiers="auto",
        topology="any",
        cpu_affinity="none",
        memory_cap="auto",
        on_unavailable="cpu",
    )


def test_a_value_of_none_means_not_given():
    assert Request.parse(dict.fromkeys(OPTIONS)) == Request()


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"gpus": 0}, "gpus", 0),
        ({"gpus": 2}, "gpus", 2),
        ({"gpus": " 4 "}, "gpus", 4),
        ({"gpus": "all"}, "gpus", "all"),
        ({"devices": [0, 3]}, "devices", ("0", "3")),
        ({"devices": "0, 3"}, "devices", ("0", "3")),
        ({"devices": 5}, "devices", ("5",)),
        ({"devices": ["007"]}, "devices", ("7",)),
        ({"devices": (UUID,)}, "devices", (UUID,)),
        ({"devices": ["gpu-f8", "MIG-1"]}, "devices", ("gpu-f8", "MIG-1")),
        ({"min_free_memory": "20GiB"}, "min_free_memory_bytes", 20 * 2**30),
        ({"model": " H200 "}, "model", "H200"),
        ({"wait": "10m"}, "wait_seconds", 600.0),
        ({"wait": 0}, "wait_seconds", 0.0),
        ({"identifiers": "uuid"}, "identifiers", "uuid"),
        ({"topology": "prefer"}, "topology", "prefer"),
        ({"topology": "require"}, "topology", "require"),
        ({"cpu_affinity": "closest"}, "cpu_affinity", "closest"),
        ({"memory_cap": "none"}, "memory_cap", "none"),
        ({"memory_cap": "10GiB"}, "memory_cap", 10 * 2**30),
        ({"on_unavailable": "error"}, "on_unavailable", "error"),
    ],
)
def test_each_option_is_read(options, field, value):
    assert getattr(Request.parse(options), field) == value


@pytest.mark.parametrize(
    ("option", "nonsense"),
    [
        ("gpus", -1),
        ("gpus", 1.5),
        ("gpus", True),
        ("gpus", "two"),
        ("gpus", ""),
        ("gpus", "ALL"),
        ("gpus", "²"),
        ("gpus", "5/4"),
        ("gpus", "0/4"),
        ("gpus", "1/0"),
        ("gpus", "0/0"),
        ("gpus", "-1/4"),
        ("gpus", "1/4/2"),
        ("gpus", "1/1000000"),
        ("gpus", 0.25),
        ("gpus", "0.25"),
        ("gpus", "25%"),
        ("gpus", "mig:"),
        ("gpus", "mig:1g"),
        ("gpus", "mig:18gb"),
        ("gpus", "mig:1g.18gb,2g.35gb"),
        ("gpus", "1g.18gb"),
        ("topology", "nvlink"),
        ("topology", True),
        ("cpu_affinity", "all"),
        ("memory_cap", 0),
        ("memory_cap", "0GiB"),
        ("memory_cap", "half"),
        ("memory_cap", 10),
        ("memory_cap", ["auto"]),
        ("gpus", "9" * 5000),
        ("gpus", 10**4000),
        ("gpus", [1]),
        ("devices", []),
        ("devices", ""),
        ("devices", [0, 0]),
        ("devices", ["0", "00"]),
        ("devices", [-1]),
        ("devices", ["first"]),
        ("devices", [True]),
        ("devices", True),
        ("devices", [None]),
        ("devices", {"0": 1}),
        ("devices", ["9" * 5000]),
        ("devices", [10**12]),
        ("min_free_memory", "much"),
        ("model", ""),
        ("model", "  "),
        ("model", 200),
        ("wait", "soon"),
        ("identifiers", "name"),
        ("on_unavailable", "panic"),
        ("on_unavailable", ["cpu"]),
    ],
)
def test_nonsense_is_refused_by_the_name_of_its_option(option, nonsense):
    with pytest.raises(RequestError, match=f"^{option}: ") as caught:
        Request.parse({option: nonsense})
    assert caught.value.option == option
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("written", "share", "amount"),
    [
        ("1/4", Fraction(1, 4), "1/4"),
        (" 3 / 8 ", Fraction(3, 8), "3/8"),
        ("2/8", Fraction(1, 4), "1/4"),
        ("¼", Fraction(1, 4), "1/4"),
        ("⅜", Fraction(3, 8), "3/8"),
        ("1/10", Fraction(1, 10), "1/10"),
        ("1/1", None, 1),
        ("4/4", None, 1),
    ],
)
def test_a_share_is_a_part_of_one_device(written, share, amount):
    request = Request.parse({"gpus": written})
    assert (request.gpus, request.share, request.profile) == (1, share, None)
    assert request.amount == amount
    assert request.units == DEVICE_UNITS * (share or 1)


@pytest.mark.parametrize("written", ["mig:1g.18gb", " mig:1G.18GB ", "mig: 1g.18gb"])
def test_a_mig_profile_is_one_device_of_that_kind(written):
    request = Request.parse({"gpus": written})
    assert (request.gpus, request.share, request.profile) == (1, None, "1g.18gb")
    assert request.amount == "mig:1g.18gb"
    assert request.units == DEVICE_UNITS


@pytest.mark.parametrize("profile", ["1g.10gb+me", "2g.20gb-me", "1c.3g.40gb", "7g.141gb"])
def test_profiles_as_nvidia_writes_them_are_read(profile):
    assert Request.parse({"gpus": f"mig:{profile}"}).profile == profile


@pytest.mark.parametrize("name", ["gpu", "Gpus", "", "on-unavailable"])
def test_an_unknown_option_is_refused_with_the_known_ones(name):
    with pytest.raises(UnknownOption, match="The options are gpus, devices, ") as caught:
        Request.parse({name: 1})
    assert caught.value.known == OPTIONS


def test_an_unknown_option_is_refused_even_when_it_says_nothing():
    with pytest.raises(UnknownOption):
        Request.parse({"gpuz": None})


def test_the_wait_that_is_not_given_is_the_callers():
    assert Request.parse({}, default_wait=0).wait_seconds == 0
    assert Request.parse({"wait": "1s"}, default_wait=0).wait_seconds == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "1 GPU"),
        ({"gpus": 2, "model": "H200"}, "2 GPUs of model H200"),
        ({"gpus": "all", "min_free_memory": "20GiB"}, "all GPUs with 20.0 GiB free"),
        ({"gpus": 1, "devices": [1, 2]}, "1 GPU out of devices 1, 2"),
        ({"gpus": "1/4"}, "¼ GPU"),
        ({"gpus": "3/10", "model": "H200"}, "3/10 GPU of model H200"),
        ({"gpus": "mig:1g.18gb"}, "1 MIG device 1g.18gb"),
        ({"gpus": 2, "topology": "require"}, "2 GPUs joined by NVLink"),
        ({"gpus": 1, "topology": "require"}, "1 GPU"),
    ],
)
def test_a_request_can_be_said_in_words(options, words):
    assert Request.parse(options).in_words() == words


@given(st.dictionaries(st.sampled_from(OPTIONS), JSON))
def test_any_values_make_a_request_or_a_request_error(options):
    try:
        request = Request.parse(options)
    except RequestError:
        return
    assert request.gpus == "all" or request.gpus >= 0
    assert 0 < request.units <= DEVICE_UNITS
    assert Request.parse({"gpus": request.amount}).amount == request.amount
    assert request.in_words()


GOOD = st.fixed_dictionaries(
    {"gpus": st.integers(0, 99) | st.sampled_from(["all", "1/4", "3/10", "mig:1g.18gb"])},
    optional={
        "devices": st.lists(st.integers(0, 20), min_size=1, unique=True),
        "min_free_memory": st.integers(2**20, 2**50),
        "model": st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
        "topology": st.sampled_from(["any", "prefer", "require"]),
        "cpu_affinity": st.sampled_from(["none", "closest"]),
        "memory_cap": st.sampled_from(["auto", "none"]) | st.integers(2**20, 2**50),
    },
)


@given(GOOD)
def test_a_request_survives_the_way_through_a_record(options):
    request = Request.parse(options, default_wait=0)
    carried = json.loads(json.dumps(request.as_options()))
    assert Request.parse(carried, default_wait=0) == request
