"""Proves on a machine with real NVIDIA GPUs what the tests cannot prove without.

One command, one or two free GPUs, eight minutes at most; see README.md beside this file. Each part
is guarded: what fails is a row of the table, and the next part runs. What one GPU cannot show is
"not run", never assumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import machines
import pairs

PARTS = {
    "a": "kernels get the leased devices, exclusively",
    "b": "a killed kernel with forked workers",
    "c": "a killed kernel without workers",
    "d": "CUDA_VISIBLE_DEVICES as the driver reads it",
    "e": "children that outlive their kernel",
    "g": "open and frozen",
    "h": "what %gpu says in a kernel is true",
    "i": "shares, MPS, CPUs and neighbours",
    "j": "the monitor beside NVML",
    "f": "timings",
}
MINUTES = 8
NO_GPU = 2


def main() -> int:
    arguments = _arguments()
    began = time.monotonic()
    if not machines.count_gpus():
        print("There is no GPU here that NVML can reach, so there is nothing to prove.")
        return NO_GPU
    sys.path.insert(0, str(pairs.ROOT))
    from proofs.findings import Findings
    from proofs.place import Workplace
    from proofs.visibility import masked

    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    place = Workplace()
    findings = Findings(lambda text: masked(text, [gpu.uuid for gpu in place.gpus]))
    findings.changed = lambda: _write(out / "on_gpu.json", findings, place)
    try:
        for name, prove in _parts(place, findings, quick=arguments.quick).items():
            if name not in arguments.only:
                continue
            left = MINUTES * 60 - (time.monotonic() - began)
            print(f"\n== {name}: {PARTS[name]}", flush=True)
            with findings.part(name, max(1, int(min(left, 240 if name in "fhij" else 120)))):
                prove()
    finally:
        place.close()
    _write(out / "on_gpu.json", findings, place)
    print(f"\n{'=' * 60}\n{findings.table()}\n{_summary(findings)}")
    return 0 if findings.good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="Parts: " + "; ".join(f"{name}: {what}" for name, what in PARTS.items()),
    )
    parser.add_argument(
        "--out", default=os.environ.get("OUT", "."), metavar="DIR", help="where on_gpu.json goes"
    )
    parser.add_argument("--quick", action="store_true", help="fewer values and rounds")
    parser.add_argument(
        "--only", default="".join(PARTS), metavar="PARTS", help="some parts, such as: adg"
    )
    return parser.parse_args()


def _parts(place, findings, *, quick: bool) -> dict[str, Callable[[], None]]:
    """Return what proves each part, in the order to run them."""
    from proofs import (
        children,
        deaths,
        exclusive,
        freezing,
        sharing,
        timings,
        truth,
        visibility,
        watching,
    )

    locks = place.locks_supported()
    hows = children.HOWS[-1:] if quick else children.HOWS
    leases = {
        "a": lambda: exclusive.prove(place, findings),
        "b": lambda: deaths.prove_with_workers(place, findings),
        "c": lambda: deaths.prove_without_workers(place, findings, 1 if quick else 3),
        "e": lambda: children.prove(place, findings, hows),
        "g": lambda: freezing.prove(place, findings),
        "i": lambda: sharing.prove(place, findings),
        "f": lambda: timings.measure(place, findings, quick=quick),
    }
    proofs = {name: _without_locks(findings, name) for name in leases} if not locks else leases
    proofs["h"] = lambda: truth.prove(place, findings)
    proofs["j"] = lambda: watching.prove(place, findings)
    proofs["d"] = lambda: visibility.prove(place, findings, quick=quick)
    return {name: proofs[name] for name in PARTS}


def _without_locks(findings, name: str) -> Callable[[], None]:
    why = "this system has no open-file-description locks, so nothing is leased here"
    return lambda: findings.not_run(PARTS[name], why)


def _write(path: Path, findings, place) -> None:
    inventory = place.inventory
    result = {
        "schema": 1,
        "machine": {
            **pairs.machine(),
            "gpus": [gpu.name for gpu in place.gpus],
            "driver": inventory.driver,
            "cuda": inventory.cuda,
        },
        "rows": [dataclasses.asdict(row) for row in findings.rows],
        "benchmarks": findings.reports,
    }
    path.write_text(pairs.as_text(result), encoding="utf-8")


def _summary(findings) -> str:
    counts: dict[str, int] = {}
    for row in findings.rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
