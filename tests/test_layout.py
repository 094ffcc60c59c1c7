"""Where things stand in the lock file."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.layout import (
    DEVICE_UNITS,
    LAYOUT_VERSION,
    LEASE_IDS,
    QUEUE,
    change_byte,
    device_range,
    is_lease_id,
    lease_byte,
    lease_id_at,
    nested_byte,
    new_lease_id,
    ticket_byte,
)

END_OF_OFFSETS = (1 << 63) - 1
UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
IDS = st.integers(0, 16**15 - 1).map(lambda number: f"{number:015x}")
LEVELS = st.none() | IDS


def inside(inner, outer):
    return outer.start <= inner.start and inner.start + inner.length <= outer.start + outer.length


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12])
def test_a_device_divides_into_whole_units(parts):
    assert DEVICE_UNITS % parts == 0


def test_the_places_of_this_layout_never_change():
    # Two releases that disagree would lease the same device twice: a change needs a new version.
    assert LAYOUT_VERSION == 1
    uuid = "GPU-f80415fc-4434-cae0-abda-3d93d53208ba"
    assert device_range(None, uuid).start == 1_615_371_042_773_041_152
    assert device_range("0123456789abcde", uuid).start == 1_091_316_238_113_570_816
    assert nested_byte(None, uuid).start == 1_615_371_042_773_068_872
    assert lease_byte("0123456789abcde").start == 2_310_967_104_789_724_382
    assert ticket_byte(7).start == 4_611_686_018_427_387_911
    assert DEVICE_UNITS == 27_720


def test_a_new_lease_id_is_random_and_of_the_right_form():
    ids = {new_lease_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(map(is_lease_id, ids))


@pytest.mark.parametrize(
    "text",
    ["", "0" * 14, "0" * 16, "A" * 15, "../../../etc/pw", "0" * 15 + "\n", "g" * 15, "recent-0"],
)
def test_what_is_no_lease_id_is_told_apart(text):
    assert not is_lease_id(text)


@given(IDS)
def test_a_lease_id_and_its_byte_tell_each_other(lease_id):
    where = lease_byte(lease_id)
    assert where.length == 1
    assert inside(where, LEASE_IDS)
    assert lease_id_at(where.start) == lease_id
    assert is_lease_id(lease_id)


@given(st.integers(0, QUEUE.length - 1))
def test_a_ticket_stands_in_the_queue(ticket):
    assert inside(ticket_byte(ticket), QUEUE)


@given(LEVELS, UUIDS)
def test_a_device_stands_before_everything_else_and_its_nested_byte_behind_it(level, uuid):
    device, nested = device_range(level, uuid), nested_byte(level, uuid)
    assert device.length == DEVICE_UNITS
    assert device.start >= 0
    assert nested.start == device.start + device.length
    assert nested.length == 1
    assert nested.start + nested.length <= LEASE_IDS.start


@given(st.lists(st.tuples(LEVELS, UUIDS), min_size=2, max_size=20, unique=True))
def test_different_devices_and_levels_do_not_touch(pairs):
    ranges = sorted((device_range(*pair) for pair in pairs), key=lambda where: where.start)
    for left, right in pairwise(ranges):
        assert left.start + left.length < right.start


def test_the_regions_do_not_touch_and_fit_a_file():
    assert LEASE_IDS.start + LEASE_IDS.length <= QUEUE.start
    assert QUEUE.start + QUEUE.length <= END_OF_OFFSETS


@given(st.text(max_size=40))
def test_any_name_of_a_device_has_a_place(name):
    name = re.sub(r"[\ud800-\udfff]", "?", name)
    assert 0 <= device_range(None, name).start < LEASE_IDS.start


@given(IDS, IDS)
def test_the_right_to_change_a_lease_is_a_unit_of_its_own(one, two):
    where = change_byte(one)
    assert where.length == 1
    assert LEASE_IDS.start + LEASE_IDS.length <= where.start < QUEUE.start
    assert (where == change_byte(two)) == (one == two)
