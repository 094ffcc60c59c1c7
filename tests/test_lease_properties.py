"""Whatever is asked, given back and killed in whatever order: the promises about leases hold.

The operating system's own locks are looked at after every step, from a description of the test's.
A kill is what the system makes of one: the description is closed, and the record stays behind.
"""

import contextlib
import itertools
import json
import os
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.errors import ImpossibleRequest, NoDeviceAvailable
from jupyter_gpu.core.layout import DEVICE_UNITS, QUEUE, device_range, total_units
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.policy import Candidate, choose, eligible
from jupyter_gpu.core.request import Request

GIB = 2**30
FRACTIONS = ("1/2", "1/3", "1/4", "2/3", "3/4", "1/7", "1/8", "1/16", "5/13")

whole = {"name": "NVIDIA H200", "memory_total_bytes": 140 * GIB, "memory_used_bytes": 0}
part = {"profile": "1g.18gb", "memory_total_bytes": 16 * GIB, "memory_used_bytes": 0}
large = {"profile": "3g.71gb", "memory_total_bytes": 70 * GIB, "memory_used_bytes": 0}
gpus = st.one_of(
    st.just(whole),
    st.lists(st.sampled_from([part, large]), min_size=1, max_size=3).map(
        lambda parts: {**whole, "mig": parts}
    ),
)
machines = st.lists(gpus, min_size=1, max_size=4)
amounts = st.one_of(
    st.sampled_from([1, 1, 2, 3, "all", "mig:1g.18gb", "mig:3g.71gb"]), st.sampled_from(FRACTIONS)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), amounts),
        st.tuples(st.just("wait"), amounts),
        st.tuples(st.sampled_from(["release", "kill", "leave", "look"]), st.integers(0, 20)),
    ),
    max_size=30,
)


class Site:
    """A place with the programs that lease in it, and the locks as the system has them."""

    def __init__(self, directory, machine):
        self.place = Place(directory, "given")
        path = directory.parent / "machine.json"
        path.write_text(json.dumps({"gpus": machine}))
        self.machine = SimulatedMachine(str(path))
        self.inventory = self.machine.read()
        self.devices = [d for d in self.inventory.devices if not d.mig_mode]
        self.held, self.waiting = [], []
        LeaseStore(self.place, write=True).close()
        self.fd = os.open(self.place.lock_path, os.O_RDONLY)

    def acquisition(self, amount, wait=0):
        request = Request.parse({"gpus": amount, "wait": wait})
        owner = Owner("api", command=f"ask {amount}")
        return Acquisition(
            request, owner, {}, machine=SimulatedMachine(self.machine.description), place=self.place
        )

    def locked(self):
        """The units of each device that are locked, as the system says."""
        return {
            d.uuid: total_units(locks.locked_ranges(self.fd, device_range(None, d.uuid)))
            for d in self.devices
        }

    def candidates(self):
        locked = self.locked()
        return tuple(
            Candidate(d, free_units=DEVICE_UNITS - locked.get(d.uuid, 0))
            for d in self.inventory.devices
        )

    def room_for(self, request):
        """The free units on devices that would serve a request: what it waits for."""
        free = {c.device: c.free_units for c in self.candidates()}
        return sum(free[device] for device in eligible(request, tuple(free)))

    def ask(self, amount):
        before, waiters = self.locked(), list(self.waiting)
        rooms = [self.room_for(w.request) for w in waiters]
        could = [choose(w.request, self.candidates()) for w in waiters]
        acquisition = self.acquisition(amount)
        try:
            with acquisition:
                lease = acquisition.step()
        except (NoDeviceAvailable, ImpossibleRequest) as error:
            assert self.locked() == before, "a refused request leaves nothing locked"
            impossible = isinstance(error, ImpossibleRequest)
            if impossible or not waiters:
                assert choose(acquisition.request, self.candidates()) is None
            return
        if lease is None:  # the driver may be tidying up: on this machine it never is
            pytest.fail("a request that does not wait is answered at once")
        self.held.append(lease)
        for waiter, room, choice in zip(waiters, rooms, could, strict=True):
            if choice is None:
                assert self.room_for(waiter.request) == room, "a later one took what it waits for"
            else:
                assert choose(waiter.request, self.candidates()), "it could start, and now cannot"

    def wait(self, amount):
        acquisition = self.acquisition(amount, wait="1h")
        try:
            lease = acquisition.step()
        except ImpossibleRequest:
            acquisition.close()
            return
        if lease is None:
            self.waiting.append(acquisition)
        else:
            self.held.append(lease)

    def look(self, number):
        """Let a waiter look; it is served only if no earlier one could use what it gets."""
        if not self.waiting:
            return
        waiter = self.waiting[number % len(self.waiting)]
        earlier = self.waiting[: self.waiting.index(waiter)]
        rooms = [self.room_for(one.request) for one in earlier]
        could = [choose(one.request, self.candidates()) for one in earlier]
        lease = waiter.step()
        if lease is None:
            if not earlier:
                assert choose(waiter.request, self.candidates()) is None, "the first is served"
            return
        self.waiting.remove(waiter)
        self.held.append(lease)
        for one, room, choice in zip(earlier, rooms, could, strict=True):
            if choice is None:
                assert self.room_for(one.request) == room
            else:
                assert choose(one.request, self.candidates()) is not None

    def leave(self, number):
        if self.waiting:
            self.waiting.pop(number % len(self.waiting)).close()

    def release(self, number):
        if self.held:
            self.held.pop(number % len(self.held)).release()

    def kill(self, number):
        if self.held:
            lease = self.held.pop(number % len(self.held))
            lease.claim.close()  # the record stays, as after a kill

    def check(self):
        expected = dict.fromkeys((d.uuid for d in self.devices), 0)
        for lease in self.held:
            for uuid in lease.record.uuids:
                expected[uuid] += lease.record.units
        assert self.locked() == expected, "what is locked is exactly what is held"
        shares = dict.fromkeys(expected, Fraction(0))
        with LeaseStore(self.place) as store:
            holdings = store.holdings()
        for lease in holdings.leases:
            assert lease.note is None
            for uuid in lease.record.uuids:
                shares[uuid] += lease.share
        assert all(share <= 1 for share in shares.values())
        alive = {lease.record.id for lease in holdings.leases}
        assert alive == {lease.id for lease in self.held}
        assert [w.record.id for w in holdings.waiters] == [w.lease_id for w in self.waiting]
        tickets = list(locks.locked_ranges(self.fd, QUEUE))
        assert len(tickets) == len(self.waiting)

    def close(self):
        for one in (*self.held, *self.waiting):
            with contextlib.suppress(AttributeError):
                one.release()
            if isinstance(one, Acquisition):
                one.close()
        nothing = self.locked()
        os.close(self.fd)
        assert set(nothing.values()) <= {0}


