"""The gauge of a machine that is an inventory."""

from jupyter_gpu.adapters.gauge import InventoryGauge
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
