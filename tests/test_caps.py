"""Caps: what people write, what it means on a device, and which variable says it to whom."""

import pytest
from support_cli import GIB, device, kernel, overview

from jupyter_gpu.core.caps import (
    Cap,
    cap_in,
    caps_standing,
    device_caps,
    jax_cap,
    jax_setting,
    parse_cap,
    torch_cap,
    torch_setting,
    torch_way,
    visible_devices,
)
from jupyter_gpu.core.errors import GPUError, UsageError

BOTH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
HALF = "per_process_memory_fraction:0.5"


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("50%", Cap(0.5)),
        ("50 %", Cap(0.5)),
        ("12.5%", Cap(0.125)),
        ("0.5", Cap(0.5)),
        (".5", Cap(0.5)),
        ("100%", Cap(1.0)),
        ("1", Cap(1.0)),
        ("20GiB", Cap(number_bytes=20 * GIB)),
        ("20 gib", Cap(number_bytes=20 * GIB)),
        ("600MB", Cap(number_bytes=600_000_000)),
        ("off", None),
        ("OFF", None),
    ],
)
def test_a_cap_is_a_share_or_an_amount(text, cap):
    assert parse_cap(text) == cap


@pytest.mark.parametrize(
    "text", ["0", "0%", "101%", "50", "1.5", "-0.5", "-50%", "nan", "inf%", "%", "half", "20Gigs"]
)
def test_what_is_neither_is_refused_with_what_is_accepted(text):
    with pytest.raises(UsageError, match='a share such as "50%"'):
        parse_cap(text)


def on(cap, *devices):
    found = device_caps(cap, [(ordinal, one) for ordinal, one in enumerate(devices)])
    return [one.fraction for one in found]


def test_a_share_is_the_same_on_every_device_and_an_amount_is_not():
    small = device(1, memory_total_bytes=40 * GIB)
    large = device(0, memory_total_bytes=80 * GIB)
    assert on(Cap(0.5), large, small) == [0.5, 0.5]
    assert on(Cap(number_bytes=20 * GIB), large, small) == [0.25, 0.5]


def test_an_amount_is_never_rounded_up():
    total = 150_754_820_096
    for number_bytes in (600_000_000, 20 * GIB, 123_456_789_012, total):
        (fraction,) = on(Cap(number_bytes=number_bytes), device(0))
        assert number_bytes - total / 1e6 < fraction * total <= number_bytes


@pytest.mark.parametrize(
    ("cap", "changes", "words"),
    [
        (Cap(0.001), {}, "A cap of 151 MB on cuda:0 is refused: a CUDA context takes some 600 MB"),
        (Cap(number_bytes=100_000_000), {}, "A cap of 100 MB on cuda:0 is refused"),
        (Cap(number_bytes=200 * GIB), {}, "cuda:0 has 140.4 GiB, which is less than that"),
        (Cap(number_bytes=GIB), {"memory_total_bytes": None}, "memory of cuda:0 is unknown"),
    ],
)
def test_a_cap_that_cannot_be_is_refused_with_the_reason(cap, changes, words):
    with pytest.raises(GPUError, match=words):
        on(cap, device(0, **changes))


def test_the_least_is_what_is_said_to_be_the_least():
    assert on(parse_cap("600MB"), device(0))
    assert on(Cap(0.5), device(0, memory_total_bytes=None)) == [0.5]


def test_a_kernel_caps_what_is_in_force_or_else_what_is_visible():
    seen = overview(value="2,0", process=kernel())
    assert [one.index for _, one in visible_devices(seen, kernel())] == [2, 0]
    frozen = kernel(state="frozen", in_force=(3,))
    assert [one.index for _, one in visible_devices(seen, frozen)] == [3]


@pytest.mark.parametrize(
    ("value", "state", "words"),
    [
        ("-1", "open", "no GPU is visible here"),
        ("0", "absent", "no GPU is visible here"),
        ("0", "forked", "this process was forked"),
    ],
)
def test_without_a_gpu_there_is_nothing_to_cap(value, state, words):
    with pytest.raises(GPUError, match=words):
        visible_devices(overview(value=value), kernel(state=state))


