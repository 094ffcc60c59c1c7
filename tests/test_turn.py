"""A place in the queue: who looks how often, and at what."""

import time

import pytest
from conftest import poll

from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import STALLED_SECONDS
from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.turn import HEAD_LOOKS_EVERY_SECONDS


class CountingMachine(SimulatedMachine):
    """A simulated machine that counts how often it is read."""

    def __init__(self, description):
        super().__init__(description)
        self.readings = 0

    def read(self, *, sensors=True):
        self.readings += 1
        return super().read(sensors=sensors)


@pytest.fixture
def place(lease_directory):
    # A simulated machine's place has no rules of the machine that the tests run on.
    return Place(lease_directory, "simulated")


@pytest.fixture
def asking(place):
    """A function that makes acquisitions, which are closed after the test."""
    made = []

    def ask(gpus=1, machine=None, **options):
        request = Request.parse({"gpus": gpus, "wait": "1h", **options})
        machine = machine or SimulatedMachine("8xH200")
        made.append(Acquisition(request, Owner("api"), {}, machine=machine, place=place))
        return made[-1]

    yield ask
    for one in made:
        one.close()


def test_the_head_looks_every_50_ms_and_those_far_behind_it_less_often(asking):
    with asking("all").step():
        queue = [asking() for _ in range(40)]
        assert all(one.step() is None for one in queue)
        assert queue[0].pause_seconds == queue[7].pause_seconds == HEAD_LOOKS_EVERY_SECONDS
        pauses = [one.pause_seconds for one in queue]
        assert pauses == sorted(pauses)
        assert HEAD_LOOKS_EVERY_SECONDS < pauses[-1] < STALLED_SECONDS / 2
        for one in queue:
            one.close()


def test_nothing_but_the_locks_is_looked_at_while_nothing_is_open(asking):
    machine = CountingMachine("8xH200")
    with asking("all").step():
        one = asking(machine=machine)
        assert one.step() is None
        read = machine.readings
        assert all(one.step() is None for _ in range(10))
        assert machine.readings == read


def test_the_machine_is_not_read_for_what_those_before_will_take(asking):
    machine = CountingMachine("8xH200")
    busy = [asking(2).step() for _ in range(4)]
    first, second = asking(2), asking(2, machine)
    assert first.step() is None
    assert second.step() is None
    read = machine.readings
    busy[2].release()
    assert all(second.step() is None for _ in range(10))
    assert machine.readings == read
    lease = first.step()
    assert [device.index for device in lease.devices] == [4, 5]
    busy[0].release()
    other = second.step()
    assert [device.index for device in other.devices] == [0, 1]
    for held in (lease, other, busy[1], busy[3]):
        held.release()


def test_what_nobody_earlier_can_use_is_given_to_a_later_one_within_two_seconds(asking):
    busy = [asking(devices=[index]).step() for index in range(8)]
    picky = [asking(devices=[0]) for _ in range(3)]
    late = asking()
    assert all(one.step() is None for one in (*picky, late))
    busy[5].release()
    began = time.monotonic()
    lease = poll(late.step, every=late.pause_seconds)
    assert time.monotonic() - began < 2.5
    assert [device.index for device in lease.devices] == [5]
    assert all(one.step() is None for one in picky)
    # Once read, it is known: the next one is given at once.
    again = asking()
    assert again.step() is None
    poll(lambda: again.step() or lease.release(), every=again.pause_seconds).release()
    for held in (one for one in busy if not one.released):
        held.release()


def test_where_there_is_enough_nobody_waits_for_one_before_who_does_not_look(asking):
    busy = asking("all").step()
    silent, late = asking(2), asking(3)
    assert silent.step() is None
    assert late.step() is None
    busy.release()
    lease = late.step()
    assert [device.index for device in lease.devices] == [2, 3, 4]
    lease.release()


def test_the_first_who_still_looks_counts_as_the_head(asking):
    with asking("all").step():
        silent = asking()
        assert silent.step() is None
        queue = [asking() for _ in range(20)]
        assert all(one.step() is None for one in queue)
        last = queue.pop()
        for one in queue:
            one.close()
        assert last.pause_seconds > HEAD_LOOKS_EVERY_SECONDS

        def is_head():
            last.step()
            return last.pause_seconds == HEAD_LOOKS_EVERY_SECONDS

        poll(is_head, within=STALLED_SECONDS + 4, every=0.05)
