"""Measuring in pairs: what is measured takes turns with what it is compared with.

In every round each candidate runs once, and the order moves on by one from round to round, so that
a machine that slows down, or a cache that the neighbour has warmed, touches all of them alike. The
answer is the median of the differences within the rounds, with a 95 % bootstrap interval. The
comparison runs twice in a round: its difference from itself is what the method sees where there is
nothing to see.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESAMPLES = 2000
AGAIN = " (again)"
PACKAGES = (
    "jupyter-gpu",
    "jupyter_client",
    "ipykernel",
    "ipython",
    "nvidia-ml-py",
    "torch",
    "pyzmq",
    "tornado",
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A number not to be exceeded: of the ``median``, the ``worst``, ``difference`` or ``ratio``."""

    of: str
    limit: float

    def judge(self, result: Mapping[str, object]) -> bool:
        found = result[self.of]
        value = found[0] if isinstance(found, Sequence) else found
        return bool(value <= self.limit)


@dataclass(slots=True)
class Report:
    """The results of one script: printed line by line as they come, and kept for the JSON file."""

    name: str
    where: str
    unit: str = "ms"
    results: list[dict[str, object]] = field(default_factory=list)

    def compare(
        self,
        what: str,
        samples: Mapping[str, Sequence[float]],
        first: str,
        second: str,
        goal: Goal | None = None,
        digits: int = 1,
    ) -> dict[str, object]:
        """Add the comparison of two candidates, beside the second against itself."""
        result = comparison(samples[first], samples[second])
        itself = comparison(samples[second + AGAIN], samples[second])
        result |= {
            "what": what,
            "compared_with": second,
            "itself": {key: itself[key] for key in ("difference", "ratio")},
        }
        self._judge(result, goal)
        u = self.unit
        print(f"\n{what}")
        print(f"  {first:44} {spread(samples[first], digits, u)}")
        print(f"  {second:44} {spread(samples[second], digits, u)}")
        print(f"  {'difference':44} {interval(result['difference'], digits, u)}")
        print(f"  {'  the comparison against itself':44} {interval(itself['difference'], digits, u)}")
        print(f"  {'ratio':44} {interval(result['ratio'], 3)}")
        print(f"  {'  the comparison against itself':44} {interval(itself['ratio'], 3)}")
        self._print_goal(result)
        return result

    def alone(
        self, what: str, samples: Sequence[float], goal: Goal | None = None, digits: int = 1
    ) -> dict[str, object]:
        """Add something that is compared with its goal only."""
        result: dict[str, object] = {
            "what": what,
            "pairs": len(samples),
            "median": statistics.median(samples),
            "median_interval": bootstrap(samples)[1:],
            "worst": max(samples),
            "samples": [round(value, 4) for value in samples],
        }
        self._judge(result, goal)
        print(f"\n{what}\n  {'':44} {spread(samples, digits, self.unit)}")
        self._print_goal(result)
        return result

    def _judge(self, result: dict[str, object], goal: Goal | None) -> None:
        if goal is not None:
            result["goal"] = {"of": goal.of, "limit": goal.limit, "met": goal.judge(result)}
        self.results.append(result)

    def _print_goal(self, result: Mapping[str, object]) -> None:
        goal = result.get("goal")
        if isinstance(goal, Mapping):
            unit = "×" if goal["of"] == "ratio" else f" {self.unit}"
            verdict = "met" if goal["met"] else "MISSED"
            line = f"{goal['of']} at most {goal['limit']:g}{unit}: {verdict}"
            print(f"  {'goal':44} {line}")

    def as_json(self) -> dict[str, object]:
        return {
            "schema": 1,
            "benchmark": self.name,
            "where": self.where,
            "unit": self.unit,
            "machine": machine(),
            "results": self.results,
        }

    def write(self, path: str | None) -> None:
        if path is not None:
            Path(path).write_text(as_text(self.as_json()), encoding="utf-8")


def as_text(value: object) -> str:
    """Return JSON for a file, with every list of numbers on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    lists = re.compile(r"\[\s+(-?[0-9][^\[\]{}\"]*?)\s+\]")
    return lists.sub(lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def take_turns(
    candidates: Mapping[str, Callable[[], float]], rounds: int, *, progress: bool = True
) -> dict[str, list[float]]:
    """Run every candidate once before it counts, then once in each round; return their numbers."""
    for run in candidates.values():
        run()
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(candidates[name]())
        if progress and sys.stderr.isatty():
            print(f"\r{number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    if progress and sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return samples


def comparison(first: Sequence[float], second: Sequence[float]) -> dict[str, object]:
    """Return the paired difference and ratio of two candidates, each with its interval."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return {
        "pairs": len(differences),
        "median": statistics.median(first),
        "worst": max(first),
        "compared_median": statistics.median(second),
        "difference": bootstrap(differences),
        "ratio": bootstrap(ratios),
        "samples": [round(value, 4) for value in first],
        "compared_samples": [round(value, 4) for value in second],
    }


def bootstrap(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % percentile bootstrap interval; the same every time."""
    source = random.Random(20)
    medians = sorted(
        statistics.median(source.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, high = medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]
    return statistics.median(values), low, high


def spread(samples: Sequence[float], digits: int, unit: str) -> str:
    ordered = sorted(samples)
    middle = statistics.median(ordered)
    low, high = ordered[0], ordered[-1]
    return f"{middle:9.{digits}f} {unit}  ({low:.{digits}f} to {high:.{digits}f}, n={len(ordered)})"


def interval(three: object, digits: int, unit: str = "") -> str:
    middle, low, high = three  # type: ignore[misc]
    return f"{middle:9.{digits}f} {unit or '×'}  (95 %: {low:.{digits}f} to {high:.{digits}f})"


def machine() -> dict[str, object]:
    """Return what the numbers depend on, without naming the machine."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
    }


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def options(description: str, pairs: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every script here has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--pairs", type=int, default=pairs, metavar="N", help=f"rounds to measure ({pairs})"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to this file too")
    return parser


def child_environment(**changes: str) -> dict[str, str]:
    """Return an environment for programs that are measured: this checkout, and no GPU settings.

    Byte code is written, as it is for whoever installs the package: its cost is not to be measured.
    """
    foreign = ("CUDA_", "NVIDIA_VISIBLE", "JUPYTER_GPU_", "JPY_", "IPYTHON", "PYTHONDONTWRITE")
    double = "JUPYTER_GPU_DOUBLE"  # the machine of the tests' driver libraries, if it is one
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) or k == double}
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    kept["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths)
    return {**kept, **changes}
