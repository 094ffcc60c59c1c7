import pytest
from support_cli import GIB, device, inventory

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.overview import Leasing
from jupyter_gpu.core.view import (
    load_words,
    machine_notes,
    machine_words,
    memory_words,
    model_words,
    spans,
    value_words,
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB MIG 1g.10gb"),
        ("NVIDIA", "NVIDIA"),
        ("bad\x1b[31m\nname", "bad?[31m?name"),
    ],
)
def test_a_model_is_named_without_its_maker(name, words):
    assert model_words(device(0, name=name)) == words


def test_amounts_have_units_and_the_unknown_is_a_dash():
    assert memory_words(device(0, memory_used_bytes=13 * GIB)) == "13.0 of 140.4 GiB"
    assert memory_words(device(0, memory_used_bytes=None)) == "– of 140.4 GiB"
    assert memory_words(device(0, memory_total_bytes=None)) == "–"
    assert load_words(device(0, utilization_percent=43)) == "43 %"
    assert load_words(device(0, utilization_percent=None)) == "–"


def test_a_simulated_machine_is_called_one():
    assert machine_words(inventory()) == "NVIDIA 580.159.04, CUDA 13.0"
    assert machine_words(inventory(source="simulated")).startswith("simulated machine, ")
    assert machine_words(Inventory("simulated")) == "simulated machine"
    assert machine_words(Inventory("none")) == ""


def test_a_value_is_quoted_shortened_and_safe():
    assert value_words(None) == "not set"
    assert value_words("") == '""'
    assert value_words("\x1b[2J") == '"?[2J"'
    assert len(value_words("0," * 500)) < 70


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2), "0, 1, 2"),
        ((0, 1, 2, 3), "0–3"),
        ((7, 0, 1, 2, 3, 4, 9, 8), "7, 0–4, 9, 8"),
        ((3, 2, 1, 0), "3, 2, 1, 0"),
    ],
)
def test_many_indices_in_a_row_are_a_span(numbers, words):
    assert spans(numbers) == words


def test_problems_are_said_once_and_name_their_gpu():
    lost = device(1, problem="GPU 1 is lost; reboot.")
    hot = device(2, problem="too hot")
    mig = device(3, problem="in MIG mode", mig_mode=True)
    notes = machine_notes(
        inventory(lost, hot, mig, problem="One is hidden."), Leasing(problem="No.", warning="Hm.")
    )
    assert notes == (
        "One is hidden.",
        "GPU 1 is lost; reboot.",
        "GPU 2: too hot",
        "No.",
        "Hm.",
    )


def test_a_machine_without_gpus_has_nothing_to_be_unsafe_about():
    assert machine_notes(Inventory("none"), Leasing(warning="not safe")) == ()
