"""The lines of the log of grants, and what they add up to."""

import json
from datetime import datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jupyter_gpu.core.grants import (
    Ended,
    Granted,
    UserLog,
    ended_line,
    granted_line,
    parse_entries,
    recent,
    unended,
    usage,
)

A, B, C = "a" * 15, "b" * 15, "c" * 15
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=timezone.utc)
WEEK = NOW - timedelta(days=7)
ALICE, BOB = 1000, 1001


def ago(hours):
    return NOW - timedelta(hours=hours)


def granted(lease, hours_ago, *, devices=1, share=1):
    uuids = tuple(f"GPU-{n}" for n in range(devices))
    return Granted(lease, ago(hours_ago), uuids, tuple(range(devices)), Fraction(share), "kernel")


def ended(lease, hours_ago, *, exact=True):
    return Ended(lease, ago(hours_ago), exact)


def log(*entries, uid=ALICE, user="alice"):
    return UserLog(uid, user, entries)


def only(*logs, since=WEEK, **known):
    (use,) = usage(logs, since, NOW, **known)
    return use


def test_a_line_is_what_programs_may_rely_on():
    assert json.loads(granted_line(granted(A, 1, devices=2))) == {
        "schema": 1,
        "event": "granted",
        "lease": A,
        "time": "2026-12-01T11:00:00.000+00:00",
        "uuids": ["GPU-0", "GPU-1"],
        "indices": [0, 1],
        "share": 1.0,
        "kind": "kernel",
    }
    assert json.loads(ended_line(ended(A, 0, exact=False))) == {
        "schema": 1,
        "event": "ended",
        "lease": A,
        "time": "2026-12-01T12:00:00.000+00:00",
        "exact": False,
    }


@given(some.fractions(Fraction(1, 27720), 1, max_denominator=27720))
def test_every_share_comes_back_exactly(share):
    entry = granted(A, 1, share=share)
    assert parse_entries(granted_line(entry)) == (entry,)


def test_what_was_written_is_read_in_order():
    entries = (granted(A, 3, devices=8), ended(A, 2, exact=False), granted(B, 1))
    lines = b"".join(
        (granted_line if isinstance(entry, Granted) else ended_line)(entry) for entry in entries
    )
    assert parse_entries(lines) == entries


def changed(**changes):
    data = {**json.loads(granted_line(granted(A, 1))), **changes}
    return json.dumps({key: value for key, value in data.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"{}",
        b'{"schema": 1}',
        b'{"schema": 1, "event": ' + b"[" * 100_000,
        granted_line(granted(A, 1))[:-20],
        changed(schema=2),
        changed(event="taken"),
        changed(event=["granted"]),
        changed(lease="../../etc"),
        changed(lease=3),
        changed(lease=...),
        changed(time="yesterday"),
        changed(time="2026-12-01T11:00:00"),
        changed(time="0001-01-01T00:00:00+14:00"),
        changed(time=3),
        changed(uuids=[]),
        changed(uuids="GPU-0"),
        changed(uuids=...),
        changed(share=0),
        changed(share=1.5),
        changed(share=-1),
        changed(share=float("nan")),
        changed(share="1"),
        changed(kind="daemon"),
        changed(kind=["kernel"]),
    ],
)
def test_what_is_no_line_is_skipped_and_the_next_is_read(line):
    good = ended_line(ended(B, 1))
    assert parse_entries(line + b"\n" + good) == (ended(B, 1),)


@pytest.mark.parametrize("length", [1, 5, 9, 40, 100])
def test_a_torn_line_does_not_take_the_next_with_it(length):
    torn = granted_line(granted(A, 1))[:length]
    assert parse_entries(torn + ended_line(ended(B, 1))) == (ended(B, 1),)


@given(some.binary(max_size=400))
def test_no_bytes_at_all_are_an_error(data):
    assert parse_entries(data) == ()


def test_text_in_a_line_is_cleaned_and_a_device_counts_once():
    (entry,) = parse_entries(changed(uuids=["GPU-0", "GPU-0", "GPU-\x1b", 7], indices=[0, True]))
    assert entry.uuids == ("GPU-0", "GPU-?")
    assert entry.indices == (0,)


def test_hours_are_those_of_every_device():
    use = only(log(granted(A, 5, devices=2), ended(A, 2)))
    assert (use.user, use.uid, use.leases) == ("alice", ALICE, 1)
    assert use.device_hours == 6.0
    assert (use.open, use.open_device_hours, use.estimated) == (0, 0.0, 0)
    assert use.last_grant == ago(5)


