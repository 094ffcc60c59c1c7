"""The chart of a measured cell."""

import dataclasses
import re
from xml.etree import ElementTree as ET

from jupyter_gpu.core.measurement import DeviceMeasurement, Measurement, Sample
from jupyter_gpu.core.measurement_chart import MOST_DEVICES, chart
from jupyter_gpu.core.readings import Reading

DEVICE = DeviceMeasurement(
    0, 3, "GPU-3", memory_peak_bytes=1 << 30, utilization_mean_percent=40,
    utilization_peak_percent=80,
)  # fmt: skip
SAMPLES = (
    Sample(0, 0, (Reading(0, 100),)),
    Sample(1, 1, (Reading(1 << 30, 0),)),
    Sample(2, 1, (Reading(1 << 29, 80),)),
)
MEASURED = Measurement(2.0, "done", "nvml", devices=(DEVICE,), samples=SAMPLES)


def paths(svg):
    tree = ET.fromstring(svg)
    return [one.get("d") for one in tree.iter("path")]


def test_it_is_an_image_whose_label_says_the_numbers():
    svg = chart(MEASURED)
    tree = ET.fromstring(svg)
    assert tree.get("role") == "img"
    assert tree.get("aria-label") == "Over 2 s: cuda:0, memory up to 1.0 GiB, load 40 %, peak 80 %"
    assert tree.find("title").text == tree.get("aria-label")
    said = "".join(tree.itertext())
    assert "cuda:0 = physical 3" in said
    assert "Memory, peak 1.0 GiB" in said
    assert "Load, mean 40 %, peak 80 %" in said


def test_it_shrinks_with_the_page_and_takes_the_themes_colours():
    svg = chart(MEASURED)
    assert "max-width:100%" in svg
    assert re.findall(r"#[0-9a-f]{3,6}\b", svg) == []
    assert {"xlink", "script", "<style"}.isdisjoint(svg)
    colours = re.findall(r'(?:fill|stroke)="([^"]+)"', svg)
    assert all(one == "none" or "currentColor" in one for one in colours)


def test_memory_is_an_area_up_to_its_peak_and_load_a_line_of_what_the_cell_did():
    *_, area, line = paths(chart(MEASURED))
    assert area == "M2.0 68.0L86.0 34.0L170.0 51.0L170.0 68L2.0 68Z"
    assert line == "M190.0 68.0L274.0 68.0L358.0 40.8"


def test_without_a_second_sample_or_a_device_there_is_none():
    assert chart(dataclasses.replace(MEASURED, samples=SAMPLES[:1])) == ""
    assert chart(dataclasses.replace(MEASURED, devices=())) == ""


def test_unknown_values_leave_their_panel_empty():
    unknown = tuple(Sample(one.seconds, one.span_seconds, (Reading(),)) for one in SAMPLES)
    svg = chart(
        dataclasses.replace(MEASURED, samples=unknown, devices=(DeviceMeasurement(0, None, "<b>"),))
    )
    assert len(paths(svg)) == 2
    assert "cuda:0 = physical unknown" in svg


def test_many_devices_do_not_fill_the_page():
    many = tuple(dataclasses.replace(DEVICE, ordinal=n) for n in range(16))
    samples = tuple(Sample(one.seconds, one.span_seconds, one.readings * 16) for one in SAMPLES)
    svg = chart(dataclasses.replace(MEASURED, devices=many, samples=samples))
    assert len(ET.fromstring(svg).findall("g")) == MOST_DEVICES
