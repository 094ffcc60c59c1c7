"""The view of a measured cell."""

import dataclasses

import pytest

from jupyter_gpu.core.measurement import AllocatorMemory, DeviceMeasurement, Measurement
from jupyter_gpu.core.measurement_view import measurement_view
from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.render_text import as_text

GIB = 1 << 30
DEVICE = DeviceMeasurement(
    ordinal=0,
    index=3,
    uuid="GPU-3",
    name="NVIDIA H200",
    memory_total_bytes=140 * GIB,
    memory_before_bytes=2 * GIB,
    memory_peak_bytes=61 * GIB,
    memory_after_bytes=14 * GIB,
    utilization_mean_percent=43,
    utilization_peak_percent=99,
    energy_joules=812,
    torch=AllocatorMemory(GIB, 58 * GIB, 12 * GIB),
)
MEASURED = Measurement(
    seconds=2.41,
    ended="done",
    source="nvml",
    machine="NVIDIA 580.159.04, CUDA 13.0",
    devices=(DEVICE, dataclasses.replace(DEVICE, ordinal=1, index=5, uuid="GPU-5", torch=None)),
    reads=118,
    cpu_seconds=0.0072,
)


def text(**changes):
    return as_text(measurement_view(dataclasses.replace(MEASURED, **changes)))


def with_device(**changes):
    return text(devices=(dataclasses.replace(DEVICE, **changes),))


def test_the_answer_comes_first_and_all_fits_a_terminal():
    assert text() == (
        "The cell took 2.41 s and 1624 J on 2 devices        NVIDIA 580.159.04, CUDA 13.0\n"
        "  Device               Peak               Added      Load             Energy\n"
        "  cuda:0 = physical 3  61.0 of 140.0 GiB  +12.0 GiB  43 %, peak 99 %  812 J\n"
        "  cuda:1 = physical 5  61.0 of 140.0 GiB  +12.0 GiB  43 %, peak 99 %  812 J\n"
        "This kernel alone, by torch's allocator:\n"
        "  Device  Peak      Added      Now\n"
        "  cuda:0  58.0 GiB  +11.0 GiB  12.0 GiB\n"
        "Memory, load and energy are the whole device's, whoever uses it.\n"
        "Read 118 times, which took 0.3 % of a core."
    )


@pytest.mark.parametrize(
    ("ended", "words"),
    [("failed", "The cell failed after 2.41 s"), ("interrupted", "was interrupted after 2.41 s")],
)
def test_how_it_ended_is_said(ended, words):
    assert words in text(ended=ended)


def test_an_estimate_is_called_one():
    said = with_device(energy_joules=812, energy_estimated=True)
    assert "2.41 s and ~812 J on 1 device" in said
    assert "Note: The energy is estimated: no energy counter tells" in said


def test_a_short_cell_and_a_cheap_one():
    assert "Read before and after the cell only: it was too short" in text(reads=2, seconds=0.004)
    assert "took less than 0.1 % of a core" in text(cpu_seconds=0.0001)
    assert text(cpu_seconds=None).endswith("Read 118 times.")
    short = text(seconds=0.4)
    assert "Note: The driver's load is a mean over up to a second" in short
    assert "mean over" not in text()


def test_without_a_gpu_the_time_is_told_and_why_no_more():
    alone = text(devices=(), reads=0)
    assert alone.startswith("The cell took 2.41 s ")
    assert "No GPU is visible in this kernel, so only the time was measured." in alone
    broken = text(devices=(), reads=0, source="none", problem="There is no driver here.")
    assert "Note: There is no driver here." in broken
    assert "No GPU is visible" not in broken


def test_simulated_numbers_are_called_so():
    assert "Note: This machine is simulated" in text(source="simulated")


def test_a_mig_device_says_what_it_cannot_have():
    assert "A MIG device has no load and no energy" in with_device(kind="mig")


def test_a_device_of_which_nothing_could_be_read_is_named():
    assert "Nothing could be read of cuda:0." in with_device(
        index=None, memory_peak_bytes=None, memory_total_bytes=None
    )


def test_many_devices_of_which_nothing_could_be_read_fit_the_line():
    unread = dataclasses.replace(DEVICE, memory_peak_bytes=None)
    many = tuple(dataclasses.replace(unread, ordinal=ordinal) for ordinal in range(13))
    said = text(devices=many)
    assert "cuda:4, cuda:5 and 7 more." in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80


def test_the_total_is_that_of_the_rows_as_shown():
    row = dataclasses.replace(DEVICE, energy_joules=0.163, energy_estimated=True)
    said = text(devices=(row, row, row))
    assert "~0.48 J on 3 devices" in said
    assert said.count("~0.16 J") == 3


def test_html_has_the_same_table_and_text_from_outside_is_escaped():
    page = as_html(measurement_view(dataclasses.replace(MEASURED, problem="<script>")))
    assert "61.0 of 140.0 GiB" in page
    assert "<script>" not in page
