"""One open file description of the lock file: a ticket, a lease in the making, a lease."""

import gc
import os

import pytest

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import (
    QUEUE,
    Range,
    device_range,
    lease_byte,
    nested_byte,
    ticket_byte,
)

EVERYTHING = Range(0, (1 << 63) - 1)
A, B, C = "a" * 15, "b" * 15, "c" * 15


@pytest.fixture
def path(tmp_path):
    (tmp_path / "lock").touch()
    return tmp_path / "lock"


@pytest.fixture
def opened(path):
    return lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC)


@pytest.fixture
def claim(opened):
    """A function that makes claims, which are closed after the test."""
    made = []

    def make(lease_id=A, ancestors=()):
        made.append(Claim(opened(), lease_id, ancestors))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def is_locked(opened):
    """A function that tells whether any other description has locked a range."""
    fd = opened()
    yield lambda where: locks.first_lock(fd, where) is not None
    os.close(fd)


def held(is_locked, *uuids, above=None):
    return [uuid for uuid in uuids if is_locked(device_range(above, uuid))]


def test_a_claim_locks_the_byte_of_its_id(claim, is_locked):
    claim(A)
    assert is_locked(lease_byte(A))
    assert not is_locked(lease_byte(B))


def test_an_id_that_is_in_use_is_refused_and_nothing_is_left_open(claim, opened):
    claim(A)
    fd = opened()
    with pytest.raises(FileExistsError, match="in use"):
        Claim(fd, A)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_devices_are_taken_all_or_none(claim, is_locked):
    first, second = claim(A), claim(B)
    assert first.take(("g1", "g2"))
    assert not second.take(("g0", "g2", "g3"))
    assert held(is_locked, "g0", "g1", "g2", "g3") == ["g1", "g2"]
    assert second.uuids == ()


def test_devices_are_kept_in_visible_order(claim):
    one = claim()
    one.take(("g3", "g1"))
    assert one.uuids == ("g3", "g1")


def test_taking_more_keeps_what_is_held(claim, is_locked):
    one = claim()
    one.take(("g1",))
    assert one.take(("g2",))
    assert set(one.uuids) == {"g1", "g2"}
    one.keep_only(("g2",))
    assert held(is_locked, "g1", "g2") == ["g2"]


def test_taking_nothing_succeeds(claim):
    assert claim().take(())


def test_failing_to_take_more_leaves_what_is_held(claim, is_locked):
    one, other = claim(A), claim(B)
    one.take(("g1",))
    other.take(("g2",))
    assert not one.take(("g1", "g2"))
    assert one.uuids == ("g1",)
    assert held(is_locked, "g1", "g2") == ["g1", "g2"]


def test_closing_frees_everything(claim, is_locked):
    one = claim()
    one.take(("g1",))
    one.line_up()
    one.close()
    assert one.closed
    assert one.uuids == ()
    assert not is_locked(EVERYTHING)


def test_closing_twice_does_nothing_more(claim, opened):
    one = claim()
    one.close()
    fd = opened()  # has the number of the closed one
    one.close()
    os.fstat(fd)
    os.close(fd)


def test_a_closed_claim_has_no_descriptor(claim):
    one = claim()
    one.close()
    with pytest.raises(ValueError, match="has ended"):
        one.fd  # noqa: B018 - asking is the test


def test_a_forgotten_claim_frees_its_devices(opened, is_locked):
    one = Claim(opened(), A)
    one.take(("g1",))
    del one
    gc.collect()
    assert not is_locked(EVERYTHING)


def test_a_copy_of_the_descriptor_keeps_the_lease(claim, is_locked):
    one = claim()
    one.take(("g1",))
    copy = os.dup(one.fd)
    one.close()
    assert held(is_locked, "g1") == ["g1"]
    os.close(copy)
    assert not is_locked(EVERYTHING)


def test_tickets_are_given_in_order(claim):
    assert [claim(name).line_up() for name in (A, B, C)] == [0, 1, 2]


def test_a_ticket_is_drawn_once(claim):
    one = claim()
    assert one.line_up() == one.line_up() == 0


def test_who_comes_later_stands_behind_everybody_who_still_waits(claim):
    first, second = claim(A), claim(B)
    first.line_up()
    second.line_up()
    first.close()
    assert claim(C).line_up() == 2
    assert not second.someone_before()


def test_an_empty_queue_begins_anew(claim):
    one = claim(A)
    one.line_up()
    one.leave_queue()
    assert one.ticket is None
    assert claim(B).line_up() == 0


def test_someone_before_is_somebody_with_an_earlier_ticket(claim):
    first, second, idle = claim(A), claim(B), claim(C)
    first.line_up()
    second.line_up()
    assert not first.someone_before()
    assert second.someone_before()
    assert not idle.someone_before()
    first.leave_queue()
    assert not second.someone_before()


@pytest.mark.parametrize(
    "hostile", [QUEUE, ticket_byte(QUEUE.length - 1), Range(QUEUE.start, (1 << 61) - 1)]
)
def test_a_queue_that_somebody_has_locked_is_a_sentence(claim, opened, hostile):
    fd = opened()
    locks.try_lock(fd, hostile)
    with pytest.raises(StoreError, match="somebody has locked the queue"):
        claim().line_up()
    os.close(fd)


def test_a_range_locked_in_the_queue_is_passed(claim, opened):
    fd = opened()
    locks.try_lock(fd, Range(QUEUE.start + 3, 1000))
    assert claim().line_up() == 1003
    os.close(fd)


def test_a_shared_description_has_an_id_for_each_claim(claim, is_locked):
    one = claim(A)
    other = one.share(B)
    assert is_locked(lease_byte(A))
    assert is_locked(lease_byte(B))
    other.close()
    assert is_locked(lease_byte(A))
    assert not is_locked(lease_byte(B))


