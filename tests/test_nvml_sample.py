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


WHOLE = """
    [whole] = gauge.read(processes=True)
    tell([whole.temperature_celsius, [[one.pid, one.memory_bytes] for one in whole.processes]])
"""
PROBLEM = "tell([one.problem for one in gauge.read(processes=True)])"


def test_temperature_and_processes_are_read_as_the_inventory_has_them(driver_double):
    running = [
        {"pid": 9, "memory_bytes": 4},
        {"pid": 7, "memory_bytes": 2, "mps": True},
        {"pid": 8},
        {"pid": 6, "memory_bytes": 1, "graphics": True},
    ]
    driver_double.write(gpu(0, temperature_celsius=61, processes=running))
    *_, whole = ask(driver_double, [gpu(0)["uuid"]], WHOLE)
    assert whole == [61, [[7, 2], [8, None], [9, 4]]]


def test_processes_are_not_asked_for_otherwise(driver_double):
    fails = {"nvmlDeviceGetComputeRunningProcesses": 999}
    driver_double.write(gpu(0, errors=fails))
    more = "tell([one.problem for one in gauge.read()])\n    " + PROBLEM
    *_, without, with_them = ask(driver_double, [gpu(0)["uuid"]], more)
    assert without == [None]
    assert with_them[0].startswith("GPU 0 answers with an unknown error")


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ({"nvmlDeviceGetPowerUsage": 15}, "GPU 1 is lost"),
        ({"nvmlDeviceGetTemperature": 16}, "GPU 1 needs a reset"),
        ({"nvmlDeviceGetMemoryInfo": 4}, "GPU 1 may not be looked at"),
        ({"nvmlDeviceGetMemoryInfo": 18}, "GPU 1 cannot be read, because the driver was updated"),
        (
            {"nvmlDeviceGetComputeRunningProcesses": 77},
            "GPU 1 cannot be read: NVML failed with code 77",
        ),
        ({"nvmlDeviceGetTemperature": 3}, None),
        ({"nvmlDeviceGetUtilizationRates": 999}, None),
        ({"nvmlDeviceGetPowerUsage": 4}, None),
        ({"nvmlDeviceGetComputeRunningProcesses": 3}, None),
    ],
)
def test_what_is_wrong_is_told_with_the_physical_index(driver_double, errors, words):
    driver_double.write(gpu(0), gpu(1, errors=errors))
    *_, (problem,) = ask(driver_double, [gpu(1)["uuid"]], PROBLEM)
    assert problem is None if words is None else problem.startswith(words)


def test_a_broken_mig_device_is_told_by_its_gpu(driver_double):
    part = mig(0, errors={"*": 15, "nvmlDeviceGetUUID": 0})
    driver_double.write(gpu(0), gpu(1, mig_mode=True, mig=[part]))
    *_, (problem,) = ask(driver_double, [part["uuid"]], PROBLEM)
    assert problem.startswith("GPU 1 is lost")


def test_another_librarys_shutdown_is_made_up_for(driver_double):
    driver_double.write(gpu(0, **BUSY))
    more = "import pynvml; pynvml.nvmlShutdown(); tell(readings(gauge, sensors=False))"
    *_, again = ask(driver_double, [gpu(0)["uuid"]], more)
    assert again == [[5 << 30, None, None]]


def test_why_nothing_can_be_read_is_told_in_words(driver_double):
    driver_double.write(gpu(0), errors={"nvmlInit": 18})
    *_, (updated,) = ask(driver_double, [gpu(0)["uuid"]], PROBLEM)
    assert updated.startswith("The NVIDIA driver was updated")
    driver_double.write(gpu(0))
    *_, (closed,) = ask(driver_double, [gpu(0)["uuid"]], "machine.close(); " + PROBLEM)
    assert closed == "This connection to NVML is closed."
    *_, (unlisted,) = ask(driver_double, [gpu(1)["uuid"]], PROBLEM)
    assert unlisted.startswith("NVML no longer lists this device")


@pytest.mark.parametrize("sensors", [True, False])
def test_a_device_without_a_handle_is_not_asked_about(sensors):
    def ask(*question):
        raise AssertionError(question)

    gauge = NVMLGauge(ask, lambda: ("It is gone.",))
    assert gauge.read(sensors=sensors, processes=True) == (Reading(problem="It is gone."),)
    assert gauge.energy_joules() == (None,)
