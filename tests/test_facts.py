import os
import sys

from doubles import gpu
from doubles.fixtures import driver_double, driver_libraries
from support_cli import device, inventory, kernel, overview

from jupyter_gpu.core.facts import DeviceUser, Facts, Installed
from jupyter_gpu.facts import gather

__all__ = ["driver_double", "driver_libraries"]


def test_a_library_is_found_by_its_distribution():
    torch = Installed("torch", "torch", "2.13.0")
    assert Facts(installed=(torch,)).library("torch") is torch
    assert Facts().library("torch") is None


def test_a_user_of_devices_is_said_in_words():
    assert DeviceUser(7, "ben", "python a.py", (0,)).words == "7 of ben (python a.py)"


def test_a_simulated_machine_has_no_driver_to_ask_and_nobodys_device_open(eight_gpus):
    found = gather(os.environ, overview(eight_gpus))
    assert found.driver is None
    assert found.users == ()
    assert found.pip == f"{sys.executable} -m pip"
    assert found.python == sys.executable


def test_in_a_kernel_a_fix_is_a_line_for_a_cell():
    found = gather(os.environ, overview(inventory(device(0)), process=kernel()))
    assert (found.pip, found.python) == ("%pip", None)


def test_b47_a_fork_begins_nothing():
    found = gather(os.environ, overview(inventory(device(0)), process=kernel(state="forked")))
    assert found.driver is None


def test_the_driver_is_asked_in_a_child(driver_double):
    driver_double.write(gpu(0), gpu(1))
    code = (
        "import os\nfrom jupyter_gpu.facts import gather\n"
        "from jupyter_gpu.overview import read_overview\n"
        "print(len(gather(os.environ, read_overview(os.environ)).driver.uuids))"
    )
    assert driver_double.python(code, CUDA_VISIBLE_DEVICES="1") == "1\n"
