"""The gauge of a machine that is an inventory."""

from jupyter_gpu.adapters.gauge import InventoryGauge
from jupyter_gpu.core.devices import Inventory, Process
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.testing import FakeMachine, fake_gpu


def test_it_reads_what_is_so_at_that_moment_in_the_order_asked_for():
    machine = FakeMachine(fake_gpu(0, memory_used_bytes=5), fake_gpu(1, memory_used_bytes=7))
    one, two = (device.uuid for device in machine.inventory.devices)
    gauge = machine.gauge([two, "GPU-unknown", one])
    gone = Reading(problem="The simulated machine no longer has this device.")
    assert gauge.read() == (Reading(7), gone, Reading(5))
    machine.set(fake_gpu(0, memory_used_bytes=6, utilization_percent=40, power_watts=300.0))
    assert gauge.read() == (gone, gone, Reading(6, 40, 300.0))
    assert gauge.read(sensors=False) == (gone, gone, Reading(6))
    assert gauge.energy_joules() == (None, None, None)
    assert isinstance(gauge, InventoryGauge)


def test_it_reads_temperature_with_the_sensors_and_processes_where_they_are_asked_for():
    running = (Process(7, 3),)
    machine = FakeMachine(fake_gpu(0, temperature_celsius=50, processes=running))
    gauge = machine.gauge([machine.inventory.devices[0].uuid])
    assert gauge.read() == (Reading(0, temperature_celsius=50),)
    assert gauge.read(sensors=False, processes=True) == (Reading(0, processes=running),)


def test_what_is_wrong_with_a_device_is_told_but_not_that_it_is_used_in_parts():
    machine = FakeMachine(
        fake_gpu(0, problem="GPU 0 is lost."), fake_gpu(1, problem="in parts", mig_mode=True)
    )
    gauge = machine.gauge([device.uuid for device in machine.inventory.devices])
    assert [reading.problem for reading in gauge.read()] == ["GPU 0 is lost.", None]


def test_a_machine_that_is_silent_says_itself_why():
    machine = FakeMachine(fake_gpu(0))
    gauge = machine.gauge([fake_gpu(0).uuid])
    machine.inventory = Inventory("none", problem="There is no driver.")
    assert gauge.read() == (Reading(problem="There is no driver."),)
    machine.inventory = Inventory("none")
    assert gauge.read()[0].problem == "There is no driver library that lists this device."
