"""What watching costs: the hooks around a cell, and the watcher of imports.

The hooks are timed in a soak of 10,000 cells in a shell that has imported torch; what our code has
allocated must not grow between the thousandth cell and the last. The import of torch is timed as a
cell, with our extension loaded and without, in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pairs

RUNNER = Path(__file__).with_name("cell_runner.py")
WITH, WITHOUT = "with %load_ext jupyter_gpu", "without"
CELLS = 10_000
HOOKS_US = 60
IMPORT_RATIO = 1.02
GROWTH_BYTES = 16_384


def child(*words: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(RUNNER), *words],
        env=pairs.child_environment(JUPYTER_GPU_LEASE_DIR="/dev/shm/jupyter-gpu-bench-cells"),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = pairs.options(__doc__.splitlines()[0], pairs=15)
    parser.add_argument("--cells", type=int, default=CELLS, metavar="N", help=f"({CELLS})")
    chosen = parser.parse_args()
    hooks = pairs.Report("hooks around a cell", "IPython shell, torch imported", unit="µs")
    hooks.alone(
        f"both hooks, {chosen.cells} cells",
        child("cells", str(chosen.cells))["hooks_us"],
        pairs.Goal("median", HOOKS_US),
    )
    traced = child("cells", str(chosen.cells), "traced")
    growth = traced["last"]["ours"] - traced["first"]["ours"]
    hooks.results.append(
        {
            "what": "bytes allocated by our code, from the thousandth cell to the last",
            "growth_bytes": growth,
            "goal": {"of": "growth", "limit": GROWTH_BYTES, "met": growth <= GROWTH_BYTES},
        }
    )
    print(f"\nallocated by our code from cell 1,000 to {chosen.cells}: {growth} bytes more")
    watcher = pairs.Report("import torch in a cell", "IPython shell, a process each", unit="ms")

    def timed(*words: str):
        return lambda: child("import", "torch", *words)["seconds"] * 1000

    samples = pairs.take_turns(
        {WITH: timed("ours"), WITHOUT: timed(), WITHOUT + pairs.AGAIN: timed()}, chosen.pairs
    )
    watcher.compare("import torch", samples, WITH, WITHOUT, pairs.Goal("ratio", IMPORT_RATIO))
    if chosen.json:
        both = {"schema": 1, "reports": [hooks.as_json(), watcher.as_json()]}
        Path(chosen.json).write_text(pairs.as_text(both), encoding="utf-8")


if __name__ == "__main__":
    main()