@pytest.mark.parametrize(
    ("begun", "imported", "version", "way"),
    [
        (True, True, "2.1.0", "now"),
        (False, True, "2.1.0", "later"),
        (False, True, "2.11.0+cu130", "later"),
        (False, False, "2.10.0+cu128", "environment"),
        (False, False, "2.13.0", "environment"),
        (False, False, "3.0", "environment"),
        (False, False, "2.9.1", "after import"),
        (False, False, "1.13.1", "after import"),
        (False, False, "unreadable", "after import"),
        (False, False, None, "absent"),
    ],
)
def test_how_a_cap_reaches_torch(begun, imported, version, way):
    assert torch_way(begun=begun, imported=imported, version=version) == way


@pytest.mark.parametrize(
    ("environ", "fraction", "changes"),
    [
        ({}, 0.5, {BOTH[1]: HALF}),
        ({}, None, {}),
        ({BOTH[0]: "max_split_size_mb:64"}, 0.5, {BOTH[0]: f"max_split_size_mb:64,{HALF}"}),
        ({BOTH[1]: "max_split_size_mb:64"}, 0.5, {BOTH[1]: f"max_split_size_mb:64,{HALF}"}),
        ({BOTH[0]: "a:1", BOTH[1]: "b:2"}, 0.5, {BOTH[0]: f"a:1,{HALF}"}),
        ({BOTH[0]: ""}, 0.5, {BOTH[0]: HALF}),
        (
            {BOTH[0]: "roundup_power2_divisions:[256:1,512:2,>:8], per_process_memory_fraction : .9"},
            0.5,
            {BOTH[0]: f"roundup_power2_divisions:[256:1,512:2,>:8],{HALF}"},
        ),
        ({BOTH[0]: HALF}, 0.5, {}),
        ({BOTH[0]: HALF}, None, {BOTH[0]: None}),
        ({BOTH[0]: f"{HALF},a:1"}, None, {BOTH[0]: "a:1"}),
        ({BOTH[0]: "a:1", BOTH[1]: HALF}, 0.25, {BOTH[0]: "a:1,per_process_memory_fraction:0.25", BOTH[1]: None}),
        ({BOTH[0]: "a:1"}, None, {}),
    ],
)  # fmt: skip
def test_torch_s_variable_keeps_what_the_person_has_set(environ, fraction, changes):
    assert torch_setting(environ, fraction) == changes


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (None, None),
        ("", None),
        (HALF, 0.5),
        ("a:[1:2,3:4],per_process_memory_fraction:0.25", 0.25),
        ("per_process_memory_fraction:lots", None),
        ("per_process_memory_fraction:7", None),
        ("per_process_memory_fraction", None),
    ],
)
def test_the_fraction_in_a_value_is_read_back(value, fraction):
    assert cap_in(value) == fraction


def test_torch_looks_the_older_name_up_first():
    assert torch_cap({BOTH[0]: "a:1", BOTH[1]: HALF}) is None
    assert torch_cap({BOTH[1]: HALF}) == 0.5
    assert torch_cap({}) is None


OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"


@pytest.mark.parametrize(
    ("environ", "fraction", "changes"),
    [
        ({}, 0.5, {OLD: "0.5"}),
        ({OLD: "0.9"}, 0.5, {OLD: "0.5"}),
        ({NEW: "0.9"}, 0.5, {NEW: "0.5"}),
        ({NEW: "0.9"}, None, {NEW: None}),
        ({NEW: "", OLD: "0.9"}, 0.5, {OLD: "0.5"}),
        ({}, None, {}),
        ({OLD: "0.5"}, 0.5, {}),
    ],
)
def test_jax_never_gets_a_second_variable(environ, fraction, changes):
    assert jax_setting(environ, fraction) == changes
    after = {name: v for name, v in {**environ, **changes}.items() if v}
    assert len(after) <= 1
    assert jax_cap(after) == fraction


@pytest.mark.parametrize(
    ("count", "version", "way"),
    [
        (0, "2.13.0", "without CUDA"),
        (None, "2.13.0+cpu", "without CUDA"),
        (None, "2.13.0+cu130", "later"),
        (2, "2.13.0+cu130", "later"),
    ],
)
def test_a_torch_without_cuda_is_no_way(count, version, way):
    assert torch_way(begun=False, imported=True, version=version, count=count) == way


def test_the_variables_that_set_a_cap_are_told_and_no_others():
    environ = {
        "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
    }
    assert list(caps_standing(environ, jax=True)) == [
        "PYTORCH_ALLOC_CONF",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ]
    assert list(caps_standing(environ, jax=False)) == ["PYTORCH_ALLOC_CONF"]
    assert caps_standing({}, jax=True) == {}
