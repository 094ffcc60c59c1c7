"""The words of ``%gpu limit``."""

import pytest
from support_cli import GIB, device

from jupyter_gpu.core.caps import DeviceCap
from jupyter_gpu.core.caps_view import Limits, limits_answer, limits_view
from jupyter_gpu.core.render_text import as_text

HALF = (DeviceCap(0, device(3), 0.5), DeviceCap(1, device(1), 0.5))
NONE = (DeviceCap(0, device(3), None),)


def said(*arguments, **what):
    text = as_text(limits_view(Limits(*arguments, **what)))
    assert all(len(line) <= 80 for line in text.splitlines())
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("way", "title"),
    [
        ("now", "torch's cache is capped now"),
        ("later", "torch's cache will be capped when torch initialises CUDA"),
        ("environment", "torch's cache will be capped when torch is imported"),
    ],
)
def test_when_a_cap_comes_into_force_is_the_answer(way, title):
    text = said(HALF, way, "absent")
    assert text.startswith(f"{title} cuda:0 = physical 3 70.2 of 140.4 GiB (50 %)")
    assert "torch's cache only" in text
    assert "isolates nothing" in text
    assert "the CUDA context (some 600 MB a GPU)" in text


def test_what_children_do_depends_on_how_it_is_set():
    assert "other libraries, or child processes" in said(HALF, "now", "absent")
    text = said(HALF, "environment", "absent", environment={"PYTORCH_ALLOC_CONF": "x:1"})
    assert "a child process that imports torch reads the same setting" in text
    assert "In the environment: PYTORCH_ALLOC_CONF=x:1" in text


def test_an_older_torch_gets_a_line_of_code():
    code = "torch.cuda.set_per_process_memory_fraction(0.5)"
    text = said((), "after import", "absent", version="2.9.1", code=code)
    assert text.startswith(f"No cap is set on torch yet. Once CUDA is initialised, run {code}")
    assert "torch 2.9.1 reads no cap from the environment; 2.10 and newer do." in text


def test_where_there_is_no_cap_or_none_any_more_nothing_is_covered():
    assert said(NONE, "now", "absent", changed=False) == "torch has no cap here"
    text = said(NONE, "environment", "absent", environment={"PYTORCH_ALLOC_CONF": None})
    assert text == ("torch's cap is taken away In the environment: PYTORCH_ALLOC_CONF is removed")
    assert said((), "absent", "absent") == "torch is not installed in this kernel's Python"


def test_jax_is_told_of_where_it_is_there():
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    text = said(HALF, "now", "environment", 0.5, environment={name: "0.5"})
    assert f"JAX has not begun, and will read this: {name}=0.5." in text
    assert "JAX takes at most 50 % of each GPU." in said(HALF, "now", "environment", 0.5)
    assert "its share stays as it is until a restart" in said(HALF, "now", "too late")
    assert "JAX" not in said(NONE, "now", "too late", changed=False)
    assert "JAX" not in said(HALF, "now", "absent")


def test_what_torch_holds_above_the_cap_is_not_taken_from_it():
    text = said(HALF, "now", "absent", held_bytes={0: 100 * GIB, 1: GIB})
    assert "Note: torch holds 100.0 GiB of cuda:0 already, more than the cap" in text
    assert "cuda:1 already" not in text


def test_devices_of_unknown_memory_are_told_by_share():
    unknown = (DeviceCap(0, device(3, memory_total_bytes=None), 0.5),)
    assert "cuda:0 = physical 3 50 %" in said(unknown, "now", "absent")
    mixed = (HALF[0], DeviceCap(1, device(1), None))
    assert "no cap is known" in said(mixed, "now", "absent", changed=False)


def test_programs_get_fractions_and_bytes():
    answer = limits_answer(Limits(HALF, "now", "absent"))
    assert answer["schema"] == 1
    row = answer["caps"][0]
    assert (row["ordinal"], row["index"], row["fraction"]) == (0, 3, 0.5)
    assert row["bytes"] == 150_754_820_096 // 2
    assert (answer["torch"], answer["jax"], answer["environment"]) == ("now", "absent", {})


@pytest.mark.parametrize("changed", [True, False])
def test_a_torch_without_cuda_is_promised_nothing(changed):
    text = said(
        (), "without CUDA", "absent", version="2.13.0+cpu", changed=changed,
        environment={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.5"},
    )  # fmt: skip
    assert text == (
        "torch 2.13.0+cpu is built without CUDA, so it has nothing to cap In the environment: "
        "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"
    )
