import importlib.util
import json
import os
import sys

import pytest
from support_cli import inventory

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.cell_watch import CellWatch
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.kernel_process import FRAMEWORK, look_at_kernel

ASK = """
import json, os
from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.cell_watch import CellWatch
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.kernel_process import look_at_kernel
watch = CellWatch(Launch.of_this_process())
with find_machine(os.environ) as machine:
    inventory = machine.read()
    def look():
        found = look_at_kernel(os.environ, inventory, watch)
        force = None if found.in_force is None else [d.index for d in found.in_force]
        return [found.state, force]
    answers = [look()]
    %s
print(json.dumps(answers))
"""


@pytest.fixture
def here():
    return CellWatch(Launch(os.getpid(), None))


def test_where_there_is_a_machine_and_no_driver_is_loaded_it_is_open(here):
    assert look_at_kernel({}, inventory(), here).state == "open"
    assert look_at_kernel({}, Inventory("none"), here).state == "absent"


def test_a_simulated_machine_is_simulated(here):
    found = look_at_kernel({}, inventory(source="simulated"), here)
    assert (found.state, found.in_force) == ("simulated", None)


def test_a_fork_is_told_by_its_pid():
    parent = CellWatch(Launch(os.getppid(), None))
    assert look_at_kernel({}, inventory(), parent).state == "forked"


def test_the_lease_and_the_two_values_are_the_environments():
    environ = {"CUDA_VISIBLE_DEVICES": "1", "JUPYTER_GPU_LEASE": "a" * 15}
    found = look_at_kernel(environ, inventory(), CellWatch(Launch(os.getpid(), "3,5")))
    assert (found.launched_with, found.set_now, found.lease_id) == ("3,5", "1", "a" * 15)


def test_the_notice_of_the_start_is_shown_line_by_line(here):
    environ = {"JUPYTER_GPU_NOTICE": "This kernel has no GPU.\n\nNo GPU is free.\x1b[2J\n"}
    assert look_at_kernel(environ, inventory(), here).notices == (
        "This kernel has no GPU.",
        "No GPU is free.?[2J",
    )


def test_a_framework_that_is_missing_is_said_with_what_installs_it(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if there were none
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = look_at_kernel({FRAMEWORK: "torch"}, inventory(), here)
    (sentence,) = found.missing
    assert found.notices == ()
    assert sentence.startswith("PyTorch is not installed")
    assert sentence.endswith("%pip install torch")
    assert len(f"Note: {sentence}") <= 80
    assert look_at_kernel({FRAMEWORK: "json"}, inventory(), here).missing == ()
    assert look_at_kernel({}, inventory(), here).missing == ()


def test_a_framework_that_is_there_is_not_mentioned(here, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert look_at_kernel({FRAMEWORK: "torch"}, inventory(), here).missing == ()


def test_the_driver_is_open_until_it_is_initialised_and_then_believed(driver_double):
    from doubles import gpu

    driver_double.write(gpu(0), gpu(1), gpu(2))
    code = ASK % (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); answers.append(look()); "
        "cuda.cuInit(0); os.environ[VISIBLE] = '0'; answers.append(look())"
    )
    said = driver_double.python(code, CUDA_VISIBLE_DEVICES="2,1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert json.loads(said) == [["open", None], ["open", None], ["frozen", [2, 1]]]
