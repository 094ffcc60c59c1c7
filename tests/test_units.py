"""The units of one device in the lock file: all that is asked for, in several pieces, or none."""

import os
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.units import keep_units, lock_units
from jupyter_gpu.core.layout import DEVICE_UNITS, Range, total_units

DEVICE = Range(1 << 20, DEVICE_UNITS)
QUARTER, HALF = DEVICE_UNITS // 4, DEVICE_UNITS // 2


@pytest.fixture
def opened(tmp_path):
    """A function that opens the lock file anew: a description of its own each time."""
    path, fds = tmp_path / "lock", []
    path.touch()

    def once():
        fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return fds[-1]

    yield once
    for fd in fds:
        os.close(fd)


def held(fd):
    return total_units(locks.own_ranges(fd, DEVICE))


def taken_by_others(fd):
    return total_units(locks.locked_ranges(fd, DEVICE))


def test_shares_stand_beside_each_other_until_the_device_is_full(opened):
    one, two, three = opened(), opened(), opened()
    assert total_units(lock_units(one, DEVICE, HALF)) == HALF
    assert total_units(lock_units(two, DEVICE, QUARTER)) == QUARTER
    assert lock_units(three, DEVICE, HALF) is None
    assert held(three) == 0
    assert total_units(lock_units(three, DEVICE, QUARTER)) == QUARTER
    assert lock_units(opened(), DEVICE, 1) is None


def test_a_whole_device_and_a_share_of_it_exclude_each_other(opened):
    one, two = opened(), opened()
    assert lock_units(one, DEVICE, 1)
    assert lock_units(two, DEVICE, DEVICE_UNITS) is None
    assert held(two) == 0
    keep_units(one, DEVICE, 0)
    assert lock_units(two, DEVICE, DEVICE_UNITS) == (DEVICE,)
    assert lock_units(one, DEVICE, 1) is None


def test_a_share_is_gathered_from_the_pieces_that_others_leave(opened):
    quarters = [opened() for _ in range(4)]
    for fd in quarters:
        lock_units(fd, DEVICE, QUARTER)
    for fd in quarters[::2]:
        keep_units(fd, DEVICE, 0)
    late = opened()
    pieces = lock_units(late, DEVICE, HALF)
    assert len(pieces) == 2
    assert all(one.start + one.length < other.start for one, other in pairwise(pieces))
    assert (held(late), taken_by_others(late)) == (HALF, HALF)


def test_a_small_share_fills_a_gap_before_it_breaks_up_a_large_one(opened):
    small, wall, other = opened(), opened(), opened()
    lock_units(small, DEVICE, QUARTER)
    lock_units(wall, DEVICE, 1)
    keep_units(small, DEVICE, 0)
    (piece,) = lock_units(other, DEVICE, QUARTER)
    assert piece == Range(DEVICE.start, QUARTER)


def test_what_is_held_already_counts(opened):
    fd = opened()
    lock_units(fd, DEVICE, QUARTER)
    assert lock_units(fd, DEVICE, QUARTER, held=True) == ()
    assert total_units(lock_units(fd, DEVICE, HALF, held=True)) == QUARTER
    assert held(fd) == HALF
    assert total_units(lock_units(fd, DEVICE, DEVICE_UNITS, held=True)) == HALF
    assert held(fd) == DEVICE_UNITS


def test_growing_that_fails_leaves_what_was_held(opened):
    fd, other = opened(), opened()
    lock_units(fd, DEVICE, QUARTER)
    lock_units(other, DEVICE, HALF)
    assert lock_units(fd, DEVICE, DEVICE_UNITS, held=True) is None
    assert lock_units(fd, DEVICE, 3 * QUARTER, held=True) is None
    assert held(fd) == QUARTER
    assert taken_by_others(other) == QUARTER


def test_what_is_kept_is_as_much_as_was_said(opened):
    fd = opened()
    lock_units(fd, DEVICE, DEVICE_UNITS)
    keep_units(fd, DEVICE, HALF)
    assert held(fd) == HALF
    keep_units(fd, DEVICE, DEVICE_UNITS)
    assert held(fd) == HALF
    keep_units(fd, DEVICE, 1)
    assert held(fd) == 1


def test_thirds_fifths_and_sevenths_fill_a_device(opened):
    for part in (3, 5, 7, 8, 9, 11, 12):
        fds = [opened() for _ in range(part)]
        assert all(lock_units(fd, DEVICE, DEVICE_UNITS // part) for fd in fds)
        assert lock_units(opened(), DEVICE, DEVICE_UNITS // part) is None
        for fd in fds:
            keep_units(fd, DEVICE, 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, DEVICE_UNITS)), max_size=40
    )
)
def test_whatever_is_taken_and_kept_the_sum_is_right_and_nothing_free_is_refused(opened, steps):
    fds, has = [opened() for _ in range(5)], [0] * 5
    for who, takes, units in steps:
        free = DEVICE_UNITS - sum(has)
        if takes:
            wanted = max(units, 1)
            got = lock_units(fds[who], DEVICE, wanted, held=True)
            assert (got is not None) == (wanted - has[who] <= free)
            has[who] = max(has[who], wanted) if got is not None else has[who]
        else:
            keep_units(fds[who], DEVICE, units)
            has[who] = min(has[who], units)
        assert [held(fd) for fd in fds] == has
        assert sum(has) <= DEVICE_UNITS
    for fd in fds:
        keep_units(fd, DEVICE, 0)
