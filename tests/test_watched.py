"""Which reading reads what: a few devices each time, the machine when it is due."""

import json
import os
import threading

import pytest
from doubles import gpu, mig
from doubles.fixtures import driver_double, driver_libraries

from jupyter_gpu.core.devices import Inventory, Process
from jupyter_gpu.core.errors import SimulationError
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.visibility import visible
from jupyter_gpu.overview import read_overview
from jupyter_gpu.testing import FakeMachine, fake_gpu
from jupyter_gpu.watched import HANGS, OVERVIEW_SECONDS, TROUBLED_SECONDS, WatchedDevices

__all__ = ["driver_double", "driver_libraries"]

ONE, TWO = fake_gpu(0).uuid, fake_gpu(1).uuid


class Around:
    """Reads the overview of a fake machine, and counts how often."""

    def __init__(self, value="0"):
        self.reads, self.value, self.error = 0, value, None

    def __call__(self, machine):
        self.reads += 1
        if self.error is not None:
            raise self.error
        inventory = machine.inventory
        return Overview(inventory, visible(self.value, inventory, environment={}))


@pytest.fixture
def machine():
    return FakeMachine(fake_gpu(0, memory_used_bytes=5), fake_gpu(1, memory_used_bytes=7))


@pytest.fixture
def around():
    return Around()


@pytest.fixture
def devices(machine, around):
    return WatchedDevices(around, lambda: machine)


def test_the_visible_devices_are_read_and_those_that_are_named(devices):
    assert list(devices.read(0.0, ()).readings) == [ONE]
    assert list(devices.read(1.0, (TWO,)).readings) == [ONE, TWO]
    assert list(devices.read(2.0, (TWO,), visible=False).readings) == [TWO]
    assert list(devices.read(3.0, (), visible=False).readings) == []


def test_numbers_are_new_at_every_reading_and_the_machine_around_them_is_not(
    devices, machine, around
):
    for second in range(10):
        machine.set(fake_gpu(0, memory_used_bytes=second), fake_gpu(1))
        sight = devices.read(float(second), ())
        assert sight.readings[ONE].memory_used_bytes == second
    assert around.reads == 1
    devices.read(OVERVIEW_SECONDS, ())
    assert around.reads == 2


def test_the_machine_is_read_at_once_when_it_is_asked_for(devices, around):
    for second in (0.0, 0.01, 0.02):
        devices.read(second, (), whole=True)
    assert around.reads == 3


def test_at_the_edges_of_cells_it_is_read_too_but_not_for_every_short_one(devices, around):
    devices.read(0.0, ())
    devices.read(1.0, (), edge=True)
    assert around.reads == 2
    for hundredth in range(40):
        devices.read(1.0 + hundredth / 100, (), edge=True)
    assert around.reads == 2
    devices.read(1.6, ())
    assert around.reads == 3, "the last edge was put off"
    devices.read(2.2, ())
    assert around.reads == 3


def on_it(*pids):
    return fake_gpu(0, processes=tuple(Process(pid, 1) for pid in pids))


@pytest.mark.parametrize(
    "changed",
    [
        on_it(1),
        on_it(2, 3, 4),
        on_it(),
        fake_gpu(0, problem="GPU 0 is lost."),
        fake_gpu(3),
    ],
)
def test_what_changes_the_picture_has_the_machine_read_at_once(devices, machine, around, changed):
    machine.set(on_it(2, 3))
    devices.read(0.0, ())
    devices.read(1.0, ())
    machine.set(changed)
    sight = devices.read(2.0, ())
    assert around.reads == 2
    assert sight.overview.inventory.devices == (changed,)


def test_a_change_just_after_another_waits_a_moment(devices, machine, around):
    for number in range(10):
        machine.set(on_it(number + 1))
        devices.read(number / 10, ())
    assert around.reads == 2
    sight = devices.read(1.2, ())
    assert [process.pid for process in sight.overview.inventory.devices[0].processes] == [10]


def test_a_process_that_comes_just_after_the_machine_was_read_is_known_soon(machine):
    class Early(Around):
        def __call__(self, read):
            seen = super().__call__(read)
            machine.set(on_it(77))
            return seen

    devices = WatchedDevices(Early(), lambda: machine)
    sight = devices.read(0.0, ())
    assert sight.overview.inventory.devices[0].processes == ()
    assert [one.pid for one in sight.readings[ONE].processes] == [77]
    sight = devices.read(0.6, ())
    assert [one.pid for one in sight.overview.inventory.devices[0].processes] == [77]


def test_memory_and_load_alone_do_not(devices, machine, around):
    devices.read(0.0, ())
    machine.set(fake_gpu(0, memory_used_bytes=9, utilization_percent=80), fake_gpu(1))
    devices.read(1.0, ())
    assert around.reads == 1


