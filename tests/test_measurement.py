"""What a cell took, computed from readings."""

import json

import pytest

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.measurement import (
    AllocatorMemory,
    Cell,
    Recording,
    Sample,
    measurement,
    merged,
)
from jupyter_gpu.core.readings import Reading

UUID = "GPU-3"
INVENTORY = Inventory("nvml", devices=(Device(3, UUID, "NVIDIA H200", memory_total_bytes=1000),))
ROWS = (InForce(0, 3, UUID),)


def sample(seconds, span, memory=None, load=None, watts=None):
    return Sample(seconds, span, (Reading(memory, load, watts),))


SAMPLES = (
    sample(0, 0, 100, 90, 70),  # before the cell: its load is not the cell's
    sample(1, 1, 500, 20, 100),
    sample(2, 0, 900),  # memory only
    sample(5, 4, 300, 80, 300),
)


def measure(
    *samples, before=(), after=(), rows=ROWS, torch=None, inventory=INVENTORY, seconds=5.0, **more
):
    recording = Recording(samples, before, after, len(samples), 0.01, **more)
    return measurement(recording, Cell(seconds, "done", rows, (UUID,), torch or {}), inventory)


def test_memory_is_told_before_at_its_peak_after_and_as_what_was_added():
    (device,) = measure(*SAMPLES).devices
    assert (device.ordinal, device.index, device.name) == (0, 3, "NVIDIA H200")
    assert device.memory_total_bytes == 1000
    memory = (device.memory_before_bytes, device.memory_peak_bytes, device.memory_after_bytes)
    assert memory == (100, 900, 300)
    assert device.memory_added_bytes == 200


def test_utilisation_is_a_mean_over_time_without_what_was_before_the_cell():
    (device,) = measure(*SAMPLES).devices
    assert device.utilization_mean_percent == (20 * 1 + 80 * 4) / 5
    assert device.utilization_peak_percent == 80


def test_energy_is_the_counters_difference():
    (device,) = measure(*SAMPLES, before=(10.5,), after=(22.0,)).devices
    assert (device.energy_joules, device.energy_estimated) == (11.5, False)


@pytest.mark.parametrize(
    ("before", "after"), [((), ()), ((None,), (None,)), ((5.0,), (4.0,)), ((5.0,), ())]
)
def test_without_a_counter_energy_is_estimated_from_the_power(before, after):
    (device,) = measure(*SAMPLES, before=before, after=after).devices
    assert (device.energy_joules, device.energy_estimated) == (100 * 1 + 300 * 4, True)


@pytest.mark.parametrize("seconds", [51e-6, 0.0012, 0.0045])
def test_the_energy_of_a_short_cell_is_that_of_its_own_time(seconds):
    samples = (sample(0, 0, 1, 0, 75.5), sample(0.010, 0.010, 1, 0, 75.5))
    for counter in ({}, {"before": (1.0,), "after": (8.6,), "energy_seconds": 0.009}):
        (device,) = measure(*samples, seconds=seconds, cell_at_seconds=0.004, **counter).devices
        assert device.energy_joules == pytest.approx(75.5 * seconds)
        assert device.energy_estimated


def test_power_before_and_after_the_cell_is_not_the_cells():
    samples = (sample(0, 0, 1, 0, 70), sample(2, 2, 1, 0, 100), sample(6, 4, 1, 0, 300))
    (device,) = measure(*samples, seconds=2, cell_at_seconds=1).devices
    assert device.energy_joules == pytest.approx(100 + 300)
    later = sample(9, 3, 1, 0, None)
    assert measure(*samples, later, seconds=2, cell_at_seconds=1).energy_joules == 400


@pytest.mark.parametrize(
    ("between", "joules", "estimated"),
    [(5.0, 12, False), (5.01, 12 * 5 / 5.01, False), (6.0, 10, True), (4.0, 12, False)],
)
def test_a_counter_that_was_read_around_the_cell_is_scaled_to_it(between, joules, estimated):
    (device,) = measure(*SAMPLES, before=(10,), after=(22,), energy_seconds=between).devices
    assert device.energy_joules == pytest.approx(joules)
    assert device.energy_estimated is estimated


def test_a_short_cell_without_power_has_its_share_of_the_counter():
    samples = (sample(0, 0, 1), sample(0.01, 0.01, 1))
    what = {"before": (1.0,), "after": (2.0,), "energy_seconds": 0.010, "seconds": 0.005}
    (device,) = measure(*samples, **what).devices
    assert (device.energy_joules, device.energy_estimated) == (0.5, True)


