"""What a picture of the timeline shows: lines with holes, spans cut to size, labels with room."""

import itertools
import math
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.timeline_lines import (
    MOST_ROWS,
    Span,
    highest,
    label_rows,
    lines_of,
    numbers,
    spans_of,
    spoken,
)

GIB = 2**30


def iso(seconds):
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def row(at, uuid="GPU-a", ordinal=0, index=3, used=2 * GIB, here=GIB, load=50):
    return {
        "time": iso(at),
        "cell": 4,
        "ordinal": ordinal,
        "index": index,
        "uuid": uuid,
        "memory_used_bytes": used,
        "memory_here_bytes": here,
        "utilization_percent": load,
        "power_watts": None,
        "temperature_celsius": None,
    }


def holes(line):
    return [at for at, used in zip(line.times, line.used_gib, strict=True) if math.isnan(used)]


def test_a_device_is_one_line_in_gib_and_percent():
    (line,) = lines_of([row(100), row(101, used=4 * GIB, here=0, load=70)])
    assert line.title == "cuda:0 = physical 3"
    assert line.times == (100, 101)
    assert (line.used_gib, line.here_gib, line.load_percent) == ((2, 4), (1, 0), (50, 70))


def test_visible_devices_come_first_in_visible_order():
    rows = [
        row(1, "GPU-x", ordinal=None, index=0),
        row(1, "GPU-b", ordinal=1, index=2),
        row(1, "GPU-a", ordinal=0, index=7),
    ]
    titles = [line.title for line in lines_of(rows)]
    assert titles == ["cuda:0 = physical 7", "cuda:1 = physical 2", "physical 0 (not visible)"]


def test_a_device_is_called_what_it_was_called_last():
    (line,) = lines_of([row(2, ordinal=1), row(1, ordinal=0)])
    assert line.title == "cuda:1 = physical 3"
    assert line.times == (1, 2)


def test_parts_of_one_gpu_are_told_apart():
    lines = lines_of([row(1, "MIG-1", 0, 1), row(1, "MIG-2", 1, 1)])
    assert [line.title for line in lines] == [
        "cuda:0 = physical 1 MIG-1",
        "cuda:1 = physical 1 MIG-2",
    ]


def test_what_is_unknown_is_a_hole_in_its_line_only():
    (line,) = lines_of([row(1, here=None, index=None), row(2, used=None, index=None)])
    assert math.isnan(line.here_gib[0])
    assert math.isnan(line.used_gib[1])
    assert line.load_percent == (50, 50)
    assert line.title == "cuda:0 = physical –"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1, 2, 3, 4], []),
        ([0, 1, 2, 60, 61, 62], [31]),
        ([0, 1, 2, 60, 120, 121, 122], [31, 90]),
        ([0, 5, 10, 15, 16, 17, 18], []),  # idle, then a cell
        ([0, 1, 2, 3, 8, 9], []),  # one look while idle
        ([*range(0, 640, 64), *range(640, 660)], []),  # old points merged, new ones exact
        ([0, 60, 120, 180], []),
        ([0, 60, 120, 3000, 3060, 3120], [1560]),
        ([5], []),
        ([5, 5, 5], []),
    ],
)
def test_a_gap_is_where_nobody_looked_for_longer_than_around_it(times, expected):
    (line,) = lines_of([row(at) for at in times])
    assert holes(line) == expected


def test_times_may_end_with_a_letter_for_utc():
    (line,) = lines_of([{**row(0), "time": "2026-03-01T10:00:00Z"}])
    assert line.times == (datetime(2026, 3, 1, 10, tzinfo=timezone.utc).timestamp(),)


def test_no_rows_are_no_lines():
    assert lines_of([]) == ()


def test_cells_are_cut_to_the_time_of_the_picture():
    cells = [
        {"cell": 3, "began": iso(5), "ended": iso(12)},
        {"cell": None, "began": iso(13), "ended": iso(14)},
        {"cell": 1, "began": iso(1), "ended": iso(2)},
        {"cell": 9, "began": iso(30), "ended": None},
        {"cell": 4, "began": iso(18), "ended": None},
    ]
    assert spans_of(cells, 10, 20) == (
        Span("[3]", 10, 12),
        Span("[ ]", 13, 14),
        Span("[4]", 18, 20),
    )


def test_every_label_that_has_room_is_in_the_first_row():
    spans = [Span("[1]", 0, 50), Span("[2]", 50, 100)]
    assert label_rows(spans, 10) == {0: 0, 1: 0}


def test_of_many_cells_the_longest_have_their_labels():
    spans = [Span(f"[{number}]", number, number + 1) for number in range(100)]
    spans.append(Span("[100]", 20, 80))
    rows = label_rows(spans, 40)
    assert rows[100] == 0
    assert len(rows) < len(spans)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), max_size=60),
    st.floats(0.001, 1000),
)
def test_no_two_labels_of_a_row_touch(pairs, scale):
    spans = [Span(f"[{at}]", min(pair), max(pair)) for at, pair in enumerate(pairs)]
    rows = label_rows(spans, scale)
    assert set(rows.values()) <= set(range(MOST_ROWS))
    for row_number in set(rows.values()):
        there = sorted(
            ((spans[at].began + spans[at].ended) / 2, len(spans[at].label))
            for at, where in rows.items()
            if where == row_number
        )
        for (left, wide), (right, other) in itertools.pairwise(there):
            assert right - left >= (wide + other) / 2 * 0.06 * scale


def test_the_numbers_say_what_a_curve_does_not():
    (line,) = lines_of([row(1, load=40), row(2, used=61 * GIB, here=60 * GIB, load=61)])
    assert numbers(line) == "at most 61.0 GiB, 60.0 of this kernel; load 50 % on average"


def test_the_numbers_say_what_is_unknown():
    (line,) = lines_of([row(1, used=None, here=None, load=None)])
    assert numbers(line) == "memory unknown, this kernel's part unknown; load unknown"
    assert highest([math.nan]) is None


def test_the_picture_is_told_in_words():
    lines = lines_of([row(1)])
    assert spoken(lines, [Span("[4]", 0, 1)]) == (
        "GPU timeline; 1 cell ran meanwhile. cuda:0 = physical 3: "
        "at most 2.0 GiB, 1.0 of this kernel; load 50 % on average."
    )
    assert "no cell ran meanwhile" in spoken(lines, [])


amounts = st.none() | st.integers(0, 2**40)
loads = st.none() | st.floats(0, 100)


@given(
    st.lists(
        st.builds(
            row,
            st.integers(0, 10_000),
            st.sampled_from(["GPU-a", "GPU-b", "MIG-c"]),
            st.none() | st.integers(0, 7),
            st.none() | st.integers(0, 7),
            amounts,
            amounts,
            loads,
        ),
        max_size=40,
    )
)
def test_any_history_makes_lines_in_the_order_of_time(rows):
    lines = lines_of(rows)
    assert len(lines) == len({row["uuid"] for row in rows})
    for line in lines:
        assert list(line.times) == sorted(line.times)
        assert len(line.times) == len(line.used_gib) == len(line.here_gib)
        assert numbers(line)