def test_in_trouble_the_machine_is_read_more_often_until_it_is_over(devices, machine, around):
    machine.set(fake_gpu(0, problem="GPU 0 is lost."))
    devices.read(0.0, (ONE,))
    devices.read(TROUBLED_SECONDS - 0.1, (ONE,))
    assert around.reads == 1
    devices.read(TROUBLED_SECONDS, (ONE,))
    assert around.reads == 2
    machine.set(fake_gpu(0))
    assert devices.read(TROUBLED_SECONDS + 1, (ONE,)).readings[ONE].problem is None
    assert around.reads == 3
    devices.read(2 * TROUBLED_SECONDS + 1, (ONE,))
    assert around.reads == 3


def test_a_machine_that_falls_silent_keeps_its_devices_and_says_why(devices, machine, around):
    devices.read(0.0, ())
    whole = machine.inventory
    machine.inventory = Inventory("nvml", problem="The driver was updated.")
    sight = devices.read(1.0, ())
    assert sight.problem == "The driver was updated."
    assert sight.overview.inventory == whole
    assert [row.uuid for row in sight.overview.shown] == [ONE]
    assert sight.readings[ONE].problem == "GPU 0 cannot be read now."
    machine.inventory = whole
    sight = devices.read(2.0, ())
    assert (sight.problem, sight.readings[ONE].problem) == (None, None)


def test_a_machine_that_has_nothing_to_say_from_the_start_says_it_itself(devices, machine):
    machine.inventory = Inventory("none", problem="There is no driver.")
    sight = devices.read(0.0, ())
    assert (sight.problem, sight.readings) == (None, {})
    assert sight.overview.inventory.problem == "There is no driver."


def test_an_overview_that_cannot_be_read_is_a_sentence_and_the_devices_are_read(
    devices, machine, around
):
    devices.read(0.0, ())
    around.error = OSError("in a store")
    sight = devices.read(20.0, ())
    assert sight.problem == "in a store"
    assert sight.readings[ONE].memory_used_bytes == 5
    around.error = KeyError()
    assert devices.read(40.0, ()).problem == "KeyError"
    around.error = None
    assert devices.read(46.0, ()).problem is None


class BreakingMachine(FakeMachine):
    broken = False

    def read(self, **options):
        if self.broken:
            raise SimulationError("line 3 is broken")
        return super().read(**options)


def test_devices_that_cannot_be_read_are_named_and_the_next_reading_begins_anew(around):
    machine = BreakingMachine(fake_gpu(0, memory_used_bytes=5))
    devices = WatchedDevices(around, lambda: machine)
    devices.read(0.0, ())
    machine.broken = True
    for second in range(1, 8):
        sight = devices.read(float(second), ())
        assert sight.problem == "line 3 is broken"
        assert sight.readings[ONE].problem == "GPU 0 cannot be read now."
    assert around.reads <= 4, "not at every reading"
    machine.broken = False
    sight = devices.read(8.0, ())
    assert (sight.problem, sight.readings[ONE].memory_used_bytes) == (None, 5)


def throw(error):
    raise error


def test_a_machine_that_does_not_open_is_tried_again(around, machine):
    fails = [OSError("not now"), OSError("not yet")]
    devices = WatchedDevices(around, lambda: throw(fails.pop()) if fails else machine)
    assert devices.read(0.0, ()).problem == "not yet"
    assert devices.read(1.0, (TWO,)).problem == "not now"
    sight = devices.read(2.0, (TWO,))
    assert sight.problem is None
    assert sight.readings[TWO].memory_used_bytes == 7


def test_a_gpu_so_lost_that_it_has_no_name_is_told_by_its_index(devices, machine):
    devices.read(0.0, (TWO,))
    lost = fake_gpu(1, uuid=None, problem="GPU 1 is lost.")
    machine.set(fake_gpu(0), lost)
    assert devices.read(1.0, (TWO,)).readings[TWO].problem == "GPU 1 is lost."
    machine.set(fake_gpu(0))
    assert "no longer has this device" in devices.read(7.0, (TWO,)).readings[TWO].problem


def gone(sight):
    return [row.uuid for row in sight.gone], list(sight.readings)


def test_a_visible_device_that_is_lost_is_watched_on(devices, machine, around):
    around.value = "0,1"
    assert gone(devices.read(0.0, ())) == ([], [ONE, TWO])
    machine.set(fake_gpu(0, problem="GPU 0 is lost."), fake_gpu(1, memory_used_bytes=8))
    sight = devices.read(1.0, ())
    assert gone(sight) == ([ONE], [TWO, ONE])
    assert sight.readings[ONE].problem == "GPU 0 is lost."
    assert sight.readings[TWO].memory_used_bytes == 8
    machine.set(fake_gpu(1, problem="GPU 1 is lost."))
    assert gone(devices.read(7.0, ())) == ([ONE, TWO], [ONE, TWO])
    machine.set(fake_gpu(0), fake_gpu(1))
    assert gone(devices.read(14.0, ())) == ([], [ONE, TWO])


