import pytest

from jupyter_gpu.core.errors import GPUError, RequestError
from jupyter_gpu.faces.monitor_arguments import (
    chosen_uuids,
    device_names,
    flag,
    interval_seconds,
    one_sentence,
)
from jupyter_gpu.overview import read_overview


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(1, 1.0), (0.1, 0.1), ("500ms", 0.5), ("2s", 2.0), ("1min", 60.0), (60, 60.0), ("0.1", 0.1)],
)
def test_an_interval_is_a_time(given, seconds):
    assert interval_seconds(given) == pytest.approx(seconds)


@pytest.mark.parametrize("given", [0, -1, 0.09, 61, "2m", "soon", "", None, True, [], float("nan")])
def test_another_interval_is_one_line(given):
    with pytest.raises(RequestError) as raised:
        interval_seconds(given)
    assert str(raised.value) == f'interval: {given!r} is not a time from 100ms to 60s, such as "1s"'


def test_a_flag_is_true_or_false():
    assert flag("compact", True) is True
    assert flag("compact", False) is False
    for given in (1, "yes", None):
        with pytest.raises(RequestError, match=r"compact: .* is not True or False"):
            flag("compact", given)
    with pytest.raises(RequestError, match="live: 'yes' is not True, False or None"):
        flag("live", "yes", unknown=True)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, None),
        (3, ("3",)),
        ("cuda:1", ("cuda:1",)),
        ("0, 1", ("0", "1")),
        ([0, "cuda:1", "GPU-ab"], ("0", "cuda:1", "GPU-ab")),
        ((7,), ("7",)),
        (range(2), ("0", "1")),
        ("MIG-ab", ("MIG-ab",)),
    ],
)
def test_devices_are_named_in_many_ways(given, names):
    assert device_names(given) == names


@pytest.mark.parametrize(
    "given",
    [
        True,
        1.5,
        [],
        "",
        "gpu0",
        "cuda",
        "cuda:-1",
        [None],
        ["0", 1.5],
        {"a": 1},
        object,
        "GPU-a\nb",
        -1,
    ],
)
def test_other_names_are_one_line(given):
    with pytest.raises(RequestError) as raised:
        device_names(given)
    assert str(raised.value).startswith("devices: ")
    assert "\n" not in str(raised.value)


@pytest.fixture
def overview(simulate):
    """Three GPUs, of which the last is cut in two; CUDA_VISIBLE_DEVICES is 1,0."""
    simulate(
        {
            "gpus": [
                {"name": "NVIDIA H200", "uuid": "GPU-aaaa"},
                {"name": "NVIDIA H200", "uuid": "GPU-bbbb"},
                {
                    "name": "NVIDIA H200",
                    "uuid": "GPU-cccc",
                    "mig": [
                        {"uuid": "MIG-1111", "profile": "1g.18gb"},
                        {"uuid": "MIG-2222", "profile": "1g.18gb"},
                    ],
                },
            ]
        }
    )
    import os

    return read_overview({**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"})


@pytest.mark.parametrize(
    ("names", "uuids"),
    [
        (("0",), ("GPU-aaaa",)),
        (("cuda:0",), ("GPU-bbbb",)),
        (("cuda:1", "0"), ("GPU-aaaa",)),
        (("1", "0"), ("GPU-bbbb", "GPU-aaaa")),
        (("gpu-bb",), ("GPU-bbbb",)),
        (("2",), ("MIG-1111", "MIG-2222")),
        (("MIG-2222",), ("MIG-2222",)),
    ],
)
def test_a_name_means_what_it_means_everywhere(overview, names, uuids):
    assert chosen_uuids(names, overview) == uuids


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("9", "'9' is not a device of this machine: it has physical 0 to 2"),
        ("GPU-dddd", "'GPU-dddd' is not a device of this machine: it has physical 0 to 2"),
        ("cuda:2", "'cuda:2' is not visible here: cuda:0 to cuda:1 are"),
    ],
)
def test_a_name_that_means_nothing_says_what_there_is(overview, name, said):
    with pytest.raises(RequestError) as raised:
        chosen_uuids((name,), overview)
    assert str(raised.value) == f"devices: {said}"


@pytest.mark.parametrize(
    ("machine", "visible", "cuda", "physical"),
    [
        ("1xL4", None, "only cuda:0 is", "it has physical 0"),
        ("2xL4", "-1", "no device is", "it has physical 0 to 1"),
    ],
)
def test_small_machines_are_named_too(simulate, machine, visible, cuda, physical):
    import os

    simulate(machine)
    value = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    overview = read_overview({**os.environ, **value})
    with pytest.raises(RequestError, match=cuda):
        chosen_uuids(("cuda:7",), overview)
    with pytest.raises(RequestError, match=physical):
        chosen_uuids(("7",), overview)


def test_where_nothing_can_be_read_the_reason_is_told(monkeypatch):
    import os

    for machine, reason in (("8xNOTHING", "NOTHING"), ("0xL4", "0xL4|has no GPU")):
        monkeypatch.setenv("JUPYTER_GPU_SIMULATE", machine)
        with pytest.raises(GPUError, match=reason):
            chosen_uuids(("0",), read_overview(os.environ))


def test_an_error_of_ours_is_shown_as_its_sentence():
    with pytest.raises(GPUError) as raised, one_sentence():
        raise GPUError("One.\nTwo.")
    assert raised.value._render_traceback_() == ["One.", "Two."]
    with pytest.raises(ZeroDivisionError), one_sentence():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "given", [10**5000, b"0", -1, [2**80]], ids=["huge", "bytes", "negative", "large"]
)
def test_what_no_device_can_be_called_is_one_line(given):
    with pytest.raises(RequestError) as raised:
        device_names(given)
    assert len(str(raised.value)) < 250


def test_the_start_of_several_uuids_is_no_name(simulate):
    import os

    simulate({"gpus": [{"name": "H200", "uuid": f"GPU-0{n}"} for n in range(2)]})
    overview = read_overview(os.environ)
    with pytest.raises(RequestError, match="one device: 2 have a UUID that begins so"):
        chosen_uuids(("GPU-0",), overview)
    assert chosen_uuids(("GPU-01",), overview) == ("GPU-01",)
