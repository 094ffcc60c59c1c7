"""A notebook's own request narrows what its kernelspec allows, and never widens it."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.notebook_request import NOTEBOOK_OPTIONS, combined, in_metadata
from jupyter_gpu.core.request import OPTIONS, Request

GIB = 2**30
NAME = "train.ipynb"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def both(kernelspec, notebook, **how):
    return combined(Request.parse(kernelspec), notebook, NAME, **how)


@pytest.mark.parametrize("nothing", [None, {}, {"gpus": None, "wait": None}])
def test_without_a_request_of_the_notebook_the_kernelspecs_counts(nothing):
    found = both({"gpus": 2, "wait": "3s"}, nothing)
    assert found.request == Request.parse({"gpus": 2, "wait": "3s"})
    assert (found.origin, found.notices) == ("kernelspec", ())


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        (1, 0),
        (1, 1),
        (1, "1/4"),
        (1, "¼"),
        (1, "mig:1g.18gb"),
        (2, 1),
        (2, "2"),
        (2, "1/2"),
        (2, "1/1"),
        ("all", 7),
        ("all", "all"),
        ("all", "mig:3g.71gb"),
        ("1/2", "1/2"),
        ("1/2", "2/4"),
        ("1/2", "1/3"),
        ("1/2", 0),
        ("mig:1g.18gb", "mig:1g.18gb"),
        ("mig:1g.18gb", 0),
        (0, 0),
    ],
)
def test_an_amount_within_the_kernelspecs_is_granted(allowed, asked):
    found = both({"gpus": allowed}, {"gpus": asked})
    assert found.request == Request.parse({"gpus": asked})
    none = (f"{NAME} asks for no GPU itself (jupyter_gpu in its metadata).",)
    told = none if asked == 0 and allowed != 0 else ()
    assert (found.origin, found.notices) == ("notebook", told)


@pytest.mark.parametrize(
    ("allowed", "asked", "words"),
    [
        (1, 2, "asks for 2 GPUs; this kernelspec allows 1: pick PyTorch (2 GPUs)."),
        (2, "all", "asks for all GPUs; this kernelspec allows 2: pick PyTorch (all GPUs)."),
        ("1/4", "1/2", "asks for ½ GPU; this kernelspec allows ¼ GPU: pick PyTorch (½ GPU)."),
        ("1/3", "33334/100000", None),
        ("1/4", 1, "asks for 1 GPU; this kernelspec allows ¼ GPU: pick PyTorch (1 GPU)."),
        ("1/4", "mig:1g.18gb", None),
        ("mig:1g.18gb", "1/8", None),
        ("mig:1g.18gb", 1, None),
        (
            "mig:3g.71gb",
            "mig:1g.18gb",
            (
                "asks for 1 MIG device 1g.18gb; this kernelspec allows 1 MIG device 3g.71gb: "
                "pick PyTorch (MIG 1g.18gb)."
            ),
        ),
        (0, "1/4", "asks for ¼ GPU; this kernelspec has none: pick PyTorch (¼ GPU)."),
        (0, 1, "asks for 1 GPU; this kernelspec has none: pick PyTorch (1 GPU)."),
        (0, "mig:1g.18gb", None),
    ],
)
def test_an_amount_above_the_kernelspecs_stays_there_and_says_what_to_pick(allowed, asked, words):
    found = both({"gpus": allowed}, {"gpus": asked})
    assert found.request == Request.parse({"gpus": allowed})
    assert found.origin == "kernelspec"
    (notice,) = found.notices
    assert words is None or notice == f"{NAME} {words}"
    assert notice.startswith(f"{NAME} asks for ")
    assert "pick PyTorch (" in notice


def test_the_kernelspec_to_pick_has_the_title_of_this_one():
    (notice,) = both({}, {"gpus": 2}, title="R").notices
    assert notice.endswith("pick R (2 GPUs).")


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ({}, {"devices": [0, 3]}),
        ({"devices": [0, 1, 2]}, {"devices": "2,0"}),
        ({"devices": ["GPU-f8"]}, {"devices": ["gpu-F80415fc"]}),
        ({"devices": ["MIG-GPU-a/1/0"]}, {"devices": ["mig-gpu-a/1/0"]}),
        ({}, {"min_free_memory": "20GiB"}),
        ({"min_free_memory": "20GiB"}, {"min_free_memory": "20GiB"}),
        ({"min_free_memory": "20GiB"}, {"min_free_memory": "21GiB"}),
        ({}, {"model": "H200"}),
        ({"model": "H200"}, {"model": "h200"}),
        ({}, {"memory_cap": "10GiB"}),
        ({}, {"memory_cap": "auto"}),
        ({"memory_cap": "10GiB"}, {"memory_cap": "10GiB"}),
        ({"memory_cap": "10GiB"}, {"memory_cap": "9GiB"}),
        ({"memory_cap": "none"}, {"memory_cap": "none"}),
        ({"memory_cap": "none"}, {"memory_cap": "auto"}),
        ({"memory_cap": "none"}, {"memory_cap": "99GiB"}),
        ({"wait": 0}, {"wait": "10m"}),
        ({"wait": "10m"}, {"wait": 0}),
        ({"topology": "require"}, {"topology": "any"}),
        ({}, {"topology": "require"}),
        ({"cpu_affinity": "closest"}, {"cpu_affinity": "none"}),
        ({"identifiers": "index"}, {"identifiers": "uuid"}),
    ],
)
def test_another_option_within_the_kernelspecs_is_granted(allowed, asked):
    found = both({"gpus": 2, **allowed}, asked)
    assert found.request == Request.parse({"gpus": 2, **allowed, **asked})
    assert (found.origin, found.notices) == ("notebook", ())


@pytest.mark.parametrize(
    ("allowed", "asked", "words"),
    [
        (
            {"devices": [0, 1]},
            {"devices": [0, 7]},
            "devices 0, 7; this kernelspec allows 0, 1: choose among those.",
        ),
        (
            {"devices": [1]},
            {"devices": [11]},
            "device 11; this kernelspec allows 1: choose among those.",
        ),
        ({"devices": ["GPU-f80415fc"]}, {"devices": ["GPU-f8"]}, None),
        ({"devices": ["0"]}, {"devices": ["GPU-f8"]}, None),
        ({"devices": ["GPU-f8"]}, {"devices": [0]}, None),
        ({"devices": ["MIG-GPU-a"]}, {"devices": ["MIG-GPU-a/1/0"]}, None),
        (
            {"min_free_memory": "20GiB"},
            {"min_free_memory": "10GiB"},
            "10GiB of free memory; this kernelspec asks for 20GiB: ask for that or more.",
        ),
        (
            {"model": "H200"},
            {"model": "A100"},
            (
                "model A100; this kernelspec allows H200: pick one without a model, "
                "or leave model out."
            ),
        ),
        (
            {"memory_cap": "10GiB"},
            {"memory_cap": "11GiB"},
            "memory_cap 11GiB; this kernelspec allows 10GiB: ask for that or less.",
        ),
        (
            {"memory_cap": "10GiB"},
            {"memory_cap": "auto"},
            "memory_cap auto; this kernelspec allows 10GiB: leave memory_cap out.",
        ),
        (
            {},
            {"memory_cap": "none"},
            "memory_cap none; this kernelspec allows auto: leave memory_cap out.",
        ),
        ({"memory_cap": "10GiB"}, {"memory_cap": "none"}, None),
    ],
)
def test_another_option_beyond_the_kernelspecs_stays_and_is_told(allowed, asked, words):
    found = both({"gpus": 2, **allowed}, asked)
    assert found.request == Request.parse({"gpus": 2, **allowed})
    assert found.origin == "kernelspec"
    (notice,) = found.notices
    assert words is None or notice == f"{NAME} asks for {words}"


def test_what_is_allowed_is_granted_beside_what_is_not():
    found = both({"gpus": "1/2", "model": "H200"}, {"gpus": 1, "model": "A100", "wait": "1m"})
    assert found.request == Request.parse({"gpus": "1/2", "model": "H200", "wait": "1m"})
    assert found.origin == "notebook"
    assert len(found.notices) == 2


def test_a_kernelspec_without_a_gpu_hears_of_the_amount_alone():
    options = {"gpus": 1, "devices": [9], "model": "A100", "wait": "1h", "memory_cap": "none"}
    found = both({"gpus": 0, "model": "H200"}, options)
    assert found.request == Request.parse({"gpus": 0, "model": "H200"})
    assert len(found.notices) == 1
    assert both({"gpus": 0}, {"wait": "1h"}).notices == ()


def test_what_the_kernelspec_does_without_a_device_stays():
    found = both({"on_unavailable": "error"}, {"gpus": "1/4"})
    assert found.request.on_unavailable == "error"


def test_on_unavailable_is_refused_by_name_whatever_it_says():
    for value in ("wait", None):
        with pytest.raises(RequestError, match=r"^on_unavailable: .*kernelspec") as caught:
            both({}, {"on_unavailable": value})
        assert str(caught.value).endswith("\nIt stands in the metadata of train.ipynb.")


def test_an_unknown_option_is_refused_with_those_of_a_notebook():
    with pytest.raises(UnknownOption, match="no option 'gpuz'") as caught:
        both({"gpus": 0}, {"gpuz": None})
    assert caught.value.known == NOTEBOOK_OPTIONS
    assert "on_unavailable" not in str(caught.value)
    assert str(caught.value).endswith("\nIt stands in the metadata of train.ipynb.")


def test_a_value_of_the_wrong_form_is_refused_in_the_words_of_everywhere_else():
    with pytest.raises(RequestError) as elsewhere:
        Request.parse({"gpus": "5/4"})
    with pytest.raises(RequestError) as caught:
        both({}, {"gpus": "5/4"})
    assert str(caught.value) == f"{elsewhere.value}\nIt stands in the metadata of {NAME}."
    assert (caught.value.option, caught.value.given) == ("gpus", "5/4")
    assert caught.value.exit_code == 2


def test_an_endless_value_and_a_strange_name_make_a_short_clean_sentence():
    error = RequestError("model", "x" * 10**6, "a model")
    sentence = str(in_metadata(error, "a\x1b[31m\nb.ipynb"))
    assert len(sentence) < 800
    assert sentence.endswith("is not a model\nIt stands in the metadata of a?[31m?b.ipynb.")
    strange = {"devices": [f"GPU-{n}" for n in range(51)]}
    found = combined(Request.parse({"devices": [0]}), strange, "\x1b.ipynb")
    assert found.notices[0].isprintable()
    assert "and 43 more" in found.notices[0]


MEMORY = st.integers(2**20, 2**42)
AMOUNTS = (
    st.integers(0, 9)
    | st.just("all")
    | st.tuples(st.integers(1, 20), st.integers(1, 20)).map(lambda pq: f"{min(pq)}/{max(pq)}")
    | st.sampled_from(["mig:1g.18gb", "mig:2g.35gb", "mig:1g.18gb+me"])
)
NAMES = st.sampled_from(
    ["0", "1", "11", "GPU-a", "GPU-ab", "gpu-abc", "GPU-b", "MIG-a", "MIG-GPU-a", "MIG-GPU-a/1/0"]
)
VALUES = {
    "gpus": AMOUNTS,
    "devices": st.lists(NAMES, min_size=1, unique=True),
    "min_free_memory": MEMORY,
    "model": st.sampled_from(["H200", "h200", "H", "A100"]),
    "wait": st.integers(0, 10**6),
    "identifiers": st.sampled_from(["auto", "index", "uuid"]),
    "topology": st.sampled_from(["any", "prefer", "require"]),
    "cpu_affinity": st.sampled_from(["none", "closest"]),
    "memory_cap": st.sampled_from(["auto", "none"]) | MEMORY,
}
KERNELSPECS = st.fixed_dictionaries(
    {}, optional={**VALUES, "on_unavailable": st.sampled_from(["cpu", "wait", "error"])}
)
NOTEBOOKS = st.fixed_dictionaries({}, optional=VALUES)
UUIDS = ("GPU-a", "GPU-ab", "GPU-abc", "GPU-b", "MIG-a", "MIG-GPU-a/1/0", "MIG-GPU-a/2/0")


def meant(names):
    """The indices and UUIDs, of some that there could be, that a list of names can mean."""
    return {n for n in ("0", "1", "11") if n in names} | {
        uuid for uuid in UUIDS if any(uuid.lower().startswith(name.lower()) for name in names)
    }


def gpus_at_most(request):
    if request.gpus == "all":
        return float("inf")
    return Fraction(request.gpus) if request.share is None else request.share


def cap_at_most(request):
    """The cap in bytes as far as it can be known; what cannot is endless."""
    return request.memory_cap if isinstance(request.memory_cap, int) else float("inf")


def assert_no_more(found, most):
    assert gpus_at_most(found) <= gpus_at_most(most)
    if most.profile is not None:
        assert found.gpus == 0 or found.profile == most.profile
    if found.profile is not None and most.profile is None:
        assert gpus_at_most(most) >= 1
    if most.devices:
        assert found.devices
        assert meant(found.devices) <= meant(most.devices)
        assert all("/" not in name or name in most.devices for name in found.devices)
    assert (found.min_free_memory_bytes or 0) >= (most.min_free_memory_bytes or 0)
    assert most.model is None or found.model.lower() == most.model.lower()
    assert cap_at_most(found) <= cap_at_most(most)
    assert found.memory_cap != "none" or most.memory_cap == "none"
    assert found.on_unavailable == most.on_unavailable


@given(KERNELSPECS, NOTEBOOKS)
def test_whatever_the_notebook_says_it_never_gets_more_than_the_kernelspec_allows(spec, notebook):
    most = Request.parse(spec)
    found = combined(most, notebook, NAME)
    assert_no_more(found.request, most)
    wish = Request.parse(notebook)
    for option in ("wait", "identifiers", "topology", "cpu_affinity"):
        field = "wait_seconds" if option == "wait" else option
        source = wish if option in notebook and most.gpus != 0 else most
        assert getattr(found.request, field) == getattr(source, field)
    refused = [notice for notice in found.notices if "no GPU itself" not in notice]
    assert (found.origin == "notebook") == (
        len(refused) < len(notebook if most.gpus != 0 else {"gpus"} & set(notebook))
    )


@given(KERNELSPECS)
def test_a_notebook_that_asks_for_what_the_kernelspec_says_gets_it_without_a_word(spec):
    most = Request.parse(spec)
    found = combined(most, {k: v for k, v in spec.items() if k != "on_unavailable"}, NAME)
    assert (found.request, found.notices) == (most, ())


@given(KERNELSPECS, st.dictionaries(st.sampled_from(OPTIONS) | st.text(), JSON))
def test_any_values_make_a_request_or_a_request_error_that_names_the_notebook(spec, notebook):
    most = Request.parse(spec)
    try:
        found = combined(most, notebook, NAME)
    except RequestError as error:
        assert str(error).endswith(f"It stands in the metadata of {NAME}.")
        return
    assert_no_more(found.request, most)
    assert json.dumps(found.notices)
