"""Many waiters in short: killed and stopped ones are passed over, the others served in order."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WAITERS = Path(__file__).parent / "race" / "waiters.py"
COUNT = 150
# Ten for a thousand where nothing else runs; here other tests may share the processors, and then
# the same work takes a multiple of the time.
LIMIT_SECONDS = 4.5


@pytest.mark.parametrize("options", [(), ("--mixed",)], ids=["alike", "mixed"])
def test_all_that_live_are_served_in_order_and_waiting_is_cheap(options):
    done = subprocess.run(
        [
            *(sys.executable, str(WAITERS), "--waiters", str(COUNT)),
            *("--limit", str(LIMIT_SECONDS), "--patience", "60", *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["killed"] > 0
    assert found["stopped"] > 0
    assert found["served"] >= COUNT - found["killed"] - found["stopped"]
    assert found["not_served"] == 0
    assert found["left"] == 0
    assert done.returncode == 0, found


def test_work_that_costs_too_much_is_seen():
    done = subprocess.run(
        [sys.executable, str(WAITERS), "--waiters", "12", "--limit", "0"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["served"] > 0
    assert done.returncode == 1
