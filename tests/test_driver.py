"""The driver probe over the double of libcuda: it asks, and never wakes anything."""

from __future__ import annotations

from doubles import gpu

LOOK = """
import ctypes, os, sys
from jupyter_gpu.adapters.driver import look_at_driver
me = os.getpid()
print(look_at_driver(me).state)
library = ctypes.CDLL("libcuda.so.1")
print(look_at_driver(me).state)
os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
print(look_at_driver(me).state, library.cuInit(0))
found = look_at_driver(me)
print(found.state, *found.uuids)
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
print(*look_at_driver(me).uuids)
sys.stdout.flush()
if os.fork() == 0:
    print(look_at_driver(me).state, flush=True)
    os._exit(0)
os.wait()
"""


def test_open_before_cuinit_frozen_after_it_and_forked_in_a_child(driver_double):
    driver_double.write(gpu(0), gpu(1))
    lines = driver_double.python(LOOK).split("\n")
    first, second = (
        one["uuid"].removeprefix("GPU-").replace("-", "") for one in (gpu(0), gpu(1))
    )
    assert lines[:3] == ["absent", "open", "open 0"]
    assert lines[3] == f"frozen {second} {first}"
    assert lines[4] == f"{second} {first}"
    assert lines[5] == "forked"


def test_a_failed_cuinit_leaves_it_open(driver_double):
    driver_double.write(gpu(0))
    code = """
import ctypes, os
from jupyter_gpu.adapters.driver import look_at_driver
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
print(ctypes.CDLL("libcuda.so.1").cuInit(0), look_at_driver(os.getpid()).state)
"""
    assert driver_double.python(code).strip() == "100 open"
