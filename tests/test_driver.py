"""The driver probe over the double of libcuda: it asks, and never wakes anything."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from doubles import gpu
from doubles.builder import compiler

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
    first, second = (one["uuid"].removeprefix("GPU-").replace("-", "") for one in (gpu(0), gpu(1)))
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


LATER = """
import ctypes, os
from jupyter_gpu.adapters.driver import DriverWatch
watch = DriverWatch()
print(watch.is_frozen())
{load}
print(watch.is_frozen())
library.cuInit(0)
print(watch.is_frozen())
watch.close()
print(watch.is_frozen())
"""
LOADS = {
    "for all": "library = ctypes.CDLL('libcuda.so.1', mode=os.RTLD_GLOBAL)",
    "for itself": "library = ctypes.CDLL('libcuda.so.1', mode=os.RTLD_LOCAL)",
    "by its path": "library = ctypes.CDLL(os.environ['LD_LIBRARY_PATH'] + '/libcuda.so.1')",
    "with all files closed": "library = ctypes.CDLL('libcuda.so.1'); os.closerange(3, 64)",
    "with its file's number taken": (
        "os.closerange(3, 64); taken = [os.pipe() for _ in range(8)]\n"
        "library = ctypes.CDLL('libcuda.so.1')"
    ),
    "and its file gone": (
        "path = os.environ['COPY']; library = ctypes.CDLL(path); os.unlink(path)"
    ),
}


@pytest.mark.parametrize("how", LOADS)
def test_the_watch_sees_a_library_that_is_loaded_later(driver_double, tmp_path, how):
    copy = tmp_path / "a folder" / "libcuda.so.1"
    copy.parent.mkdir()
    shutil.copy(driver_double.libraries / "libcuda.so.1", copy)
    driver_double.write(gpu(0))
    said = driver_double.python(LATER.replace("{load}", LOADS[how]), COPY=str(copy))
    assert said.split() == ["False", "False", "True", "True"]


def test_a_library_whose_file_was_replaced_is_asked_for_its_devices_too(driver_double, tmp_path):
    copy = tmp_path / "a folder" / "libcuda.so.1"
    copy.parent.mkdir()
    shutil.copy(driver_double.libraries / "libcuda.so.1", copy)
    driver_double.write(gpu(0))
    code = """
import ctypes, os
from jupyter_gpu.adapters.driver import look_at_driver
path = os.environ["COPY"]
library = ctypes.CDLL(path)
library.cuInit(0)
print(len(look_at_driver(os.getpid()).uuids))
os.unlink(path)
print(len(look_at_driver(os.getpid()).uuids))
"""
    assert driver_double.python(code, COPY=str(copy)).split() == ["1", "1"]


def built(folder, name, code, *flags):
    """Build a library from C."""
    source = folder / f"{name}.c"
    source.write_text(code)
    target = folder / f"{name}.so"
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", target, source, *flags], check=True)
    return target


def test_a_library_that_links_it_is_seen_when_it_initialises_it(driver_double, tmp_path):
    driver_double.write(gpu(0))
    linked = built(
        tmp_path,
        "linked",
        "int cuInit(unsigned); int start(void) { return cuInit(0); }",
        f"-L{driver_double.libraries}",
        "-l:libcuda.so.1",
    )
    code = LATER.replace("{load}", f"library = ctypes.CDLL({str(linked)!r})").replace(
        "cuInit(0)", "start()"
    )
    assert driver_double.python(code).split() == ["False", "False", "True", "True"]


def test_a_stub_is_no_driver_and_does_not_hide_the_one_that_is_loaded_after_it(
    driver_double, tmp_path
):
    driver_double.write(gpu(0))
    stub = built(
        tmp_path,
        "libcuda",
        "int cuDeviceGetCount(int *n) { (void)n; return 34; } int cuInit(unsigned f) { (void)f; return 34; }",
        "-Wl,-soname,libcuda.so.1",
    )
    code = f"""
import ctypes, os
from jupyter_gpu.adapters.driver import DriverWatch, look_at_driver
watch, me = DriverWatch(), os.getpid()
stub = ctypes.CDLL({str(stub)!r})
print(stub.cuInit(0), watch.is_frozen(), look_at_driver(me).state)
real = ctypes.CDLL({str(driver_double.libraries / "libcuda.so.1")!r})
print(watch.is_frozen(), look_at_driver(me).state)
real.cuInit(0)
print(watch.is_frozen(), look_at_driver(me).state)
"""
    assert driver_double.python(code).split() == [
        *("34", "False", "absent"),
        *("False", "open"),
        *("True", "frozen"),
    ]


@pytest.mark.parametrize("first", ["os.fork", "library.cuInit"])
def test_a_forked_child_is_never_told_frozen_and_does_not_ask(driver_double, first):
    driver_double.write(gpu(0))
    code = f"""
import ctypes, os
from jupyter_gpu.adapters.driver import DriverWatch
watch, library = DriverWatch(), ctypes.CDLL("libcuda.so.1")
watch.is_frozen()
if {first == "library.cuInit"}:
    library.cuInit(0)
child = os.fork()
if child:
    os.waitpid(child, 0)
library.cuInit(0)
print(watch.is_frozen(), flush=True)
if child == 0:
    os._exit(0)
"""
    assert sorted(driver_double.python(code).split()) == ["False", "True"]


def test_it_answers_while_other_threads_load_libraries(driver_double, tmp_path):
    """A look must not wait for the linker with what the linker's caller waits for."""
    small = built(tmp_path, "small", "int small(void) { return 1; }")
    code = f"""
import _ctypes, faulthandler, sys, threading
from jupyter_gpu.adapters.driver import DriverWatch
faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
watch, looked = DriverWatch(), threading.Event()
def load():  # as an import of a compiled module does
    while not looked.is_set():
        _ctypes.dlclose(_ctypes.dlopen({str(small)!r}, 2))
thread = threading.Thread(target=load)
thread.start()
for _ in range(20_000):
    watch.is_frozen()
looked.set()
thread.join()
print("done")
"""
    assert driver_double.python(code).split() == ["done"]


def test_a_look_costs_microseconds(driver_double):
    code = """
import ctypes, timeit
from jupyter_gpu.adapters.driver import DriverWatch
watch = DriverWatch()
for loaded in (False, True):
    if loaded:
        library = ctypes.CDLL("libcuda.so.1")
    watch.is_frozen()
    print(min(timeit.repeat(watch.is_frozen, number=1000, repeat=20)) / 1000 * 1e6)
"""
    costs = [float(word) for word in driver_double.python(code).split()]
    assert max(costs) < 25, costs
