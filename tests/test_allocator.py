"""From a request to a lease: refusing, waiting, and what stands on the card."""

import os
import signal
import threading
import time

import pytest

import jupyter_gpu
from jupyter_gpu import turn
from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import user_name
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.errors import ImpossibleRequest, NoDeviceAvailable, StoreError
from jupyter_gpu.core.layout import QUEUE, device_range
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.pool import Limit

GIB = 2**30
ME = user_name(os.getuid())

WAIT = """
import os, sys, jupyter_gpu
print("asking")
lease = jupyter_gpu.acquire(int(sys.argv[1]), wait=30)
print(lease.environment["CUDA_VISIBLE_DEVICES"])
sys.stdin.read()
"""
LIVE = "import sys; print('ready'); sys.stdin.read()"


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def asking():
    """A function that makes acquisitions, which are closed after the test."""
    made = []

    def ask(gpus=1, *, wait=0, notebook=None, limits=(), takeover=None, **options):
        request = Request.parse({"gpus": gpus, "wait": wait, **options})
        owner = Owner("kernel", notebook=notebook)
        made.append(Acquisition(request, owner, os.environ, limits=limits, takeover=takeover))
        return made[-1]

    yield ask
    for one in made:
        one.close()


@pytest.fixture
def waiters(place):
    """A function that tells who waits now."""

    def look():
        with LeaseStore(place) as store:
            return store.holdings().waiters

    return look


@pytest.fixture
def waiting(program, waiters, eventually):
    """Start a program that waits for so many devices; returns it when it stands in line."""

    def start(count):
        before = len(waiters())
        one = program(WAIT, arguments=[count])
        one.read()
        eventually(lambda: len(waiters()) > before)
        return one

    return start


def indices(lease):
    return [device.index for device in lease.devices]


class SlowMachine:
    """A machine whose reading can be held up, as a driver's can."""

    def __init__(self):
        self.began, self.go_on = threading.Event(), threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, *, sensors=True):
        self.began.set()
        assert self.go_on.wait(10)
        return SimulatedMachine("2xH200").read()