def test_a_device_that_was_made_invisible_is_not_watched_on(devices, around):
    around.value = "0,1"
    devices.read(0.0, ())
    around.value = "1"
    assert gone(devices.read(1.0, (), edge=True)) == ([], [TWO])


def test_another_machine_is_opened_when_another_one_is_meant(around):
    machines = {"a": FakeMachine(fake_gpu(0)), "b": FakeMachine(fake_gpu(5))}
    meant = ["a"]
    devices = WatchedDevices(around, lambda: machines[meant[0]], lambda: meant[0])
    assert list(devices.read(0.0, ()).readings) == [ONE]
    meant[0] = "b"
    around.value = None
    sight = devices.read(1.0, ())
    assert list(sight.readings) == [fake_gpu(5).uuid]
    assert sight.problem is None


class HangingMachine(FakeMachine):
    """Does not answer while ``answers`` is cleared."""

    def __init__(self, *devices):
        super().__init__(*devices)
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()
        self.closed = 0

    def read(self, **options):
        self.asked.set()
        assert self.answers.wait(30)
        return super().read(**options)

    def __exit__(self, *error):
        self.closed += 1


def test_nobody_waits_long_for_a_reading_that_hangs(around):
    machine = HangingMachine(fake_gpu(0))
    devices = WatchedDevices(around, lambda: machine, patience_seconds=0.05)
    devices.read(0.0, ())
    machine.answers.clear()
    machine.asked.clear()
    thread = threading.Thread(target=lambda: devices.read(1.0, ()))
    thread.start()
    assert machine.asked.wait(10)
    sight = devices.read(1.0, ())
    assert sight.problem == HANGS
    assert sight.readings[ONE].problem == "GPU 0 cannot be read now."
    assert not devices.close()
    machine.answers.set()
    thread.join(10)
    assert devices.read(2.0, ()).problem is None
    assert devices.close()
    assert machine.closed == 1
    assert devices.close()
    assert machine.closed == 1, "it was closed already"


# The driver library's double: one program reads over it, step by step.
OVER_NVML = """
import json, os, sys
from jupyter_gpu.adapters.nvml import NVMLMachine
from jupyter_gpu.overview import read_overview
from jupyter_gpu.watched import WatchedDevices

devices = WatchedDevices(lambda machine: read_overview(os.environ, machine=machine), NVMLMachine)
for line in sys.stdin:
    now, uuids, before = json.loads(line)
    exec(before)
    sight = devices.read(now, uuids)
    print(json.dumps({
        "problem": sight.problem,
        "readings": {
            uuid: [one.memory_used_bytes, one.temperature_celsius, one.problem]
            for uuid, one in sight.readings.items()
        },
        "pids": {uuid: one.processes and [process.pid for process in one.processes]
                 for uuid, one in sight.readings.items()},
        "shown": [row.index for row in sight.overview.shown],
        "gone": [row.index for row in sight.gone],
    }))
devices.close()
"""


@pytest.fixture
def nvml(driver_double, program):
    """``nvml(now, *uuids)``: what is seen then; ``nvml.write(gpus)`` changes the machine."""
    running = program(OVER_NVML, environ=driver_double.environment())

    def read(now, *uuids, before=""):
        return json.loads(running.tell(json.dumps([now, uuids, before])))

    read.write, read.end = driver_double.write, running.end
    yield read
    assert running.end() == 0


FIRST, SECOND = gpu(0)["uuid"], gpu(1)["uuid"]


def test_a_device_is_lost_while_it_is_watched_and_the_rest_goes_on(nvml):
    nvml.write(gpu(0, memory_used_bytes=1), gpu(1, memory_used_bytes=2))
    assert nvml(0.0)["readings"] == {FIRST: [1, 31, None], SECOND: [2, 31, None]}
    nvml.write(gpu(0, memory_used_bytes=1), gpu(1, errors={"*": 15}))
    for now in (1.0, 7.0):
        seen = nvml(now, SECOND)
        assert seen["problem"] is None
        assert seen["readings"][FIRST] == [1, 31, None]
        used, _, problem = seen["readings"][SECOND]
        assert used is None
        assert problem.startswith("GPU 1 is lost: it has fallen off the bus")
    nvml.write(gpu(0), gpu(1, errors={"*": 15, "nvmlDeviceGetHandleByIndex": 15}))
    assert nvml(13.0, SECOND)["readings"][SECOND][2].startswith("GPU 1 is lost")


