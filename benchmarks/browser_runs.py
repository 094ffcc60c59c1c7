"""Runs the tests in a browser many times in a row and writes how long each run took.

    python benchmarks/browser_runs.py [TIMES]

The times go to results/browser_runs.json. A run that fails is counted, and its output shown; it
is no result to be proud of. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "browser_runs.json"
TESTS = sorted(str(path) for path in (ROOT / "tests").glob("test_browser_*.py"))
TIMES = 20


def run(report):
    """Run the tests once; returns how long it took and how many passed and did not."""
    began = time.monotonic()
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS)
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    suite = ET.parse(report).getroot().find("testsuite")
    count = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    if done.returncode:
        print(re.sub(r"(?m)^", "    ", done.stdout[-4000:]))
    return {"seconds": round(seconds, 1), **count}


def main():
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            runs.append(run(Path(folder) / "report.xml"))
            print(f"{number + 1} of {times}: {runs[-1]}", flush=True)
            seconds = [one["seconds"] for one in runs]
            result = {
                "schema": 1,
                "cores": os.cpu_count(),
                "runs_without_failure": sum(not one["failures"] + one["errors"] for one in runs),
                "seconds": {"median": median(seconds), "least": min(seconds), "most": max(seconds)},
                "runs": runs,
            }
            RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
