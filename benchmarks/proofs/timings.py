"""Part f: the benchmarks on the real cards, with fewer rounds."""

from __future__ import annotations

import bench_kernel_start
import bench_lease
import bench_status
import machines
import pairs

from proofs.findings import Findings
from proofs.place import Workplace


def measure(place: Workplace, findings: Findings, *, quick: bool) -> None:
    words = f"{len(place.gpus)} × {place.gpus[0].name}"
    status = bench_status.run(4 if quick else 15, machines.Where(words, {}))
    _add(findings, status)
    _add(findings, _granting(words, 3 if quick else 15))
    _add(findings, bench_kernel_start.run(3 if quick else 20, {}, words))


def _granting(where: str, rounds: int) -> pairs.Report:
    """Clock a waiter on the real cards: the holder is released, or killed, and uses no memory."""
    report = pairs.Report("grant", where)
    with bench_lease.surroundings({}):
        bench_lease.measure_granting(report, rounds)
        took = [bench_lease.lease_ms() for _ in range(20)]
    report.alone("leasing all devices, NVML opened and read twice", took)
    return report


def _add(findings: Findings, report: pairs.Report) -> None:
    findings.reports.append(report.as_json())
    for result in report.results:
        goal = result.get("goal")
        numbers = f"median {result['median']:.1f} {report.unit}"
        if "compared_with" in result:
            of = goal["of"] if goal and goal["of"] == "difference" else "ratio"
            middle, low, high = result[of]
            numbers += (
                f", {result['compared_with']} {result['compared_median']:.1f} {report.unit}, "
                f"{of} {middle:.2f} ({low:.2f} to {high:.2f}), "
                f"against itself {result['itself'][of][0]:.2f}"
            )
        if goal is None:
            findings.measured(f"{result['what']}", numbers)
        else:
            findings.check(
                f"{result['what']}: {goal['of']} at most {goal['limit']}", goal["met"], numbers
            )