def test_a_share_counts_as_its_part():
    assert only(log(granted(A, 8, share="1/4"), ended(A, 0))).device_hours == 2.0


def test_only_what_falls_into_the_period_counts():
    logs = log(granted(A, 200), ended(A, 160), granted(B, 300), ended(B, 180))
    use = only(logs)
    assert (use.leases, use.device_hours) == (1, 8.0)
    assert usage([logs], ago(1), NOW) == ()


def test_a_lease_that_lives_counts_up_to_now():
    use = only(log(granted(A, 3, devices=2), granted(B, 9), ended(B, 8)), live={A, B, C})
    assert (use.leases, use.device_hours) == (2, 7.0)
    assert (use.open, use.open_device_hours, use.estimated) == (1, 6.0, 0)


def test_a_lease_that_is_gone_without_an_end_counts_up_to_its_last_sign_of_life():
    use = only(log(granted(A, 10)), seen={A: ago(4)})
    assert (use.device_hours, use.estimated, use.open) == (6.0, 1, 0)
    unknown = only(log(granted(A, 10)))
    assert (unknown.leases, unknown.device_hours, unknown.estimated) == (1, 0.0, 1)


def test_an_end_that_was_found_later_is_an_estimate_and_an_exact_one_wins():
    assert only(log(granted(A, 5), ended(A, 2, exact=False))).estimated == 1
    for ends in ((ended(A, 3), ended(A, 1, exact=False)), (ended(A, 1, exact=False), ended(A, 3))):
        use = only(log(granted(A, 5), *ends))
        assert (use.device_hours, use.estimated) == (2.0, 0)


def test_a_lease_that_moves_to_other_devices_is_one_lease():
    use = only(log(granted(A, 6, devices=1), granted(A, 4, devices=2), ended(A, 1)))
    assert (use.leases, use.device_hours, use.last_grant) == (1, 2 + 6, ago(4))


def test_lines_of_several_processes_may_stand_in_any_order():
    use = only(log(ended(A, 1), granted(A, 4, devices=2), granted(A, 6)))
    assert (use.leases, use.device_hours) == (1, 8.0)


def test_an_end_before_the_beginning_or_in_the_future_gives_no_hours_away():
    assert only(log(granted(A, 2), ended(A, 5))).device_hours == 0
    assert only(log(granted(A, 2), ended(A, -50))).device_hours == 2.0
    assert usage([log(granted(A, -2))], WEEK, NOW, live={A}) == ()


def test_root_may_tell_the_end_of_anybodys_lease_and_nobody_else():
    root = log(ended(A, 3, exact=False), uid=0, user="root")
    bob = log(ended(A, 4), granted(B, 1), ended(B, 0), uid=BOB, user="bob")
    alice = log(granted(A, 5))
    uses = {use.user: use for use in usage([alice, bob, root], WEEK, NOW, live={A})}
    assert uses.keys() == {"alice", "bob"}
    assert (uses["alice"].device_hours, uses["alice"].estimated) == (2.0, 1)
    assert usage([alice, bob], WEEK, NOW, live={A})[0].device_hours == 5.0
    assert unended([alice, bob, root]) == ()
    assert unended([alice, bob]) == ((ALICE, A),)


def test_who_had_most_comes_first():
    bob = log(granted(B, 9), ended(B, 0), uid=BOB, user="bob")
    names = [use.user for use in usage([log(granted(A, 2), ended(A, 0)), bob], WEEK, NOW)]
    assert names == ["bob", "alice"]


def test_leases_that_ended_long_ago_are_left_out_when_reading():
    entries = (granted(A, 300), ended(A, 200), granted(B, 300), granted(C, 2), ended(C, 1))
    assert recent(entries, WEEK) == (granted(B, 300), granted(C, 2), ended(C, 1))


@given(
    some.lists(
        some.tuples(
            some.sampled_from([A, B, C]),
            some.floats(-10, 300),
            some.sampled_from(["granted", "ended", "found"]),
            some.integers(1, 8),
        )
    ),
    some.sets(some.sampled_from([A, B, C])),
)
def test_no_log_adds_up_to_less_than_nothing_or_more_than_there_is_time_for(rows, live):
    entries = [
        granted(lease, hours, devices=devices)
        if what == "granted"
        else ended(lease, hours, exact=what == "ended")
        for lease, hours, what, devices in rows
    ]
    for use in usage([log(*entries)], WEEK, NOW, live=live):
        assert 0 <= use.open_device_hours <= use.device_hours <= 3 * 8 * 7 * 24
        assert use.open + use.estimated <= use.leases <= 3