class TestAsking:
    """A request that does not wait."""

    pytestmark = pytest.mark.usefixtures("eight_gpus")

    def test_devices_are_given_in_the_order_they_are_asked_for(self):
        with jupyter_gpu.acquire(2, devices=[5, 2, 7]) as lease:
            assert indices(lease) == [5, 2]
            assert lease.environment["CUDA_VISIBLE_DEVICES"] == "5,2"

    def test_what_is_leased_is_not_given_again(self):
        with jupyter_gpu.acquire(3) as one, jupyter_gpu.acquire(3) as other:
            assert not set(one.devices) & set(other.devices)

    def test_all_means_all(self):
        with jupyter_gpu.acquire("all") as lease:
            assert len(lease.devices) == 8

    def test_a_refusal_names_the_holder_and_leaves_nothing(self, place):
        with jupyter_gpu.acquire(7):
            with pytest.raises(NoDeviceAvailable) as caught:
                jupyter_gpu.acquire(2)
            message = str(caught.value)
            assert "0, 1, 2, 3, 4, 5, 6" in message
            assert "pytest" in message
            assert "Or take 1:  gpus=1" in message
            with LeaseStore(place) as store:
                assert len(store.holdings().leases) == 1
                assert not store.anyone_waits()

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"gpus": 9}, "9 GPUs are asked for, and this machine has 8 GPUs"),
            ({"model": "L4"}, "this machine has 8 GPUs: 0 to 7 NVIDIA H200"),
            ({"devices": [8]}, "There is no device 8 here"),
            ({"min_free_memory": "200GiB"}, "with 200.0 GiB free is asked for"),
        ],
    )
    def test_what_can_never_be_had_is_refused_at_once(self, options, sentence):
        with pytest.raises(ImpossibleRequest, match=sentence):
            jupyter_gpu.acquire(**{"wait": 60, **options})

    def test_a_limit_of_the_environment_is_the_pool(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")
        with jupyter_gpu.acquire() as lease:
            assert indices(lease) == [3]
            assert lease.limits == ("CUDA_VISIBLE_DEVICES=6,3 in the environment",)
            with pytest.raises(NoDeviceAvailable, match="The pool is limited by CUDA_VISIBLE"):
                jupyter_gpu.acquire(2)
        with pytest.raises(ImpossibleRequest, match="leaves 3, 6"):
            jupyter_gpu.acquire(3)

    def test_a_notebook_gets_what_it_had_last_time(self, asking):
        with acquire_now(asking(devices=[4, 6], gpus=2, notebook="/a.ipynb")):
            pass
        with acquire_now(asking(2, notebook="/a.ipynb")) as again:
            assert indices(again) == [4, 6]
            assert again.record.because == ("what this notebook had last time",)
        with acquire_now(asking(2, notebook="/b.ipynb")) as other:
            assert indices(other) == [0, 1]

    def test_an_acquisition_that_was_closed_gives_nothing(self, asking):
        acquisition = asking()
        acquisition.close()
        acquisition.close()
        assert acquisition.step() is None

    def test_what_a_stranger_has_locked_is_refused_with_a_sentence(self, place, asking):
        with jupyter_gpu.acquire("all") as lease:
            uuids = lease.record.uuids
        fd = os.open(place.lock_path, os.O_RDWR)
        for uuid in uuids:
            locks.try_lock(fd, device_range(None, uuid))
        with pytest.raises(NoDeviceAvailable, match="0  leased by a process that has left no rec"):
            jupyter_gpu.acquire()
        os.close(fd)
        jupyter_gpu.acquire("all").release()

    def test_a_machine_without_gpus_is_refused_with_a_sentence(self, simulate):
        simulate({"gpus": []})
        with pytest.raises(ImpossibleRequest, match="no GPU that can be seen"):
            jupyter_gpu.acquire()
        jupyter_gpu.acquire(0).release()

    def test_the_lease_of_a_failed_start_is_given_up(self, place, asking):
        with asking() as acquisition:
            lease = acquisition.step()
        assert not lease.released
        lease.release()

    def test_closing_waits_for_a_running_step_and_undoes_it(self, place):
        machine = SlowMachine()
        acquisition = Acquisition(Request(), Owner("api"), os.environ, machine=machine)
        results = []
        step = threading.Thread(target=lambda: results.append(acquisition.step()))
        step.start()
        assert machine.began.wait(10)
        machine.go_on.set()
        step.join(10)
        acquisition.close()
        results[0].release()
        assert acquisition.step() is None


class TestTakingOver:
    """A notebook's kernel change: the new kernel starts before the old one ends."""

    pytestmark = pytest.mark.usefixtures("eight_gpus")

    def test_the_new_kernel_gets_the_old_ones_devices_though_none_is_free(self, asking, place):
        old = acquire_now(asking("all"))
        new = acquire_now(asking("all", takeover=old))
        assert new.devices == old.devices
        old.release()
        with pytest.raises(NoDeviceAvailable):
            jupyter_gpu.acquire()
        new.release()

    def test_more_devices_are_added_and_fewer_given_back_with_the_old_one(self, asking):
        old = acquire_now(asking(2))
        more = acquire_now(asking(3, takeover=old))
        assert indices(more) == [0, 1, 2]
        fewer = acquire_now(asking(1, takeover=more))
        old.release()
        more.release()
        with jupyter_gpu.acquire(7) as rest:
            assert indices(rest) == [1, 2, 3, 4, 5, 6, 7]
        fewer.release()

    def test_a_new_start_that_fails_leaves_the_old_kernel_its_devices(self, asking):
        old = acquire_now(asking(2))
        busy = jupyter_gpu.acquire(6)
        with pytest.raises(NoDeviceAvailable):
            acquire_now(asking(3, takeover=old))
        busy.release()
        with jupyter_gpu.acquire(6) as rest:
            assert indices(rest) == [2, 3, 4, 5, 6, 7]
        assert not old.released
        old.release()

    def test_a_lease_that_has_ended_cannot_be_taken_over(self, asking):
        old = acquire_now(asking(2))
        old.release()
        with acquire_now(asking(2, takeover=old)) as new:
            assert indices(new) == [0, 1]


class TestOnTheCard:
    """Free means free on the card too."""

    @pytest.fixture
    def machine(self, simulate):
        """Two GPUs; the facts are GPU 0's."""

        def put(**facts):
            memory = {"memory_total_bytes": 140 * GIB}
            return simulate(
                {"gpus": [{"name": "H200", **memory, **facts}, {"name": "H200", **memory}]}
            )

        return put

    def test_a_device_that_a_living_process_uses_without_a_lease_is_not_given(
        self, machine, program
    ):
        squatter = program(LIVE)
        squatter.read()
        machine(processes=[{"pid": squatter.pid, "memory_bytes": GIB}], memory_used_bytes=GIB)
        with jupyter_gpu.acquire() as lease:
            assert indices(lease) == [1]
            with pytest.raises(NoDeviceAvailable) as caught:
                jupyter_gpu.acquire()
        assert f"0  used without a lease by {ME}: {squatter.pid}" in str(caught.value)

    @pytest.mark.parametrize(
        ("facts", "sentence"),
        [
            ({"problem": "GPU 0 is lost."}, "0  GPU 0 is lost."),
            ({"exclusive": True}, "0  in exclusive-process mode"),
            ({"memory_used_bytes": 3 * GIB}, "0  3.0 GiB in use by no process"),
        ],
    )
    def test_what_stands_against_a_device_is_said(self, machine, facts, sentence, monkeypatch):
        monkeypatch.setattr(jupyter_gpu.allocator, "TIDYING_SECONDS", 0.05)
        machine(**facts)
        with jupyter_gpu.acquire() as lease:
            assert indices(lease) == [1]
            with pytest.raises(NoDeviceAvailable) as caught:
                jupyter_gpu.acquire()
        assert sentence in str(caught.value)

    def test_a_process_that_is_gone_is_waited_for_while_the_driver_tidies_up(self, machine):
        machine(processes=[{"pid": 2**22 + 1, "memory_bytes": GIB}], memory_used_bytes=GIB)
        tidied = threading.Timer(0.2, machine)
        tidied.start()
        with jupyter_gpu.acquire(2, wait=0) as lease:
            assert len(lease.devices) == 2
            assert 0.15 < lease.waited_seconds < 1.9
        tidied.join()

    def test_a_process_that_appears_while_the_device_is_taken_stops_it(self, machine, program):
        squatter = program(LIVE)
        squatter.read()

        class Changing:
            """Idle at the first look, in use at the second."""

            looks = 0

            def read(self, *, sensors=True):
                self.looks += 1
                used = [{"pid": squatter.pid}] if self.looks > 1 else []
                return machine(processes=used)

            def __exit__(self, *_):
                pass

        found = acquire_now(
            Acquisition(Request(wait_seconds=0), Owner("api"), os.environ, machine=Changing())
        )
        assert indices(found) == [1]
        found.release()

    def test_ones_own_processes_do_not_stand_against_a_lease_under_a_lease(
        self, machine, monkeypatch
    ):
        machine()
        with jupyter_gpu.acquire() as lease:
            machine(processes=[{"pid": os.getpid(), "memory_bytes": GIB}])
            for name, value in lease.environment.items():
                monkeypatch.setenv(name, value)
            with jupyter_gpu.acquire() as inner:
                assert indices(inner) == [0]


class TestWaiting:
    """First come, first served."""

    pytestmark = pytest.mark.usefixtures("eight_gpus")

    def test_a_waiter_gets_what_is_released(self, waiting):
        busy = jupyter_gpu.acquire(8)
        one = waiting(2)
        busy.release()
        assert one.read() == "0,1"

    def test_a_waiter_gets_what_a_killed_holder_had(self, waiting, program):
        holder = program(WAIT, arguments=[8])
        holder.read()
        assert holder.read() == "0,1,2,3,4,5,6,7"
        one = waiting(8)
        holder.kill()
        assert one.read() == "0,1,2,3,4,5,6,7"

    def test_waiting_ends_with_a_refusal_after_the_time_that_was_given(self):
        with jupyter_gpu.acquire(8):
            began = time.monotonic()
            with pytest.raises(NoDeviceAvailable):
                jupyter_gpu.acquire(wait=0.3)
            assert 0.3 <= time.monotonic() - began < 3

    def test_waiters_are_served_in_the_order_they_came(self, waiting, eventually):
        busy = [jupyter_gpu.acquire(1) for _ in range(8)]
        first, second = waiting(1), waiting(1)
        busy[5].release()
        assert first.read() == "5"
        busy[2].release()
        assert second.read() == "2"
        for lease in busy:
            lease.release()

    def test_small_requests_do_not_push_a_large_one_back(self, waiting):
        busy = [jupyter_gpu.acquire(4), jupyter_gpu.acquire(4)]
        large = waiting(8)
        busy[0].release()
        with pytest.raises(
            NoDeviceAvailable, match=f"kept for {ME}, who waits for 8 GPUs"
        ) as caught:
            jupyter_gpu.acquire(1)
        assert "Waiting before this one: 1." in str(caught.value)
        busy[1].release()
        assert large.read() == "0,1,2,3,4,5,6,7"

    def test_what_no_earlier_waiter_could_use_is_given(self, waiting, asking, waiters):
        busy = jupyter_gpu.acquire(1, devices=[0])
        first = asking(1, devices=[0], wait=30)
        assert first.step() is None
        with jupyter_gpu.acquire(7) as rest:
            assert indices(rest) == [1, 2, 3, 4, 5, 6, 7]
        busy.release()
        first.step().release()

    def test_a_waiter_that_dies_is_skipped(self, waiting):
        busy = jupyter_gpu.acquire(8)
        first, second = waiting(8), waiting(8)
        first.kill()
        busy.release()
        assert second.read() == "0,1,2,3,4,5,6,7"

    def test_a_waiter_that_is_stopped_is_passed_over_and_comes_back(self, waiting, waiters):
        busy = jupyter_gpu.acquire(8)
        first, second = waiting(8), waiting(8)
        first.signal(signal.SIGSTOP)
        busy.release()
        began = time.monotonic()
        assert second.read() == "0,1,2,3,4,5,6,7"
        assert time.monotonic() - began < 6
        second.end()
        first.signal(signal.SIGCONT)
        assert first.read() == "0,1,2,3,4,5,6,7"

    def test_giving_up_leaves_the_queue(self, asking, waiters):
        with jupyter_gpu.acquire(8):
            acquisition = asking(1, wait=30)
            assert acquisition.step() is None
            assert acquisition.waiting
            assert len(waiters()) == 1
            acquisition.close()
            assert not acquisition.waiting
            assert waiters() == ()

    def test_the_head_looks_more_often_than_those_behind_it(self, asking):
        with jupyter_gpu.acquire(8):
            first, *others, last = (asking(1, wait=30) for _ in range(18))
            for acquisition in (first, *others, last):
                acquisition.step()
            assert first.pause_seconds == turn.HEAD_LOOKS_EVERY_SECONDS
            assert last.pause_seconds == 4 * turn.HEAD_LOOKS_EVERY_SECONDS
            first.close()
            for acquisition in others:
                acquisition.close()
            last.step()
            assert last.pause_seconds == turn.HEAD_LOOKS_EVERY_SECONDS

    def test_a_waiter_shows_that_it_lives(self, asking, waiters, place, monkeypatch):
        monkeypatch.setattr(turn, "_SIGN_OF_LIFE_SECONDS", 0)
        with jupyter_gpu.acquire(8):
            acquisition = asking(1, wait=30)
            acquisition.step()
            record = records_path(place) / f"waiting-{waiters()[0].record.ticket}.json"
            os.utime(record, (5, 5))
            assert waiters()[0].stalled
            acquisition.step()
            assert not waiters()[0].stalled

    def test_a_locked_queue_is_a_sentence_and_not_a_hang(self, place):
        with jupyter_gpu.acquire(8):
            fd = os.open(place.lock_path, os.O_RDWR)
            locks.try_lock(fd, QUEUE)
            with pytest.raises(StoreError, match="somebody has locked the queue"):
                jupyter_gpu.acquire(wait=30)
            os.close(fd)

    def test_a_request_that_waits_and_could_start_starts(self, waiting):
        busy = jupyter_gpu.acquire(6)
        large = waiting(8)
        with pytest.raises(NoDeviceAvailable):
            jupyter_gpu.acquire(1)
        large.kill()
        with jupyter_gpu.acquire(2, wait=30) as lease:
            assert indices(lease) == [6, 7]
        busy.release()


class TestWithoutLocks:
    """Where the system has no such locks nothing is leased, and kernels start."""

    pytestmark = pytest.mark.usefixtures("eight_gpus")

    @pytest.fixture(autouse=True)
    def _no_locks(self, monkeypatch):
        monkeypatch.setattr(locks, "supported", lambda fd: False)

    def test_devices_are_chosen_and_not_exclusive(self, asking):
        one, other = acquire_now(asking(2)), acquire_now(asking(2))
        assert indices(one) == indices(other) == [0, 1]
        assert not one.exclusive
        assert one.environment["CUDA_VISIBLE_DEVICES"] == "0,1"

    def test_a_request_that_cannot_be_met_starts_all_the_same(self, asking):
        lease = acquire_now(asking(9))
        assert lease.devices == ()
        assert lease.environment == {}

    def test_limits_hold_here_too(self, asking):
        lease = acquire_now(asking(1, limits=(Limit("5", "the environment"),)))
        assert indices(lease) == [5]