def test_handing_over_frees_what_the_new_one_does_not_need_when_the_old_one_goes(claim, is_locked):
    old = claim(A)
    old.take(("g1", "g2"))
    new = old.share(B)
    new.adopt(old.holding)
    assert new.take(("g1", "g3"))
    new.keep_only(("g1", "g3"))
    assert held(is_locked, "g1", "g2", "g3") == ["g1", "g2", "g3"]
    old.close()
    assert held(is_locked, "g1", "g2", "g3") == ["g1", "g3"]
    new.close()
    assert not is_locked(EVERYTHING)


def test_a_hand_over_that_fails_leaves_the_old_one_whole(claim, is_locked):
    old, stranger = claim(A), claim(C)
    old.take(("g1", "g2"))
    stranger.take(("g3",))
    new = old.share(B)
    new.adopt(old.holding)
    assert not new.take(("g1", "g3"))
    new.close()
    assert old.uuids == ("g1", "g2")
    assert held(is_locked, "g1", "g2") == ["g1", "g2"]
    assert not is_locked(lease_byte(B))


def test_of_two_who_share_the_last_one_frees_everything(claim, is_locked):
    old = claim(A)
    old.take(("g1",))
    new = old.share(B)
    new.adopt({"g1": 27_720})
    old.close()
    assert held(is_locked, "g1") == ["g1"]
    new.close()
    assert not is_locked(EVERYTHING)


FORKS = """
import os, sys
from jupyter_gpu.adapters.claim import Claim

old = Claim(os.open(sys.argv[1], os.O_RDWR), "a" * 15)
old.take(("g1",))
new = old.share("b" * 15)
new.adopt({"g1": 27_720})
new.take(("g1", "g2"))
pid = os.fork()
if pid == 0:
    old.close(), new.close()
    os._exit(0 if old.inherited and new.inherited else 1)
print(os.waitpid(pid, 0)[1], old.inherited, new.inherited)
sys.stdin.read()
"""


def test_a_forked_child_that_closes_its_copy_takes_nothing_from_its_parent(
    path, program, is_locked
):
    parent = program(FORKS, arguments=[path])
    assert parent.read() == "0 False False"
    assert held(is_locked, "g1", "g2") == ["g1", "g2"]
    assert is_locked(lease_byte(A))
    assert is_locked(lease_byte(B))
    parent.kill()
    assert not is_locked(EVERYTHING)


def test_a_nested_claim_parts_its_ancestors_device(claim, is_locked):
    top = claim(A)
    top.take(("g1",))
    assert claim(B, (A,)).take(("g1",))
    assert not claim(C, (A,)).take(("g1",))
    assert held(is_locked, "g1", above=A) == ["g1"]


def test_nothing_is_taken_below_a_lease_that_is_gone(claim, is_locked):
    assert not claim(B, (A,)).take(("g1",))
    assert not is_locked(device_range(A, "g1"))
    assert not is_locked(nested_byte(None, "g1"))


def test_a_device_stays_taken_while_a_lease_nested_in_a_dead_one_lives(claim):
    top, inner = claim(A), claim(B, (A,))
    top.take(("g1", "g2"))
    inner.take(("g1",))
    top.close()
    late = claim(C)
    assert not late.take(("g1",))
    assert late.take(("g2",))
    inner.close()
    assert late.take(("g1", "g2"))


def test_two_nested_leases_on_different_levels_mark_every_level_above(claim, is_locked):
    top, inner, innermost = claim(A), claim(B, (A,)), claim(C, (A, B))
    for one in (top, inner, innermost):
        assert one.take(("g1",))
    inner.close()
    top.close()
    assert is_locked(nested_byte(None, "g1"))
    assert is_locked(nested_byte(A, "g1"))
    assert not claim("d" * 15).take(("g1",))


def test_somebody_who_blocks_the_nested_byte_gets_a_refusal_and_no_crash(claim, opened):
    fd = opened()
    locks.try_lock(fd, nested_byte(None, "g1"))
    top = claim(A)
    assert not top.take(("g1",))
    assert top.take(("g2",))
    assert not claim(B, (A,)).take(("g1",))
    os.close(fd)


def test_what_another_process_has_changed_can_be_noted(claim):
    one = claim()
    one.take(("g1",))
    one.correct({"g2": 27_720, "g3": 27_720})
    assert one.uuids == ("g2", "g3")


def test_what_was_only_begun_is_cleared_and_what_is_needed_stays(claim, is_locked):
    one = claim(A)
    one.take(("g1", "g2", "g3", "g4"))
    locks.try_lock(one.fd, lease_byte(B))
    locks.try_lock(one.fd, ticket_byte(7))
    one.correct({"g1": 27_720})
    two = one.share(C)
    two.adopt({"g2": 27_720})
    two.burdens.append(("d" * 15, {"g3": 27_720}))
    two.clear((B,), (ticket_byte(7),), ("g1", "g2", "g3", "g4"))
    assert held(is_locked, "g1", "g2", "g3", "g4") == ["g1", "g2", "g3"]
    assert not is_locked(lease_byte(B))
    assert not is_locked(ticket_byte(7))
    assert is_locked(lease_byte(A))
    two.close()


def test_a_claim_that_is_left_to_the_process_stays_open(claim, is_locked):
    one = claim(A)
    fd = one.fd
    one.take(("g1",))
    one.leave()
    assert one.closed
    one.close()
    gc.collect()
    assert held(is_locked, "g1") == ["g1"]
    os.close(fd)
    assert held(is_locked, "g1") == []
