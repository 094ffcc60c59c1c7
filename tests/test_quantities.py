"""Amounts as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.quantities import as_text, in_gib, in_words, parse_bytes, parse_seconds

ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.25, 0.25),
        ("0", 0.0),
        ("8s", 8.0),
        ("8 s", 8.0),
        (" 10m ", 600.0),
        ("10min", 600.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("2H", 7200.0),
        ("1d", 86400.0),
        ("7.", 7.0),
    ],
)
def test_a_time_is_read_as_people_write_it(text, seconds):
    assert parse_seconds("wait", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "s",
        "-1",
        "-1s",
        -1,
        "1e3",
        "5 parsecs",
        "5GiB",
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        10**400,
        "9" * 400,
        "9" * 308 + "d",
        "٣s",
    ],
)
def test_what_is_no_time_is_refused_by_the_name_of_its_option(nonsense):
    with pytest.raises(RequestError, match=r'^wait: .* is not a time such as "8s"') as caught:
        parse_seconds("wait", nonsense)
    assert caught.value.given is nonsense


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (2**20, 2**20),
        ("20GiB", 20 * 2**30),
        ("20 gib", 20 * 2**30),
        ("500MB", 500 * 10**6),
        ("0.5TiB", 2**39),
        ("1kb", 1000),
        ("1KiB", 1024),
        ("12b", 12),
        ("3B", 3),
    ],
)
def test_memory_is_read_as_people_write_it(text, number):
    assert parse_bytes("min_free_memory", text) == number


@pytest.mark.parametrize(
    "nonsense", ["", "20G", "-1GiB", "lots", 10**400, "9" * 400, float("inf"), False, "1 GiB GiB"]
)
def test_what_is_no_amount_of_memory_is_refused(nonsense):
    with pytest.raises(RequestError, match=r"min_free_memory: .* is not an amount of memory"):
        parse_bytes("min_free_memory", nonsense)


@given(ANYTHING)
def test_a_time_is_finite_and_not_negative_or_refused(value):
    try:
        seconds = parse_seconds("wait", value)
    except RequestError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


@given(ANYTHING)
def test_an_amount_of_memory_is_a_whole_number_or_refused(value):
    try:
        number = parse_bytes("min_free_memory", value)
    except RequestError:
        return
    assert isinstance(number, int)
    assert number >= 0


@given(st.integers(1, 2**20 - 1))
def test_a_small_plain_number_is_no_amount_of_memory(number):
    for given_number in (number, str(number), float(number)):
        with pytest.raises(RequestError, match="20GiB"):
            parse_bytes("min_free_memory", given_number)


@given(st.integers(0, 2**53))
def test_bytes_survive_being_written(number):
    assert parse_bytes("min_free_memory", as_text(number)) == number


@given(st.integers(2**20, 2**53))
def test_a_plain_number_of_bytes_stays_what_it_is(number):
    assert parse_bytes("min_free_memory", number) == number
    assert parse_bytes("min_free_memory", str(number)) == number


@pytest.mark.parametrize(
    ("number", "shown"), [(None, "–"), (0, "0.0"), (2**30, "1.0"), (143771 * 2**20, "140.4")]
)
def test_memory_is_shown_in_gib_and_unknown_memory_as_a_dash(number, shown):
    assert in_gib(number) == shown


def test_memory_is_shown_with_as_many_digits_as_asked():
    assert in_gib(2**30, digits=0) == "1"


@pytest.mark.parametrize(("count", "words"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_a_count_is_said_in_words(count, words):
    assert in_words(count) == words


def test_a_count_of_something_else_is_said_in_words_too():
    assert in_words(3, "MIG device") == "3 MIG devices"