def test_what_is_unknown_is_none():
    (device,) = measure(sample(0, 0), sample(5, 5)).devices
    assert device.memory_peak_bytes is device.memory_added_bytes is None
    assert device.utilization_mean_percent is device.utilization_peak_percent is None
    assert (device.energy_joules, device.energy_estimated, device.torch) == (None, False, None)
    assert measure(sample(0, 0), sample(5, 5)).energy_joules is None


def test_a_device_that_was_not_sampled_is_there_without_numbers():
    rows = (InForce(0, 3, UUID), InForce(1, 4, "GPU-4"), InForce(2, None, None))
    measured = measure(*SAMPLES, rows=rows, torch={1: AllocatorMemory(1, 9, 4)})
    assert [device.memory_peak_bytes for device in measured.devices] == [900, None, None]
    assert measured.devices[1].torch.added_bytes == 3
    assert measured.samples[1].readings == (SAMPLES[1].readings[0], Reading(), Reading())


def test_a_device_that_is_not_visible_after_the_cell_is_left_out():
    measured = measure(*SAMPLES, rows=())
    assert (measured.devices, measured.energy_joules) == ((), None)
    assert measured.samples[1].readings == ()


def test_energy_of_all_devices_is_known_only_when_each_is():
    rows = (*ROWS, InForce(1, 4, "GPU-4"))
    assert measure(*SAMPLES, before=(1.0,), after=(3.0,)).energy_joules == 2
    assert measure(*SAMPLES, before=(1.0,), after=(3.0,), rows=rows).energy_joules is None


def test_merging_keeps_ends_peaks_means_and_energy():
    samples = (
        sample(0, 0, 100, 90, 70),
        sample(1, 1, 500, 20, 100),
        sample(2, 1, 900, 60, 200),
        sample(3, 0, 950),
        sample(6, 4, 300, 80, 300),
        sample(7, 1, 310, 10, 90),
        sample(8, 1, 300, 0, 80),
    )
    halved = merged(samples)
    assert len(halved) == 5
    assert (halved[0], halved[-1]) == (samples[0], samples[-1])
    whole, half = (measure(*one, seconds=8).devices[0] for one in (samples, halved))
    for name in ("memory_before_bytes", "memory_peak_bytes", "memory_after_bytes"):
        assert getattr(half, name) == getattr(whole, name)
    assert half.utilization_mean_percent == pytest.approx(whole.utilization_mean_percent)
    assert half.utilization_peak_percent == whole.utilization_peak_percent == 80
    assert half.energy_joules == pytest.approx(whole.energy_joules)
    again = measure(*merged(halved), seconds=8).devices[0]
    assert again.utilization_peak_percent == 80
    assert again.energy_joules == pytest.approx(whole.energy_joules)


def test_json_has_a_schema_and_only_plain_values():
    measured = measure(*SAMPLES, before=(1.0,), after=(3.0,), torch={0: AllocatorMemory(1, 9, 4)})
    data = measured.as_json()
    assert json.loads(json.dumps(data)) == data
    assert (data["schema"], data["seconds"], data["ended"]) == (1, 5.0, "done")
    assert data["machine"] == {"source": "nvml", "problem": None}
    (device,) = data["devices"]
    assert device["memory_added_bytes"] == 200
    assert device["torch"]["allocated_peak_bytes"] == 9
    assert data["sampling"] == {"reads": 4, "cpu_seconds": 0.01, "cpu_share": 0.002}
    assert data["samples"][2]["devices"] == [
        {"memory_used_bytes": 900, "utilization_percent": None, "power_watts": None}
    ]


def test_the_cost_is_unknown_where_nothing_was_sampled():
    assert measurement(
        Recording(), Cell(1.0, "done", (), (), {}), Inventory("none", problem="No driver.")
    ).as_json()["sampling"] == {"reads": 0, "cpu_seconds": None, "cpu_share": None}


def test_the_machines_problem_comes_before_the_samplers():
    recording = Recording(problem="The sampler stopped.")
    cell = Cell(1.0, "done", (), (), {})
    assert measurement(recording, cell, Inventory("none", problem="No driver.")).problem == (
        "No driver."
    )
    assert measurement(recording, cell, Inventory("nvml")).problem == "The sampler stopped."


def test_it_shows_itself_as_text_and_html():
    measured = measure(*SAMPLES)
    assert repr(measured).startswith("The cell took 5 s")
    assert measured._repr_html_().startswith("<div")
