"""Since when nobody uses a lease: a table of what happened, and what is known then."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.idleness import (
    Cells,
    Idleness,
    idle_view,
    is_over,
    parse_idle_time,
    seconds_left,
    shorter,
)
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.request import Request

BEGIN = datetime(2026, 12, 1, 9, 0, tzinfo=timezone.utc)


def at(seconds):
    return BEGIN + timedelta(seconds=seconds)


def after(*events):
    """What is known after cells that ended (a number) and looks (a pair) at these seconds."""
    known = Idleness.begins(BEGIN)
    for event in events:
        if isinstance(event, tuple):
            known = known.looked(at(event[0]), event[1])
        else:
            known = known.used(at(event))
    return known


QUIET, WORKS, UNKNOWN = (0.0,), (35.0,), (None,)
QUIET_LOOKS = [(seconds, QUIET) for seconds in range(5, 200, 10)]


@pytest.mark.parametrize(
    ("events", "now", "since"),
    [
        # Nobody has looked at the devices yet.
        ([], 1, None),
        ([100], 101, None),
        # A kernel that was only started, and one whose cell has ended.
        ([(5, QUIET)], 6, 0),
        ([20, (21, QUIET)], 22, 20),
        ([20, (21, QUIET), (31, QUIET), (41, QUIET)], 45, 20),
        (QUIET_LOOKS, 200, 0),
        # A look before the cell's end says nothing about the time after it.
        ([(5, QUIET), 20], 21, None),
        ([20, (15, QUIET)], 21, None),
        ([20, (20, QUIET)], 21, None),
        # Work goes on after the cell: a thread, a forked worker, others on a shared device.
        ([20, (25, WORKS)], 26, None),
        ([20, (25, WORKS), (35, QUIET)], 36, 25),
        ([20, (25, QUIET), (35, WORKS), (45, QUIET)], 46, 35),
        ([20, (25, WORKS), 30, (35, QUIET)], 36, 30),
        ([20, (25, (0.0, 1.0))], 26, None),
        ([20, (25, (0.0, 0))], 26, 20),
        # What is unknown never counts as idle, not even afterwards.
        ([20, (25, UNKNOWN)], 26, None),
        ([20, (25, (0.0, None))], 26, None),
        ([20, (25, ())], 26, None),
        ([20, (25, QUIET), (35, UNKNOWN), (45, QUIET)], 46, 35),
        # Nobody has looked for more than a minute: the server stood still.
        ([20, (81, QUIET)], 82, 81),
        ([20, (80, QUIET)], 81, 20),
        ([(5, QUIET), (66, QUIET)], 67, 66),
        ([20, (25, QUIET)], 85, 20),
        ([20, (25, QUIET)], 86, None),
        # The clock was set back by an hour, and goes on from there.
        ([20, (25, QUIET)], -3600, None),
        ([20, (25, QUIET), (-3600, QUIET)], -3599, -3600),
        ([20, (25, QUIET), (-3600, QUIET), (-3590, QUIET)], -3589, -3600),
        # The same look, handed out twice, is one.
        ([20, (25, QUIET), (25, QUIET)], 26, 20),
        ([20, (25, WORKS), (25, WORKS), (35, QUIET)], 36, 25),
    ],
)
def test_a_lease_is_idle_since_the_later_of_its_last_cell_and_its_devices_last_work(
    events, now, since
):
    expected = None if since is None else at(since)
    assert after(*events).since(at(now), 0) == expected


@pytest.mark.parametrize(("now", "since"), [(59, None), (59.9, None), (60, BEGIN), (61, BEGIN)])
def test_a_pause_of_less_than_a_minute_is_no_idleness(now, since):
    assert after((5, QUIET), (55, QUIET)).since(at(now), 60) == since


moments = st.integers(0, 3600)
loads = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0, 100.0])), max_size=3)
events = st.lists(st.one_of(moments, st.tuples(moments, loads)), max_size=30)


@given(events)
def test_it_is_never_idle_since_before_its_last_use(happened):
    happened.sort(key=lambda one: one[0] if isinstance(one, tuple) else one)
    known, last = Idleness.begins(BEGIN), BEGIN
    for event in happened:
        if isinstance(event, tuple):
            known = known.looked(at(event[0]), event[1])
        else:
            known, last = known.used(at(event)), at(event)
        for now in (known.seen, known.seen + timedelta(seconds=30)):
            since = known.since(now, 0)
            assert since is None or last <= since <= now


def header(number, kind="execute_request", **more):
    return {"msg_id": f"m{number}", "msg_type": kind, **more}


@pytest.mark.parametrize(
    ("told", "running", "ended"),
    [
        ([], 0, None),
        ([("starting", {}, 1)], 0, None),
        ([("busy", header(1), 1)], 1, None),
        ([("busy", header(1), 1), ("idle", header(1), 2)], 0, 2),
        ([("idle", header(1), 2)], 0, 2),
        # A subshell answers a widget while the cell goes on in the main shell.
        (
            [
                ("busy", header(1), 1),
                ("busy", header(2, "comm_msg", subshell_id="s"), 2),
                ("idle", header(2, "comm_msg", subshell_id="s"), 3),
            ],
            1,
            3,
        ),
        (
            [
                ("busy", header(1, subshell_id="s"), 1),
                ("busy", header(2), 2),
                ("idle", header(1, subshell_id="s"), 3),
                ("idle", header(2), 4),
            ],
            0,
            4,
        ),
        # An end that was lost: the next cell of that shell shows that there was one.
        ([("busy", header(1), 1), ("busy", header(2), 5), ("idle", header(2), 6)], 0, 6),
        # What asks about the kernel runs nothing of the person's.
        ([("busy", header(1, "kernel_info_request"), 1)], 0, None),
        (
            [("busy", header(1, "usage_request"), 1), ("idle", header(1, "usage_request"), 2)],
            0,
            None,
        ),
        ([("busy", header(1), 1), ("idle", header(9, "complete_request"), 2)], 1, None),
        # Nothing of it is a message as we know them.
        ([("busy", {"msg_type": "execute_request"}, 1)], 0, None),
        ([("busy", {"msg_type": "execute_request", "msg_id": ["m"]}, 1)], 0, None),
        ([("busy", header(1, subshell_id=["s"]), 1)], 1, None),
        ([(["busy"], header(1), 1)], 0, None),
    ],
)
def test_which_cells_run_is_told_by_the_kernels_own_status(told, running, ended):
    cells = Cells()
    assert not cells.heard
    for state, parent, moment in told:
        cells = cells.told(state, parent, at(moment))
    assert len(cells.running) == running
    assert cells.ended == (None if ended is None else at(ended))
    assert cells.heard == bool(told)


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [
        ("2h", 7200),
        ("30m", 1800),
        (90, 90),
        ("1.5h", 5400),
        (None, None),
        ("none", None),
        ("", None),
    ],
)
def test_an_idle_time_is_read_as_a_person_writes_it(given_, seconds):
    assert parse_idle_time("idle_warning", given_) == seconds


@pytest.mark.parametrize(
    "given_", ["soon", 0, "0", "-1h", "2 weeks", True, [], "1e9h", "99999999d"]
)
def test_what_is_no_time_above_0_is_refused(given_):
    with pytest.raises(RequestError, match=r"idle_shutdown: .* is not a time above 0"):
        parse_idle_time("idle_shutdown", given_)


@pytest.mark.parametrize(
    ("times", "shortest"), [((), None), ((None,), None), ((None, 5), 5), ((7, 5, None), 5)]
)
def test_the_shorter_of_two_times_counts(times, shortest):
    assert shorter(*times) == shortest


def test_idle_for_so_long_is_told_from_the_record():
    since = at(0).isoformat(timespec="seconds")
    assert seconds_left(since, 100, at(30)) == 70
    assert not is_over(since, 100, at(99))
    assert is_over(since, 100, at(100))
    assert not is_over(None, 0, at(100))


def record(*indices, units=DEVICE_UNITS, **request):
    owner = Owner("kernel", idle_since=BEGIN.isoformat())
    return Record(
        "x" * 32,
        owner,
        "",
        Request.parse(request),
        tuple(f"GPU-{n}" for n in indices),
        indices,
        units,
    )


@pytest.mark.parametrize(
    ("held", "waiting", "said"),
    [
        (
            record(3),
            0,
            (
                "1 GPU idle since 09:00: this kernel holds physical 3.\n"
                "No cell has run since then, and it does nothing.\n"
                "To give it back:  Kernel > Shut Down Kernel,  or  %gpu use 0"
            ),
        ),
        (
            record(3, 5),
            1,
            (
                "2 GPUs idle since 09:00: this kernel holds physical 3, 5.\n"
                "No cell has run since then, and they do nothing.\n"
                "1 other waits for one of them.\n"
                "To give them back:  Kernel > Shut Down Kernel,  or  %gpu use 0"
            ),
        ),
        (
            record(0, units=DEVICE_UNITS // 4, gpus="1/4"),
            3,
            (
                "1 GPU idle since 09:00: this kernel holds ¼ GPU (physical 0).\n"
                "No cell has run since then, and it does nothing.\n"
                "3 others wait for it.\n"
                "To give it back:  Kernel > Shut Down Kernel,  or  %gpu use 0"
            ),
        ),
    ],
)
def test_the_person_is_told_what_is_held_since_when_who_waits_and_what_to_do(held, waiting, said):
    assert as_text(idle_view(held, waiting, at(7200))) == said
