"""The report: the period that is asked for, the table, and what is said about the log."""

from datetime import datetime, timedelta, timezone

import pytest

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.grants import Log, Use
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.report_view import (
    Report,
    by_user,
    parse_since,
    report_answer,
    report_view,
)

ZONE = timezone(timedelta(hours=1))
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=ZONE)
WEEK = NOW - timedelta(days=7)
ALICE = Use(1000, "alice", 5, 51.26, 2, 3.5, 0, NOW - timedelta(hours=2))
BOB = Use(1001, "bob", 1, 0.04, 0, 0.0, 1, NOW - timedelta(days=3))


def report(*uses, log=None, **changes):
    return Report(WEEK, NOW, uses, log or Log("/var/log/jupyter-gpu", exists=True), **changes)


def text(*uses, **changes):
    return as_text(report_view(report(*uses, **changes)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("7d", WEEK),
        (" 36h ", NOW - timedelta(hours=36)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("90m", NOW - timedelta(minutes=90)),
        ("2026-11-01", datetime.fromisoformat("2026-11-01")),
        ("2026-12-01", datetime.fromisoformat("2026-12-01")),
    ],
)
def test_a_period_begins_so_long_ago_or_with_a_day(given, expected):
    assert parse_since(given, NOW) == expected


@pytest.mark.parametrize(
    "given",
    [
        "",
        "7",
        "7.5",
        "20261101",
        "yesterday",
        "-7d",
        "7 weeks",
        "2026-13-01",
        "1e9d",
        "9" * 400 + "d",
        "9999999d",
    ],
)
def test_what_is_no_period_is_refused_with_what_is(given):
    with pytest.raises(RequestError, match=r'is not a time such as "7d" or "36h", or a day'):
        parse_since(given, NOW)


def test_a_day_that_has_not_come_yet_is_refused():
    with pytest.raises(RequestError, match="is not in the past; today is 2026-12-01"):
        parse_since("2026-12-02", NOW)


def test_a_user_is_meant_by_name_or_number():
    assert by_user((ALICE, BOB), None) == (ALICE, BOB)
    assert by_user((ALICE, BOB), "bob") == (BOB,)
    assert by_user((ALICE, BOB), "1000") == (ALICE,)
    assert by_user((ALICE, BOB), "carol") == ()


def test_the_table_says_what_everybody_had():
    assert text(ALICE, BOB).splitlines() == [
        "≈ 51.3 device-hours by 2 users since 2026-11-24 12:00",
        "  User   Leases  Device-hours         Held now  Last grant",
        "  alice       5          51.3  3.5 h, 2 leases  10:00",
        "  bob         1         ≈ 0.0                   2026-11-28 12:00",
        "≈: 1 lease was found ended, and counts up to the last sign of life: an estimate.",
        "A share counts as the part of a device that it is.",
        "The log is in /var/log/jupyter-gpu: what cooperating programs have written",
        "  there.",
    ]


def test_one_user_is_named_in_the_title_and_nothing_is_marked_that_is_exact():
    lines = text(ALICE).splitlines()
    assert lines[0] == "51.3 device-hours by alice since 2026-11-24 12:00"
    assert "≈" not in "".join(lines)


def test_several_estimates_are_told_in_the_plural():
    many = Use(1001, "bob", 3, 1.0, 0, 0.0, 3, NOW)
    assert "≈: 3 leases were found ended, and count up to" in text(many)


def test_an_empty_log_says_so():
    assert text().splitlines()[0] == "No lease has been noted since 2026-11-24 12:00"
    assert text(user="bo\x1bb").splitlines()[0].startswith("No lease of bo?b has been noted")


def test_a_log_that_does_not_exist_says_how_to_get_one():
    found = text(log=Log("/var/log/jupyter-gpu", exists=False), advice="run  setup")
    assert "Note: There is no log yet: /var/log/jupyter-gpu does not exist." in found
    assert "Note: run  setup" in found
    assert "The log is in" not in found


def test_what_is_not_believed_is_told_but_not_without_end():
    problems = tuple(f"grants-{n}.jsonl does not count: it belongs to bob." for n in range(9))
    found = text(ALICE, log=Log("/log", exists=True, problems=problems), problem="It is a file.")
    assert "grants-4.jsonl" in found
    assert "grants-5.jsonl" not in found
    assert "Note: 4 more files do not count." in found
    assert "Note: Which leases go on is not known. It is a file." in found


def test_no_line_is_wider_than_a_terminal():
    far = Use(1000, "x" * 32, 12345, 123456.7, 999, 99999.9, 12345, NOW - timedelta(days=99))
    assert max(map(len, text(far, BOB, user=None).splitlines())) <= 80


def test_programs_get_times_in_utc_and_hours_as_numbers():
    answer = report_answer(report(ALICE, advice="run  setup"))
    assert answer == {
        "schema": 1,
        "since": "2026-11-24T11:00:00+00:00",
        "until": "2026-12-01T11:00:00+00:00",
        "users": [
            {
                "user": "alice",
                "uid": 1000,
                "leases": 5,
                "device_hours": 51.26,
                "open": 2,
                "open_device_hours": 3.5,
                "estimated": 0,
                "last_grant": "2026-12-01T09:00:00+00:00",
            }
        ],
        "log": "/var/log/jupyter-gpu",
        "notes": ["run  setup"],
    }
