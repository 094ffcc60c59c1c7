"""Part j: what the monitor records is what an independent process reads from NVML meanwhile."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pairs

from proofs.findings import Findings
from proofs.place import Workplace

GIB = 2**30
INTERVAL_SECONDS = 0.5
# NVML's load is a mean over up to this time, its power over a tenth of it.
LAG_SECONDS = 1.0
TIME_WITHIN_SECONDS = 0.25
TICK_BYTES = 4096
CORE_PART = 0.01
# Reads every 20 ms through NVML alone and writes what it saw; ends when its input does.
WITNESS = """
import json, sys, threading, time
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
seen = []
print("reading", flush=True)
while not ended.wait(0.02):
    for index, handle in enumerate(handles):
        before = time.time()
        used = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).used
        load = n.nvmlDeviceGetUtilizationRates(handle).gpu
        watts = n.nvmlDeviceGetPowerUsage(handle) / 1000
        pids = {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(handle)}
        seen.append((index, before, time.time(), used, load, watts, pids))
json.dump(seen, open(sys.argv[1], "w"))
"""
# An hour of training in small: the model and its batches come, epochs work and rest, a second
# device joins, an evaluation takes a peak of memory, everything is given back.
TRAINING = """
import time, torch
def work(device, seconds):
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    end = time.time() + seconds
    while time.time() < end:
        for _ in range(20):
            b = a @ a
        torch.cuda.synchronize(device)