directories = itertools.count()


@settings(
    max_examples=int(os.environ.get("JUPYTER_GPU_TEST_EXAMPLES", "120")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(machines, steps)
def test_the_promises_hold_whatever_happens(lease_directory, machine, todo):
    place = lease_directory.parent / str(next(directories)) / "leases"
    place.parent.mkdir()
    site = Site(place, machine)
    try:
        for name, argument in todo:
            getattr(site, name)(argument)
            site.check()
    finally:
        site.close()


def test_small_requests_never_push_a_waiting_large_one_back(lease_directory):
    lease_directory.parent.mkdir(exist_ok=True)
    site = Site(lease_directory, [whole] * 4)
    try:
        for _ in range(4):
            site.ask("1/2")
            site.ask(1)
        site.wait(4)
        large = site.waiting[0]
        for _ in range(40):
            site.release(0)
            site.ask("1/4")
            site.ask(1)
            site.wait("1/8")
            site.look(1)
            site.check()
            if not site.held:
                break
        assert site.waiting[0] is large
        lease = large.step()
        assert lease is not None
        site.waiting.remove(large)
        site.held.append(lease)
        assert len(lease.devices) == 4
    finally:
        site.close()


@pytest.mark.parametrize("count", [2, 3, 5, 7, 8, 12, 13, 16, 40])
def test_so_many_equal_shares_fit_on_one_device_and_not_one_more(lease_directory, count):
    lease_directory.parent.mkdir(exist_ok=True)
    site = Site(lease_directory, [whole])
    try:
        for _ in range(count):
            site.ask(f"1/{count}")
            site.check()
        assert len(site.held) == count
        site.ask(f"1/{count}")
        assert len(site.held) == count
        # Every other one goes: what is left comes in pieces, and serves one of half the device.
        for number in range(count // 2):
            site.release(number)
        site.ask("1/2" if count % 2 == 0 else f"{count // 2}/{count}")
        site.check()
        assert len(site.held) == count - count // 2 + 1
    finally:
        site.close()
