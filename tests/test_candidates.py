"""The candidates for a request at one moment: every device of the pool, and what is against it."""

import dataclasses

import pytest

from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Candidates, Surroundings, on_card
from jupyter_gpu.core.devices import Device, Process
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.request import Request
from jupyter_gpu.pool import Pool
from jupyter_gpu.site import Site

MACHINE = SimulatedMachine("2xH200+1xL4")
INVENTORY = MACHINE.read()
UUIDS = tuple(device.uuid for device in INVENTORY.devices)


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "simulated")


@pytest.fixture
def store(place):
    with LeaseStore(place, write=True) as opened:
        yield opened


@pytest.fixture
def claim(store):
    """A function that makes claims, which are closed after the test."""
    made = []

    def make():
        made.append(store.new_claim())
        return made[-1]

    yield make
    for one in made:
        store.withdraw(one)


@pytest.fixture
def candidates(store, place):
    """A function that gives the candidates for a request's options."""

    def find(inherited=None, **options):
        around = Surroundings(store, Site(place, {}), True, MACHINE.topology)
        request = Request.parse({"wait": "1h", **options})
        return Candidates(request, around, Pool(INVENTORY.devices), inherited or {})

    return find


def reasons(found):
    return [candidate.reason for candidate in found]


def lines_up(store, claim, **options):
    """Make a claim wait for what these options ask for, on any device."""
    request = Request.parse(options)
    record = Record(
        claim.id, Owner("api"), "", request, ticket=claim.line_up(), could_use=UUIDS
    )
    store.publish(claim, record)


def test_what_is_leased_stands_against_a_request(candidates, claim):
    claim().take((UUIDS[1],))
    assert reasons(candidates().all(INVENTORY, claim())) == [None, "leased", None]


def test_what_is_left_of_a_device_is_there_for_shares_only(candidates, claim):
    claim().take((UUIDS[0],), DEVICE_UNITS // 4)
    whole, part = candidates(), candidates(gpus="1/2")
    assert reasons(whole.all(INVENTORY, claim()))[0] == "leased"
    (first, *_) = part.all(INVENTORY, claim())
    assert (first.reason, first.free_units) == (None, DEVICE_UNITS * 3 // 4)


def test_what_an_earlier_waiter_wants_is_kept_also_from_one_who_does_not_wait(
    candidates, claim, store
):
    lines_up(store, claim(), gpus=3)
    claim().take((UUIDS[2],))
    first, second, third = reasons(candidates().all(INVENTORY, claim()))
    assert first == second
    assert first.endswith("who waits for 3 GPUs")
    assert third == "leased"


def test_what_is_held_already_is_kept_for_nobody_else(candidates, claim, store):
    lines_up(store, claim(), gpus=3)
    mine = candidates({UUIDS[0]: DEVICE_UNITS})
    assert reasons(mine.all(INVENTORY, claim()))[0] is None
    assert mine.inherits
    assert not candidates().inherits


def test_the_locks_tell_how_much_is_open_to_a_request_and_what_is_beside_it(candidates, claim):
    asks = claim()
    claim().take((UUIDS[0],), DEVICE_UNITS // 2)
    opening = candidates(model="H200").opening(asks)
    assert dict(opening.room) == {UUIDS[1]: 1}
    assert opening.beside == {UUIDS[2]}
    assert dict(candidates(gpus="1/4").opening(asks).room) == {
        UUIDS[0]: 2,
        UUIDS[1]: 4,
        UUIDS[2]: 4,
    }


def test_nothing_is_open_where_the_locks_leave_too_little(candidates, claim):
    asks = claim()
    assert candidates(gpus=3).opening(asks) is not None
    claim().take((UUIDS[0],))
    assert candidates(gpus=3).opening(asks) is None
    assert candidates(gpus="all").opening(asks) is None
    assert candidates(devices=[0]).opening(asks) is None
    assert candidates(devices=[0], inherited={UUIDS[0]: DEVICE_UNITS}).opening(asks) is not None


def test_a_device_is_still_free_unless_something_has_appeared_on_it(candidates):
    one = candidates()
    assert one.still_free(UUIDS, INVENTORY)
    lost = dataclasses.replace(INVENTORY.devices[0], problem="lost")
    later = dataclasses.replace(INVENTORY, devices=(lost, *INVENTORY.devices[1:]))
    assert not one.still_free(UUIDS, later)
    assert one.still_free(UUIDS[1:], later)
    assert not one.still_free(("GPU-gone",), INVENTORY)
    held = candidates({UUIDS[0]: DEVICE_UNITS})
    assert held.still_free(UUIDS, later)


def test_a_process_that_cannot_be_seen_is_an_obstacle_that_passes():
    device = Device(0, "GPU-0", "H200", processes=(Process(2**22 + 1),))
    found = on_card(device, Request(), simulated=True)
    assert found.passing
    assert "cannot be seen" in found.reason


def test_how_devices_are_joined_is_read_only_for_who_wants_to_know(store, place):
    asked = []
    around = Surroundings(
        store, Site(place, {}), True, lambda: asked.append(1) or MACHINE.topology()
    )
    assert around.topology_for(Request()) is None
    assert not asked
    assert around.topology_for(Request(gpus=2, topology="prefer")) is not None
    assert asked
