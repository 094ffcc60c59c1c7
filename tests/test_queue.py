"""The waiting rule: nobody takes a device that an earlier waiter could use."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner, Record, Waiter
from jupyter_gpu.core.policy import Candidate, choose
from jupyter_gpu.core.queue import Opening, keep_for
from jupyter_gpu.core.request import Request

GIB = 2**30


def keep_for_earlier(candidates, waiters):
    for waiter in waiters:
        candidates = keep_for(candidates, waiter)
    return candidates



def uuid(index):
    return f"GPU-{index:02}"


def candidates(reasons):
    """A reason for each device: None where it is free."""
    return tuple(
        Candidate(Device(i, uuid(i), "H200", memory_total_bytes=140 * GIB), reason)
        for i, reason in enumerate(reasons)
    )


def waiter(gpus, could_use=range(8), *, ticket=0, stalled=False, user="ada", **options):
    record = Record(
        id=f"{ticket:015x}",
        owner=Owner("kernel"),
        since="",
        request=Request(gpus=gpus, **options),
        ticket=ticket,
        could_use=tuple(map(uuid, could_use)),
    )
    return Waiter(record, user, stalled)


def free(kept):
    return [c.device.index for c in kept if c.reason is None]


@pytest.mark.parametrize(
    ("reasons", "waiters", "left"),
    [
        ([None] * 4, [], [0, 1, 2, 3]),
        ([None] * 4, [waiter(1)], [1, 2, 3]),
        ([None] * 4, [waiter(1), waiter(2, ticket=1)], [3]),
        ([None] * 4, [waiter(4)], []),
        (["leased", None, None, None], [waiter(4)], []),
        (["leased", None, None, None], [waiter("all")], []),
        ([None] * 4, [waiter("all")], []),
        ([None] * 4, [waiter(1, could_use=[3])], [0, 1, 2]),
        ([None, "leased", None, None], [waiter(2, could_use=[0, 1])], [2, 3]),
        ([None] * 4, [waiter(4, stalled=True)], [0, 1, 2, 3]),
        ([None] * 4, [waiter(1, could_use=[9])], [0, 1, 2, 3]),
        ([None] * 4, [waiter(0)], [0, 1, 2, 3]),
        ([None] * 4, [waiter("all", could_use=[])], [0, 1, 2, 3]),
        ([None] * 4, [waiter(1, devices=("2",))], [0, 1, 3]),
        ([None] * 4, [waiter(1, model="L4")], [0, 1, 2, 3]),
    ],
)
def test_what_earlier_waiters_could_use_is_kept(reasons, waiters, left):
    assert free(keep_for_earlier(candidates(reasons), waiters)) == left


def test_a_device_that_is_kept_says_for_whom():
    (kept,) = keep_for_earlier(candidates([None]), [waiter(2, user="ben")])
    assert kept.reason == "kept for ben, who waits for 2 GPUs"


def test_a_device_that_is_taken_keeps_its_reason():
    (kept,) = keep_for_earlier(candidates(["leased"]), [waiter(1)])
    assert kept.reason == "leased"


def test_a_waiter_held_back_only_by_its_own_memory_limit_holds_nobody_back():
    used = tuple(
        dataclasses.replace(c, device=dataclasses.replace(c.device, memory_used_bytes=used))
        for c, used in zip(candidates([None, None]), (GIB // 2, 0), strict=True)
    )
    picky = waiter(2, min_free_memory_bytes=140 * GIB)
    assert free(keep_for_earlier(used, [picky])) == [0]


REASONS = st.lists(st.sampled_from([None, None, "leased"]), min_size=1, max_size=8)
WAITERS = st.lists(
    st.builds(
        waiter,
        st.integers(1, 5) | st.just("all"),
        st.sets(st.integers(0, 7)),
        stalled=st.booleans(),
    ),
    max_size=5,
)


@given(REASONS, WAITERS)
def test_nothing_is_ever_made_free(reasons, waiters):
    before = candidates(reasons)
    after = keep_for_earlier(before, waiters)
    assert [c.device for c in after] == [c.device for c in before]
    assert set(free(after)) <= set(free(before))


@given(REASONS, WAITERS, st.integers(1, 8))
def test_small_requests_never_push_a_large_earlier_one_back(reasons, waiters, wanted):
    large = waiter(wanted, user="large")
    before = candidates(reasons)
    after = keep_for_earlier(before, [large, *waiters])
    taken = choose(Request(gpus=1), after)
    remaining = tuple(
        dataclasses.replace(c, reason="leased") if taken and c.device in taken.devices else c
        for c in before
    )
    could_start = choose(large.record.request, before) is not None
    assert (choose(large.record.request, remaining) is not None) == could_start
    if not could_start:
        assert taken is None


@given(REASONS, WAITERS)
def test_a_waiter_that_could_start_keeps_no_more_than_it_needs(reasons, waiters):
    before = candidates(reasons)
    request = Request(gpus=1)
    if choose(request, before) is not None:
        assert len(free(keep_for_earlier(before, [waiter(1)]))) == len(free(before)) - 1


@given(REASONS)
def test_a_stopped_waiter_keeps_nothing(reasons):
    before = candidates(reasons)
    assert keep_for_earlier(before, [waiter(8, stalled=True)]) == before


QUARTER, HALF = Fraction(1, 4), Fraction(1, 2)


def opening(free_units, request, mine=range(8)):
    """Return what is open to a request for some devices, given how much of each is unlocked."""
    room = {uuid(i): units // request.units for i, units in enumerate(free_units)}
    room = {one: times for one, times in room.items() if times}
    names = {uuid(i) for i in mine}
    serving = {one: times for one, times in room.items() if one in names}
    return Opening(request, (), request.gpus, serving, frozenset(room.keys() - serving))


@pytest.mark.parametrize(
    ("free", "request_", "earlier", "left"),
    [
        ([1, 0], Request(), [], True),
        ([1, 0], Request(), [waiter(1)], False),
        ([1, 1], Request(), [waiter(1)], True),
        ([1, 1], Request(gpus=2), [waiter(1)], False),
        ([1, 1], Request(), [None], True),
        ([1, 1], Request(), [None, None], False),
        ([1, 1], Request(), [waiter(1), waiter(1)], False),
        ([1, 1], Request(), [waiter(8)], False),
        ([1, 1], Request(), [waiter("all")], False),
        ([1, 0], Request(), [waiter(1, could_use=[1])], True),
        ([1, 0], Request(), [waiter(1, stalled=True)], True),
        ([1, 0], Request(), [waiter(1, min_free_memory_bytes=GIB)], True),
        ([1], Request(share=QUARTER), [waiter(1, share=QUARTER)] * 3, True),
        ([1], Request(share=QUARTER), [waiter(1, share=QUARTER)] * 4, False),
        ([1], Request(share=HALF), [waiter(1, share=QUARTER)] * 2, True),
    ],
)
def test_who_comes_earlier_is_counted_against_what_is_open(free, request_, earlier, left):
    assert opening([DEVICE_UNITS * f for f in free], request_).is_left_by(earlier) is left


def test_no_more_of_the_queue_is_asked_for_than_decides():
    asked = []

    def earlier():
        for number in range(1000):
            asked.append(number)
            yield waiter(1, ticket=number)

    assert not opening([DEVICE_UNITS] * 3, Request()).is_left_by(earlier())
    assert len(asked) == 3


def test_a_waiter_in_another_lease_counts_for_nothing():
    inner = waiter(1)
    nested = dataclasses.replace(inner.record, ancestors=("a" * 15,))
    inside = dataclasses.replace(inner, record=nested)
    assert opening([DEVICE_UNITS], Request()).is_left_by([inside])


FREE_UNITS = st.lists(
    st.sampled_from([0, DEVICE_UNITS // 4, DEVICE_UNITS // 2, DEVICE_UNITS, DEVICE_UNITS]),
    min_size=1,
    max_size=8,
)
ANYBODY = st.lists(
    st.builds(
        waiter, st.integers(1, 5) | st.just("all"), st.sets(st.integers(0, 7)),
        stalled=st.booleans(),
    )
    | st.builds(
        waiter, st.just(1), st.sets(st.integers(0, 7)),
        share=st.sampled_from([QUARTER, HALF]),
    ),
    max_size=5,
)
ONE = st.builds(Request, gpus=st.integers(1, 4)) | st.builds(
    Request, share=st.sampled_from([QUARTER, HALF])
)


@given(FREE_UNITS, ONE, ANYBODY)
def test_nobody_goes_on_waiting_who_could_start(free_units, request_, earlier):
    some = tuple(
        dataclasses.replace(c, free_units=units)
        for c, units in zip(candidates([None] * len(free_units)), free_units, strict=True)
    )
    some = tuple(c if c.free_units else dataclasses.replace(c, reason="leased") for c in some)
    if request_.share is None:  # for whole devices, as Candidates finds them
        some = tuple(
            c if c.free_units == DEVICE_UNITS else dataclasses.replace(c, reason="leased")
            for c in some
        )
    if not opening(free_units, request_).is_left_by(earlier):
        assert choose(request_, keep_for_earlier(some, earlier)) is None