def test_a_device_may_not_be_looked_at_any_more(nvml):
    nvml.write(gpu(0), gpu(1))
    nvml(0.0)
    nvml.write(gpu(0), gpu(1, errors={"nvmlDeviceGetMemoryInfo": 4}))
    assert nvml(1.0)["readings"][SECOND][2].startswith("GPU 1 may not be looked at by this user")
    nvml.write(gpu(0), gpu(1, errors={"nvmlDeviceGetHandleByIndex": 4, "*": 4}))
    seen = nvml(7.0, SECOND)
    assert seen["readings"][FIRST][2] is None
    assert seen["readings"][SECOND][2] is not None


def test_a_device_is_unplugged_and_comes_back(nvml):
    nvml.write(gpu(0), gpu(1, memory_used_bytes=2))
    nvml(0.0, SECOND)
    nvml.write(gpu(0))
    seen = nvml(7.0, SECOND)
    assert (seen["shown"], seen["gone"]) == ([0], [1])
    assert "NVML no longer lists this device" in seen["readings"][SECOND][2]
    nvml.write(gpu(0), gpu(1, memory_used_bytes=3))
    seen = nvml(14.0, SECOND)
    assert seen["readings"][SECOND] == [3, 31, None]
    assert (seen["shown"], seen["gone"]) == ([0, 1], [])


UPDATED = dict.fromkeys(("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"), 18)


def test_the_driver_is_updated_under_it_and_the_machine_is_rebooted_into_it(nvml):
    nvml.write(gpu(0, memory_used_bytes=1), gpu(1))
    nvml(0.0)
    nvml.write(gpu(0, memory_used_bytes=1), gpu(1), errors=UPDATED)
    for now in (1.0, 2.0, 8.0):
        seen = nvml(now)
    assert seen["problem"].startswith("The NVIDIA driver was updated while the old one")
    assert seen["shown"] == [0, 1]
    assert seen["readings"][FIRST] == [None, None, "GPU 0 cannot be read now."]
    nvml.write(gpu(0, memory_used_bytes=4), gpu(1))
    seen = nvml(14.0)
    assert (seen["problem"], seen["readings"][FIRST]) == (None, [4, 31, None])


def test_a_shutdown_by_another_library_is_not_noticed(nvml):
    nvml.write(gpu(0, memory_used_bytes=1))
    nvml(0.0)
    down = "import pynvml; pynvml.nvmlShutdown()"
    assert nvml(1.0, before=down)["readings"] == {FIRST: [1, 31, None]}


def test_processes_are_read_with_their_clients_of_an_mps_server(nvml):
    running = [{"pid": 7, "memory_bytes": 1}, {"pid": 9, "memory_bytes": 1, "mps": True}]
    nvml.write(gpu(0, processes=running), gpu(1))
    assert nvml(0.0)["pids"] == {FIRST: [7, 9], SECOND: []}


def test_a_mig_device_is_watched_and_its_layout_changes(nvml):
    part, other = mig(0, memory_used_bytes=7), mig(1)
    nvml.write(gpu(0, mig_mode=True, mig=[part]))
    assert nvml(0.0, part["uuid"])["readings"][part["uuid"]] == [7, None, None]
    nvml.write(gpu(0, mig_mode=True, mig=[{**part, "errors": {"*": 15}}]))
    assert nvml(1.0, part["uuid"])["readings"][part["uuid"]][2].startswith("GPU 0 is lost")
    nvml.write(gpu(0, mig_mode=True, mig=[other]))
    assert "no longer lists" in nvml(7.0, part["uuid"])["readings"][part["uuid"]][2]


def test_a_description_is_replaced_broken_and_mended(simulate):
    def write(*used):
        return simulate({"gpus": [{"name": "H200", "memory_used_bytes": one} for one in used]})

    first = write(1, 2).devices[0].uuid
    from jupyter_gpu.adapters.machine import find_machine

    devices = WatchedDevices(
        lambda machine: read_overview(os.environ, machine=machine),
        lambda: find_machine(os.environ),
    )
    assert devices.read(0.0, ()).readings[first].memory_used_bytes == 1
    write(3, 4)
    assert devices.read(1.0, ()).readings[first].memory_used_bytes == 3
    path = os.environ["JUPYTER_GPU_SIMULATE"]
    with open(path, "w") as file:
        file.write('{"gpus": [{')
    for now in (2.0, 3.0, 9.0):
        sight = devices.read(now, ())
        assert sight.problem.startswith(f"JUPYTER_GPU_SIMULATE={path}: ")
        assert len(sight.overview.shown) == 2
        assert sight.readings[first].problem == "GPU 0 cannot be read now."
        assert len(devices._overview.inventory.devices) == 2
    write(5, 6, 7)
    sight = devices.read(10.0, ())
    assert (sight.problem, sight.readings[first].memory_used_bytes) == (None, 5)
    assert len(sight.overview.shown) == len(sight.readings) == 3
