"""The seam to the machine."""

import pytest

from jupyter_gpu.adapters.machine import find_machine, is_simulated
from jupyter_gpu.adapters.nvml import NVMLMachine
from jupyter_gpu.adapters.simulated import SimulatedMachine


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({}, NVMLMachine),
        ({"JUPYTER_GPU_SIMULATE": ""}, NVMLMachine),
        ({"JUPYTER_GPU_SIMULATE": "2xH200"}, SimulatedMachine),
        ({"JUPYTER_GPU_SIMULATE": "nonsense"}, SimulatedMachine),
    ],
)
def test_the_environment_says_which_machine_is_meant(environ, kind):
    assert type(find_machine(environ)) is kind
    assert is_simulated(environ) == (kind is SimulatedMachine)


def test_a_machine_can_be_read_many_times():
    with find_machine({"JUPYTER_GPU_SIMULATE": "2xH200"}) as machine:
        assert machine.read() == machine.read(sensors=False)
