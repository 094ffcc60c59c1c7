"""Runs cells in an IPython shell, with our extension loaded or not, and prints what they took.

``cells N`` runs N small cells and prints the time of our hooks in each, in microseconds, and the
memory before and after; ``import MODULE`` runs one cell that imports it, and prints the seconds
of processor time that it took, which neighbours on the machine disturb least.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

SETTLED = 1000  # cells after which nothing should grow any more


def make_shell(*, ours: bool) -> InteractiveShell:
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    if ours:
        shell.run_line_magic("load_ext", "jupyter_gpu")
    return shell


def resident_kib() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def allocated_by_us() -> int:
    """Return the bytes that code of ours has allocated and not given back."""
    gc.collect()
    package = str(Path(sys.modules["jupyter_gpu"].__file__ or "").parent / "*")
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, package)])
    return sum(one.size for one in snapshot.statistics("filename"))


def run_cells(count: int, *, traced: bool) -> dict[str, object]:
    shell = make_shell(ours=True)
    shell.run_cell("import torch")
    spent: list[float] = []
    for event in ("pre_run_cell", "post_run_cell"):
        callbacks = shell.events.callbacks[event]
        ((at, hook),) = [
            (n, one) for n, one in enumerate(callbacks) if "jupyter_gpu" in one.__module__
        ]

        def timed(argument: object, hook=hook) -> None:
            began = time.perf_counter()
            hook(argument)
            spent.append((time.perf_counter() - began) * 1e6)

        callbacks[at] = timed
    if traced:
        tracemalloc.start()
    first = {}
    for number in range(count):
        shell.run_cell(f"x = {number}", store_history=True)
        if number + 1 == min(SETTLED, count // 2):
            first = {"resident_kib": resident_kib(), "ours": allocated_by_us() if traced else 0}
    last = {"resident_kib": resident_kib(), "ours": allocated_by_us() if traced else 0}
    hooks = [before + after for before, after in zip(spent[::2], spent[1::2], strict=True)]
    return {"hooks_us": hooks, "first": first, "last": last}


def run_import(module: str, *, ours: bool) -> dict[str, object]:
    shell = make_shell(ours=ours)
    began = time.process_time()
    result = shell.run_cell(f"import {module}", store_history=True)
    took = time.process_time() - began
    result.raise_error()
    return {"seconds": took}


def main() -> None:
    what, argument, *words = sys.argv[1:]
    if what == "cells":
        answer = run_cells(int(argument), traced="traced" in words)
    else:
        answer = run_import(argument, ours="ours" in words)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
