"""Open-file-description locks on ranges: the primitive that a lease is made of."""

import errno
import fcntl
import os
import signal
import struct
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpu.adapters import locks
from jupyter_gpu.core.layout import LEASE_IDS, Range

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's")

WHERE = Range(1000, 100)
FOREVER = Range(0, (1 << 63) - 1)
WAIT_FOR_INPUT = "import sys; print('ready'); sys.stdin.read()"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "lock").touch()
    return tmp_path / "lock"


@pytest.fixture
def opened(path):
    """A function that opens the file anew; each result has locks of its own."""
    fds = []

    def open_it(mode=os.O_RDWR):
        fds.append(os.open(path, mode | os.O_CLOEXEC))
        return fds[-1]

    yield open_it
    for fd in fds:
        os.close(fd)


def test_this_system_has_such_locks(opened):
    assert locks.supported(opened())


def test_asking_whether_there_are_locks_takes_none(opened):
    locks.supported(opened())
    assert locks.first_lock(opened(), FOREVER) is None


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_system_without_such_locks_is_told_apart(opened, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "no such locks")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert not locks.supported(opened())


def test_another_error_is_not_taken_for_a_missing_feature(opened, monkeypatch):
    fd = opened()
    os.close(os.dup(fd))
    with pytest.raises(OSError, match="Bad file descriptor"):
        locks.supported(1_000_000)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_have_none(opened, monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    assert not locks.supported(opened())


def test_a_range_is_locked_once(opened):
    assert locks.try_lock(opened(), WHERE)
    assert not locks.try_lock(opened(), WHERE)


@pytest.mark.parametrize(
    ("other", "free"),
    [
        (Range(900, 100), True),
        (Range(1100, 5), True),
        (Range(999, 2), False),
        (Range(1099, 1), False),
        (Range(1050, 1), False),
        (Range(0, 5000), False),
    ],
)
def test_ranges_that_touch_exclude_each_other(opened, other, free):
    locks.try_lock(opened(), WHERE)
    assert locks.try_lock(opened(), other) == free


def test_locking_again_through_the_same_description_succeeds(opened):
    fd = opened()
    assert locks.try_lock(fd, WHERE)
    assert locks.try_lock(fd, WHERE)
    assert locks.first_lock(fd, WHERE) is None


def test_shared_locks_stand_beside_each_other_and_against_exclusive_ones(opened):
    assert locks.try_lock(opened(), WHERE, shared=True)
    assert locks.try_lock(opened(), WHERE, shared=True)
    assert not locks.try_lock(opened(), WHERE)
    assert locks.first_lock(opened(), WHERE) == WHERE


def test_unlocking_a_part_leaves_the_rest(opened):
    fd, other = opened(), opened()
    locks.try_lock(fd, WHERE)
    locks.unlock(fd, Range(1040, 20))
    assert sorted(locks.locked_ranges(other, FOREVER), key=lambda r: r.start) == [
        Range(1000, 40),
        Range(1060, 40),
    ]


def test_a_read_only_descriptor_is_enough_to_ask(opened):
    locks.try_lock(opened(), WHERE)
    assert locks.first_lock(opened(os.O_RDONLY), FOREVER) == WHERE


def test_a_read_only_descriptor_cannot_take(opened):
    with pytest.raises(OSError, match="Bad file descriptor"):
        locks.try_lock(opened(os.O_RDONLY), WHERE)


def test_a_lock_lives_as_long_as_any_copy_of_its_description(opened):
    fd, other = opened(), opened()
    locks.try_lock(fd, WHERE)
    copy = os.dup(fd)
    os.close(os.dup(fd))
    assert locks.first_lock(other, WHERE) == WHERE
    os.close(copy)
    assert locks.first_lock(other, WHERE) == WHERE


def test_a_lock_to_the_end_of_time_is_cut_to_what_was_asked(opened):
    to_the_end = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 500, 0, 0)
    fcntl.fcntl(opened(), 37, to_the_end)
    assert list(locks.locked_ranges(opened(), WHERE)) == [WHERE]
    assert list(locks.locked_ranges(opened(), Range(400, 200))) == [Range(500, 100)]


def test_an_inherited_description_keeps_the_lock_until_its_process_is_killed(
    path, opened, program, eventually
):
    fd = os.open(path, os.O_RDWR)
    locks.try_lock(fd, WHERE)
    child = program(WAIT_FOR_INPUT, pass_fds=(fd,))
    assert child.read() == "ready"
    os.close(fd)
    assert locks.first_lock(opened(), WHERE) == WHERE
    child.signal(signal.SIGSTOP)
    assert locks.first_lock(opened(), WHERE) == WHERE
    child.kill()
    assert locks.first_lock(opened(), WHERE) is None


def test_a_description_that_is_not_passed_on_is_not_inherited(path, opened, program):
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    locks.try_lock(fd, WHERE)
    child = program(WAIT_FOR_INPUT)
    assert child.read() == "ready"
    os.close(fd)
    assert locks.first_lock(opened(), WHERE) is None


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(0, 2), st.booleans()), max_size=14
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(SPANS, st.integers(0, 40), st.integers(1, 50))
def test_exactly_what_is_locked_is_found(tmp_path, spans, start, length):
    path = tmp_path / "file"
    path.touch()
    fds = [os.open(path, os.O_RDWR) for _ in range(3)]
    asking = os.open(path, os.O_RDONLY)
    try:
        locked = set()
        for begin, size, owner, shared in spans:
            where = Range(LEASE_IDS.start + begin, size)
            if locks.try_lock(fds[owner], where, shared=shared):
                locked.update(range(where.start, where.start + size))
        asked = Range(LEASE_IDS.start + start, length)
        found = list(locks.locked_ranges(asking, asked))
        units = [unit for r in found for unit in range(r.start, r.start + r.length)]
        assert len(units) == len(set(units))
        assert set(units) == locked & set(range(asked.start, asked.start + asked.length))
        first = locks.first_lock(asking, asked)
        assert (first is not None) == bool(units)
    finally:
        for fd in (*fds, asking):
            os.close(fd)
