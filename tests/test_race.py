"""The race in short, and the judge itself: it sees what is there and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from race.judge import Event, Span, overlaps_of, read_events, spans_of

JUDGE = Path(__file__).parent / "race" / "judge.py"


def race(*arguments):
    """Run the judge in a process of its own; returns its status and its report."""
    done = subprocess.run(
        [sys.executable, str(JUDGE), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def line(letter, moment, value=""):
    return f"{letter} {moment} {value}".ljust(63) + "\n"


def test_no_device_is_leased_twice_and_none_is_lost():
    status, report = race(
        "--contenders", 16, "--acquisitions", 2000, "--seed", 20, "--deadline", 60
    )
    assert report["grants"] >= 2000
    assert report["kills"] > 0
    assert report["failed_contenders"] == 0
    assert report["first_overlaps"] == []
    assert report["lost_devices"] == 0
    assert status == 0, report


def test_the_judge_finds_a_double_lease_that_was_planted():
    status, report = race("--contenders", 12, "--acquisitions", 400, "--skip-locking", 0.05)
    assert report["overlaps"] > 0
    assert status == 1


def test_the_judge_finds_it_where_nobody_locks_at_all():
    status, report = race(
        *("--contenders", 4, "--acquisitions", 60, "--skip-locking", 1, "--kills-per-second", 0)
    )
    assert report["overlaps"] > 10
    assert status == 1


def test_the_judge_shares_no_code_with_the_judged():
    assert "import jupyter_gpu" not in JUDGE.read_text(encoding="utf-8")
    assert "from jupyter_gpu" not in JUDGE.read_text(encoding="utf-8")


def test_a_line_cut_short_by_a_kill_never_happened():
    data = (line("H", 5, "0,1") + line("D", 9, "0,1") + line("H", 12, "3")[:40]).encode()
    assert read_events(data) == [Event("H", 5, ["0", "1"]), Event("D", 9, ["0", "1"])]


@pytest.mark.parametrize(
    ("events", "killed_at", "expected"),
    [
        ([], None, []),
        ([Event("R", 3, [])], None, []),
        ([Event("H", 3, ["0"]), Event("D", 7, ["0"])], None, [("0", 3, 7)]),
        ([Event("H", 3, ["0", "1"]), Event("D", 7, ["0", "1"])], 9, [("0", 3, 7), ("1", 3, 7)]),
        ([Event("H", 3, ["0"])], 9, [("0", 3, 9)]),
        ([Event("H", 3, ["0"])], None, []),
        (
            [Event("H", 3, ["0"]), Event("D", 7, ["0"]), Event("R", 8, []), Event("H", 9, ["2"])],
            11,
            [("0", 3, 7), ("2", 9, 11)],
        ),
    ],
)
def test_a_device_is_held_from_report_to_report_or_to_the_kill(events, killed_at, expected):
    assert [span[:3] for span in spans_of("a", events, killed_at)] == expected


@pytest.mark.parametrize(
    ("spans", "overlapping"),
    [
        ([(0, 5), (5, 9)], 0),
        ([(0, 5), (4, 9)], 1),
        ([(0, 9), (1, 2), (3, 4)], 2),
        ([(4, 9), (0, 5)], 1),
        ([(0, 20), (1, 2), (15, 30)], 2),
        ([(0, 1), (2, 3), (4, 5)], 0),
    ],
)
def test_spans_of_one_device_may_touch_and_not_overlap(spans, overlapping):
    told = [Span("0", start, end, number) for number, (start, end) in enumerate(spans)]
    assert len(overlaps_of(told)) == overlapping


def test_spans_of_two_devices_have_nothing_to_do_with_each_other():
    assert overlaps_of([Span("0", 0, 9, "a"), Span("1", 0, 9, "b")]) == []
