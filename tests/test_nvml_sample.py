"""Devices read again and again through NVML, over a double of the driver library."""

import json

import pytest
from doubles import gpu, mig
from doubles.fixtures import driver_double, driver_libraries, old_driver_libraries
from doubles.machine import DriverDouble

from jupyter_gpu.adapters.nvml_sample import NVMLGauge
from jupyter_gpu.core.readings import Reading

__all__ = ["driver_double", "driver_libraries", "old_driver_libraries"]

BUSY = {"memory_used_bytes": 5 << 30, "utilization_percent": 37, "power_watts": 410.5}
CODE = """
import dataclasses, json, os, sys
from jupyter_gpu.adapters.nvml import NVMLMachine

def tell(value):
    print(json.dumps(value))

def readings(gauge, **options):
    return [list(dataclasses.astuple(one)[:3]) for one in gauge.read(**options)]

with NVMLMachine() as machine:
    uuids = json.loads(os.environ["UUIDS"])
    gauge = machine.gauge(uuids)
    tell(readings(gauge))
    tell(readings(gauge, sensors=False))
    tell(gauge.energy_joules())
    {more}
"""


def ask(double, uuids, more=""):
    said = double.python(CODE.replace("{more}", more), UUIDS=json.dumps(uuids))
    return [json.loads(line) for line in said.splitlines()]


def test_devices_are_read_in_the_order_asked_for(driver_double):
    driver_double.write(gpu(0), gpu(1, **BUSY, energy_joules=1234.567))
    uuids = [gpu(1)["uuid"], "GPU-unknown", gpu(0)["uuid"]]
    everything, memory, energy = ask(driver_double, uuids)
    assert everything == [[5 << 30, 37.0, 410.5], [None] * 3, [0, 0.0, 75.5]]
    assert memory == [[5 << 30, None, None], [None] * 3, [0, None, None]]
    assert energy == [1234.567, None, None]


def test_a_lost_gpu_on_the_way_does_not_hide_the_others(driver_double):
    driver_double.write(
        gpu(0, errors={"*": 15}), gpu(1, **BUSY), gpu(2, errors={"nvmlDeviceGetHandleByIndex": 4})
    )
    everything, _, _ = ask(driver_double, [gpu(0)["uuid"], gpu(1)["uuid"], gpu(2)["uuid"]])
    assert everything == [[None] * 3, [5 << 30, 37.0, 410.5], [None] * 3]


def test_a_mig_device_has_memory_and_nothing_else_of_its_own(driver_double):
    part = mig(1, memory_used_bytes=7)
    driver_double.write(gpu(0), gpu(1, mig_mode=True, mig=[part], energy_joules=5))
    everything, _, energy = ask(driver_double, [part["uuid"]])
    assert everything[0][0] == 7
    assert energy == [None]


def test_handles_are_opened_once_and_a_gpu_that_is_lost_later_is_unknown(driver_double):
    driver_double.write(gpu(0, **BUSY, energy_joules=3))
    lost = json.dumps({"gpus": [gpu(0, errors={"*": 15, "nvmlDeviceGetHandleByIndex": 15})]})
    more = f"""
    from pathlib import Path
    fresh = Path(os.environ["JUPYTER_GPU_DOUBLE"]).with_suffix(".next")
    fresh.write_text({lost!r})
    fresh.replace(os.environ["JUPYTER_GPU_DOUBLE"])
    tell(readings(gauge))
    tell(gauge.energy_joules())
"""
    *_, everything, energy = ask(driver_double, [gpu(0)["uuid"]], more)
    assert (everything, energy) == ([[None] * 3], [None])


def test_once_the_machine_is_closed_nothing_is_known(driver_double):
    driver_double.write(gpu(0, **BUSY))
    *_, everything = ask(driver_double, [gpu(0)["uuid"]], "machine.close(); tell(readings(gauge))")
    assert everything == [[None] * 3]


def test_an_old_driver_counts_memory_its_own_way(old_driver_libraries, tmp_path):
    double = DriverDouble(old_driver_libraries, tmp_path / "machine.json")
    double.write(gpu(0, memory_used_bytes=5, memory_reserved_bytes=3))
    everything, _, _ = ask(double, [gpu(0)["uuid"]])
    assert everything == [[8, 0.0, 75.5]]


def test_without_a_driver_every_device_is_unknown(driver_double):
    driver_double.path.unlink()
    everything, _, energy = ask(driver_double, ["GPU-1", "GPU-2"])
    assert (everything, energy) == ([[None] * 3] * 2, [None] * 2)


@pytest.mark.parametrize("sensors", [True, False])
def test_a_device_without_a_handle_is_not_asked_about(sensors):
    def ask(*question):
        raise AssertionError(question)

    gauge = NVMLGauge(ask, lambda: ("It is gone.",))
    assert gauge.read(sensors=sensors, processes=True) == (Reading(problem="It is gone."),)
    assert gauge.energy_joules() == (None,)
