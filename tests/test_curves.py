import random
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support_monitor import AT, GIB, TOTAL, points

from jupyter_gpu.core.curves import (
    HEIGHT,
    PATH_BYTES,
    SLOTS,
    area,
    in_slots,
    line,
    load_curve,
    memory_curve,
    over_words,
)
from jupyter_gpu.core.live import Point

VALUES = some.dictionaries(some.integers(0, SLOTS - 1), some.none() | some.floats(-50, 150))


def places(path):
    """Follow a path and return the pieces that it draws, as absolute coordinates."""
    pieces, here, command, numbers = [], (0, 0), "", []
    needed = {"M": 2, "l": 2, "h": 1, "V": 1}
    for token in re.findall(r"[MlhVz]|-?\d+", path):
        if token in "MlhVz":
            command, numbers = token, []
            continue
        numbers.append(int(token))
        if len(numbers) < needed[command]:
            continue
        x, y = here
        if command == "M":
            here = tuple(numbers)
            pieces.append([])
        elif command == "l":
            here = (x + numbers[0], y + numbers[1])
        elif command == "h":
            here = (x + numbers[0], y)
        else:
            here = (x, numbers[0])
        numbers = []
        pieces[-1].append(here)
    return pieces


def svg(text):
    """Parse a drawing; it has to say what it is."""
    found = ET.fromstring(text)
    assert found.get("role") == "img"
    return found


def test_a_slot_has_the_mean_load_and_the_most_memory_of_its_readings():
    slots = in_slots([Point(AT + n, n * GIB, None, 10 * n) for n in range(5)], AT + 4)
    assert slots.load == {SLOTS - 1: 20}
    assert slots.memory == {SLOTS - 1: 4 * GIB}
    assert (slots.load_now, slots.load_highest, slots.memory_now) == (40, 40, 4 * GIB)


def test_what_is_older_than_the_span_or_later_than_now_is_left_out():
    old, now, later = (
        Point(AT - 300, 1, None, 99),
        Point(AT, 2, None, 5),
        Point(AT + 9, 3, None, 98),
    )
    slots = in_slots([old, now, later], AT)
    assert slots.load == {SLOTS - 1: 5}
    assert slots.load_highest == 5


def test_slots_stay_where_they_are_while_time_passes_within_one():
    readings = points(100)
    early, late = in_slots(readings, AT), in_slots(readings, AT + 4)
    assert early.load == late.load
    assert {slot - 1 for slot in early.load} == set(in_slots(readings, AT + 5).load)


def test_a_line_goes_from_the_bottom_at_nothing_to_the_top_at_its_highest():
    assert places(line({0: 0, 1: 100, 2: 50, 3: 50, 4: 50}, 100)) == [
        [(0, HEIGHT), (1, 0), (2, HEIGHT // 2), (4, HEIGHT // 2)]
    ]


def test_an_area_is_closed_at_the_bottom():
    assert area({0: 0, 1: 10}, 10) == f"M0 {HEIGHT}V{HEIGHT}l1-{HEIGHT}V{HEIGHT}z"


def test_readings_that_said_nothing_are_a_gap():
    drawn = places(line({0: 0, 1: 50, 2: None, 3: 50, 4: 0}, 100))
    assert [len(piece) for piece in drawn] == [2, 2]


def test_a_silence_is_a_gap_and_one_missed_slot_is_none():
    assert len(places(line({0: 0, 2: 50, 3: 50}, 100))) == 1
    assert len(places(line({0: 0, 1: 9, 2: 50, 9: 50, 10: 0}, 100))) == 2


def test_readings_far_apart_by_their_interval_are_still_one_line():
    slots = in_slots(points(10, every=30), AT)
    assert len(places(line(slots.load, 100))) == 1


def test_a_lonely_reading_is_a_dot():
    assert line({7: 100}, 100) == "M7 0h0"


def test_a_total_of_nothing_is_not_divided_by():
    assert places(area({0: 5, 1: 6}, 0))[0][0] == (0, HEIGHT)
    svg(memory_curve(in_slots(points(), AT), None))
    svg(memory_curve(in_slots(points(), AT), 0))
    svg(memory_curve(in_slots(points(memory=lambda n: 0), AT), 0))


@given(VALUES)
def test_every_path_is_short_and_inside_its_frame(values):
    for path in (line(values, 100), area(values, 100)):
        assert len(path) <= PATH_BYTES
        for x, y in (place for piece in places(path) for place in piece):
            assert 0 <= x < SLOTS
            assert 0 <= y <= HEIGHT


@pytest.mark.parametrize("seed", range(5))
def test_noise_in_every_slot_fits_the_bytes(seed):
    dice = random.Random(seed)
    noise = {slot: dice.choice([0, 100]) for slot in range(SLOTS)}
    assert 0 < len(line(noise, 100)) <= PATH_BYTES
    holes = {slot: None if slot % 2 else 100 for slot in range(SLOTS)}
    assert 0 < len(area(holes, 100)) <= PATH_BYTES


def test_the_labels_have_the_numbers():
    slots = in_slots(points(load=lambda n: 97 if n == 250 else 43), AT)
    assert svg(load_curve(slots)).get("aria-label") == "Load: now 43 %, highest 97 %, over 5 min"
    label = svg(memory_curve(slots, TOTAL)).get("aria-label")
    assert label == "Memory: now 75.0, highest 75.0 GiB, over 5 min"


def test_what_was_never_read_is_said_to_be_unknown():
    nothing = in_slots([], AT)
    assert svg(load_curve(nothing)).get("aria-label") == "Load: not known"
    assert svg(memory_curve(nothing, TOTAL)).get("aria-label") == "Memory: not known"
    assert list(svg(load_curve(in_slots([Point(AT)], AT)))) == []


def test_a_load_that_is_no_number_is_unknown():
    slots = in_slots([Point(AT, 1, None, float("nan")), Point(AT, 1, None, float("inf"))], AT)
    assert slots.load == {SLOTS - 1: None}
    assert slots.load_now is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "over 1 s"), (40, "over 40 s"), (61, "over 1 min"), (400, "over 5 min")],
)
def test_how_long_a_curve_is_in_words(seconds, words):
    assert over_words(seconds) == words
