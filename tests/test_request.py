"""What a kernel asks for, read strictly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.request import OPTIONS, PLANNED, Request

UUID = "GPU-f80415fc-4434-cae0-abda-3d93d53208ba"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def test_nothing_said_means_one_gpu_of_any_kind_and_a_short_wait():
    assert Request.parse({}) == Request(
        gpus=1,
        devices=(),
        min_free_memory_bytes=None,
        model=None,
        wait_seconds=8.0,
        identifiers="auto",
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
        ("gpus", "mig:"),
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


@pytest.mark.parametrize("share", ["1/4", " 3 / 8 ", "1/1", "mig:1g.18gb"])
def test_shares_and_mig_profiles_are_refused_as_not_built_yet(share):
    with pytest.raises(RequestError, match="whole GPUs only"):
        Request.parse({"gpus": share})


@pytest.mark.parametrize("name", PLANNED)
def test_a_planned_option_is_refused_as_not_built_yet(name):
    with pytest.raises(UnknownOption, match="not built yet") as caught:
        Request.parse({name: "any"})
    assert caught.value.planned


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
    assert request.in_words()


GOOD = st.fixed_dictionaries(
    {"gpus": st.integers(0, 99) | st.just("all")},
    optional={
        "devices": st.lists(st.integers(0, 20), min_size=1, unique=True),
        "min_free_memory": st.integers(2**20, 2**50),
        "model": st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    },
)


@given(GOOD)
def test_a_request_survives_the_way_through_a_record(options):
    request = Request.parse(options, default_wait=0)
    carried = json.loads(json.dumps(request.as_options()))
    assert Request.parse(carried, default_wait=0) == request