count = torch.cuda.device_count()
kept = []
for epoch in range(3):
    kept.append(torch.ones((epoch + 1) * 2**31, dtype=torch.uint8, device="cuda:0"))
    work("cuda:0", 6)
    if count > 1:
        kept.append(torch.ones((epoch + 1) * 2**30, dtype=torch.uint8, device="cuda:1"))
        work("cuda:1", 3)
    time.sleep(3)
    peak = torch.ones(20 * 2**30, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    time.sleep(2)
    del peak
    torch.cuda.empty_cache()
    time.sleep(2)
kept.clear()
torch.cuda.empty_cache()
time.sleep(3)
"""


def prove(place: Workplace, findings: Findings) -> None:
    """Watch a training loop in one cell, with another process as the witness."""
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        findings.not_run("the monitor while a cell trains", "ipywidgets is not installed here")
        return
    with _kernel() as kernel:
        kernel.run("import torch, jupyter_gpu\nfrom IPython.display import display")
        kernel.run("x = torch.ones(3).cuda()")
        shown = kernel.run(
            f"m = jupyter_gpu.Monitor(interval={INTERVAL_SECONDS}, live=True)\ndisplay(m)"
        )
        with _witness(place) as seen:
            trained, ticks, cpu = _train(kernel)
        rows = _json(kernel, "m.history")
        cells = _json(kernel, "m.cells")
        own = kernel.run("import os\nos.getpid()").result
    if shown.error or trained.error:
        findings.check("the monitor while a cell trains", False, shown.error + trained.error)
        return
    if len(place.gpus) < 2:
        findings.not_run("two devices watched at once, each with its own load", "one GPU")
    span = next(cell for cell in cells if cell["cell"] == trained.number)
    began, ended = _seconds(span["began"]), _seconds(span["ended"])
    # The reading at its very end is of the moment after it.
    inside = [row for row in rows if began <= _seconds(row["time"]) < ended]
    findings.check(
        "the monitor's points of the cell bear its number, one each interval",
        {row["cell"] for row in inside} == {trained.number}
        and len(inside) >= 0.9 * (ended - began) / INTERVAL_SECONDS,
        f"{len(inside)} points in {ended - began:.1f} s",
        points=inside,
    )
    for gpu in place.gpus:
        mine = [row for row in inside if row["index"] == gpu.index]
        theirs = [one for one in seen() if one[0] == gpu.index]
        _compare(findings, f"physical {gpu.index}", mine, theirs, int(own))
    _prove_cost(findings, ticks, cpu, ended - began)


def _compare(findings: Findings, name: str, mine: list, theirs: list, pid: int) -> None:
    """Compare points with what the witness saw at the same time."""
    times = [one[1] for one in theirs]
    alike, here, loads, watts, exact = [], [], [], [], 0
    for row in mine:
        at = _seconds(row["time"])
        near = _between(theirs, times, at - TIME_WITHIN_SECONDS, at + TIME_WITHIN_SECONDS)
        wide = _between(theirs, times, at - LAG_SECONDS, at + LAG_SECONDS)
        if not near or not wide:
            continue
        used = [one[3] for one in near]
        # While it changes, a reading between two of the witness's may lie between theirs.
        alike.append(_within(row["memory_used_bytes"], used, 0))
        exact += len(set(used)) == 1
        known = [one[6].get(str(pid)) for one in near]
        if None not in known:
            here.append(_within(row["memory_here_bytes"], known, 0))
        loads.append(_within(row["utilization_percent"], [one[4] for one in wide], 1))
        watts.append(_within(row["power_watts"], [one[5] for one in wide], 1))
    findings.check(
        f"{name}: memory is what NVML told the witness within {TIME_WITHIN_SECONDS} s, to the byte",
        bool(alike) and all(alike),
        f"{sum(alike)} of {len(alike)} points, {exact} of them while nothing changed",
        witness=[one[:6] for one in theirs[::25]],
    )
    if here:
        part = f"{sum(here)} of {len(here)} points"
        findings.check(f"{name}: this kernel's part too", all(here), part)
    else:
        findings.not_run(f"{name}: this kernel's part too", "NVML does not name this pid here")
    for what, found in (("load", loads), ("power", watts)):
        findings.check(
            f"{name}: {what} lies within what the witness saw within {LAG_SECONDS:g} s",
            bool(found) and all(found),
            f"{sum(found)} of {len(found)} points",
        )
    lags = _step_lags(mine, theirs)
    findings.check(
        f"{name}: each step of memory is seen within one interval",
        bool(lags) and max(lags) <= INTERVAL_SECONDS + 0.1,
        f"{len(lags)} steps of 1 GiB and more, latest {max(lags, default=0):.2f} s after",
        lags=lags,
    )


def _step_lags(mine: list, theirs: list) -> list[float]:
    """Return for each lasting step that the witness saw how much later a point shows it."""
    lags = []
    for before, after in itertools.pairwise(theirs):
        if abs(after[3] - before[3]) < GIB:
            continue
        lasts = [one[3] for one in theirs if after[1] <= one[1] <= after[1] + 1.0]
        if max(lasts) - min(lasts) > GIB // 2:
            continue
        later = [
            _seconds(row["time"])
            for row in mine
            if _seconds(row["time"]) >= before[1]
            and abs((row["memory_used_bytes"] or 0) - after[3]) < GIB // 2
        ]
        if later:
            lags.append(round(later[0] - after[2], 3))
    return lags


def _prove_cost(findings: Findings, ticks: list[int], cpu: float, seconds: float) -> None:
    findings.check(
        f"no tick sends more than {TICK_BYTES} bytes",
        bool(ticks) and max(ticks) <= TICK_BYTES,
        f"{len(ticks)} ticks, at most {max(ticks, default=0)} bytes",
    )
    part = cpu * INTERVAL_SECONDS / seconds
    findings.check(
        "the watching thread's processor time, at one tick a second, is 1 % of a core at most",
        part <= CORE_PART,
        f"{100 * part:.2f} % ({cpu:.2f} s in {seconds:.0f} s at {INTERVAL_SECONDS} s a tick)",
    )


def _train(kernel):
    """Run the training cell; return it, the bytes of each tick, and the thread's processor time."""
    messages = []
    before = _thread_seconds(kernel)
    cell = kernel.run(TRAINING, watched=lambda at, size: messages.append((at, size)))
    ticks: list[list[float]] = []
    for at, size in messages:
        if ticks and at - ticks[-1][0] < INTERVAL_SECONDS / 2:
            ticks[-1][1] += size
        else:
            ticks.append([at, size])
    return cell, [int(size) for _, size in ticks], _thread_seconds(kernel) - before


def _thread_seconds(kernel) -> float:
    """Return the processor time of the kernel's watching threads, as the system counts it."""
    code = (
        "import os, threading\n"
        "sum(sum(map(int, open(f'/proc/self/task/{t.native_id}/stat').read().rpartition(')')[2]"
        ".split()[11:13])) for t in threading.enumerate() if t.name.startswith('jupyter-gpu'))"
        " / os.sysconf('SC_CLK_TCK')"
    )
    return float(kernel.run(code).result)


@contextlib.contextmanager
def _kernel() -> Iterator[object]:
    """Start a kernel with all GPUs whose messages can be counted while a cell runs."""
    sys.path.insert(0, str(pairs.ROOT / "tests"))
    from cell_kernel import CellKernel

    from proofs.truth import kernel_manager

    class Watched(CellKernel):
        def run(self, code, watched=None, **options):
            if watched is not None:
                receive = self.client.iopub_channel.get_msg

                def counted(*args, **kwargs):
                    message = receive(*args, **kwargs)
                    if message["msg_type"] == "comm_msg":
                        watched(time.time(), _size(message))
                    return message

                self.client.iopub_channel.get_msg = counted
            return super().run(code, **options)

    with kernel_manager() as manager:
        kernel = Watched(manager)
        try:
            yield kernel
        finally:
            kernel.client.stop_channels()


def _size(message) -> int:
    """Return what a message takes on its way: its four parts as JSON, and its buffers."""
    parts = (message[name] for name in ("header", "parent_header", "metadata", "content"))
    text = sum(len(json.dumps(one, default=str, ensure_ascii=False).encode()) for one in parts)
    return text + sum(map(len, message.get("buffers", ())))


@contextlib.contextmanager
def _witness(place: Workplace) -> Iterator[object]:
    """Run the independent reader; yields a function that returns what it saw, once it has ended."""
    path = place.folder / "witness.json"
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    process = subprocess.Popen(
        [sys.executable, "-c", WITNESS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        process.stdout.readline()
        yield lambda: json.loads(path.read_text())
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()


def _json(kernel, expression: str):
    return json.loads(kernel.run(f"import json\nprint(json.dumps({expression}))").printed)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _between(seen: list, times: list[float], first: float, last: float) -> list:
    return seen[bisect.bisect_left(times, first) : bisect.bisect_right(times, last)]


def _within(value: float | None, seen: list[float], margin: float) -> bool:
    return value is not None and min(seen) - margin <= value <= max(seen) + margin
