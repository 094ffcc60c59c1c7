"""The benchmark of the monitor in its short form: it measures, and the limits hold."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's module, which stands beside those that it imports."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_monitor

    return bench_monitor


def test_eight_busy_devices_cost_little_and_say_little(bench, tmp_path):
    machine = bench.ChangingMachine(tmp_path / "machine.json", 8)
    with contextlib.ExitStack() as stack:
        stack.enter_context(bench.environment({"JUPYTER_GPU_SIMULATE": str(machine.path)}))
        kernel = bench.WatchedKernel()
        stack.callback(kernel.close)
        kernel.run("%load_ext jupyter_gpu")
        stack.enter_context(machine.changing(0.5))
        kernel.show_monitor(0.5)
        sizes, spent = [], []
        for _ in range(2):
            shown = len(kernel.published)
            spent.append(kernel.processor_ms(2) / 2)
            sizes += bench.ticks(kernel.published[shown:])
    assert min(spent) <= bench.CPU_MS
    assert len(sizes) >= 8
    assert 500 < max(sizes) <= bench.WIRE_BYTES


def test_what_arrives_together_is_one_tick(bench):
    published = [
        (1.0, 100, "comm_msg", {}),
        (1.01, 10, "comm_msg", {}),
        (1.02, 5000, "stream", {}),
        (2.0, 7, "comm_msg", {}),
    ]
    assert bench.ticks(published) == [110, 7]


def test_a_clock_that_runs_ahead_makes_ticks_and_takes_memory():
    words = ("--hour", "resident", "50", "150")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "bench_monitor.py"), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert 10_000 < found["first"] <= found["last"] + 1024
    assert found["last"] - found["first"] < 4096
