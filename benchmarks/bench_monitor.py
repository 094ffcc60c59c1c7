"""What the monitor costs while a cell runs: processor time, bytes over the wire, memory.

A kernel shows a live monitor of every device, and a cell sleeps. Processor time is the kernel's own,
in all its threads, compared with the same cell in the same kernel without the monitor. Bytes are all
frames of all messages that the kernel publishes while the cell sleeps. Memory is taken in a process
whose clock runs ahead: the ticks of an hour pass in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import machines
import pairs

WITH, WITHOUT = "a live monitor", "no monitor"
SECONDS = 60
PIECE_SECONDS = 10
TOGETHER_SECONDS = 0.08
REST_SECONDS = 4.0
CPU_MS = 10.0  # 1 % of a core at 1 Hz
WIRE_BYTES = 4096
FROM_TICK, TO_TICK = 2000, 5600
GROWTH_BYTES = 65_536
GROWTH_KIB = 2048
_GIB = 2**30


class ChangingMachine:
    """A simulated machine of which every number changes with every ``change``."""

    def __init__(self, path: Path, devices: int) -> None:
        self.path, self.devices, self.pid = path, devices, 0
        self._random = random.Random(5)
        self.change()

    def description(self) -> dict[str, object]:
        """Return the machine as it is next: busy, half of its memory taken, by three processes."""
        source = self._random
        gpus = []
        for index in range(self.devices):
            used = source.randrange(60, 139) * _GIB + source.randrange(_GIB)
            processes = [
                {"pid": 4_000_000 + index, "memory_bytes": 20 * _GIB},
                {"pid": 4_000_100 + index, "memory_bytes": 500 * 2**20},
            ]
            if self.pid:
                processes.append({"pid": self.pid, "memory_bytes": used - 30 * _GIB})
            gpus.append(
                {
                    "name": "NVIDIA H200",
                    "memory_total_bytes": 150_754_820_096,
                    "memory_used_bytes": used,
                    "utilization_percent": source.randrange(10, 101),
                    "temperature_celsius": source.randrange(40, 90),
                    "power_watts": round(source.uniform(200, 700), 1),
                    "processes": processes,
                }
            )
        return {"gpus": gpus}

    def change(self) -> None:
        """Put the next numbers in place in one step."""
        following = self.path.with_suffix(".next")
        following.write_text(json.dumps(self.description()), encoding="utf-8")
        following.replace(self.path)

    @contextlib.contextmanager
    def changing(self, every: float) -> Iterator[None]:
        """Change it again and again while the block runs."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(every):
                self.change()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class WatchedKernel:
    """A kernel that is spoken to as a notebook's front end does, all that it publishes weighed."""

    def __init__(self) -> None:
        import zmq
        from jupyter_client import KernelManager

        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self._manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self._iopub = zmq.Context.instance().socket(zmq.SUB)
        self._iopub.setsockopt(zmq.SUBSCRIBE, b"")
        self._iopub.connect(f"tcp://127.0.0.1:{self._manager.iopub_port}")
        self.published: list[tuple[float, int, str, dict]] = []
        self._stop = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.run("pass")

    def _listen(self) -> None:
        while not self._stop.is_set():
            if self._iopub.poll(100):
                frames = self._iopub.recv_multipart()
                start = frames.index(b"<IDS|MSG>") + 2
                header, content = json.loads(frames[start]), json.loads(frames[start + 3])
                size = sum(map(len, frames))
                self.published.append((time.monotonic(), size, header["msg_type"], content))

    def run(self, code: str) -> str:
        """Run a cell as a person would, and return what it printed."""
        printed: list[str] = []
        message = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": True,
                "stop_on_error": True,
            },
            metadata={"cellId": f"cell-{time.monotonic_ns()}"},
        )
        self.client.shell_channel.send(message)
        mine = message["header"]["msg_id"]
        while True:
            reply = self.client.get_iopub_msg(timeout=120)
            if reply["parent_header"].get("msg_id") != mine:
                continue
            kind, content = reply["msg_type"], reply["content"]
            if kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            if kind == "stream":
                printed.append(content["text"])
            if kind == "status" and content["execution_state"] == "idle":
                return "".join(printed)

    def show_monitor(self, interval: float) -> None:
        """Display a monitor, and say as a front end does that there is a view of it."""
        before = len(self.published)
        self.run(
            f"from jupyter_gpu import Monitor\nmonitor = Monitor(interval={interval})\nmonitor"
        )
        view = "application/vnd.jupyter.widget-view+json"
        deadline = time.monotonic() + 20
        while not (shown := [c for *_, c in self.published[before:] if view in c.get("data", {})]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no live monitor: {self.published[before:]}")
            time.sleep(0.01)
        data = {"method": "update", "state": {"_view_count": 1}, "buffer_paths": []}
        content = {"comm_id": shown[0]["data"][view]["model_id"], "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def rest(self) -> None:
        """Wait until the monitor stands still: it goes on for three seconds after a cell."""
        heard = -1
        while heard != len(self.published):
            heard = len(self.published)
            time.sleep(REST_SECONDS)

    def processor_ms(self, seconds: float) -> float:
        """Return the kernel's processor time in a cell that sleeps, in ms for every second."""
        code = (
            "import time\nbegan = time.process_time()\n"
            f"time.sleep({seconds})\nprint(time.process_time() - began)"
        )
        return float(self.run(code)) * 1000 / seconds

    def close(self) -> None:
        """End the kernel."""
        self._stop.set()
        self._listener.join()
        self._iopub.close(linger=0)
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def ticks(published: list[tuple[float, int, str, dict]]) -> list[int]:
    """Return the bytes of each tick: what arrives together, whatever it is made of."""
    sizes: list[int] = []
    last = float("-inf")
    for at, size, kind, _ in published:
        if kind == "comm_msg":
            if at - last > TOGETHER_SECONDS:
                sizes.append(0)
            sizes[-1] += size
            last = at
    return sizes


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Have this process and its kernels see a machine, and places of their own."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="jupyter-gpu-bench-") as folder:
        places = {
            "IPYTHONDIR": f"{folder}/ipython",
            "JUPYTER_RUNTIME_DIR": f"{folder}/runtime",
            "JUPYTER_GPU_LEASE_DIR": f"{folder}/leases",
            "JUPYTER_NO_CONFIG": "1",
        }
        os.environ.clear()
        os.environ.update(pairs.child_environment(**places, **changes))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def watch(
    where: str, changes: Mapping[str, str], seconds: float, simulated: ChangingMachine | None = None
) -> pairs.Report:
    """Measure processor time and bytes of one machine's monitor, at 1 Hz."""
    report = pairs.Report("monitor", where, unit="ms")
    piece = min(PIECE_SECONDS, seconds)
    rounds = max(1, round(seconds / piece))
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(changes))
        plain, watched = WatchedKernel(), WatchedKernel()
        stack.callback(plain.close)
        stack.callback(watched.close)
        for kernel in (plain, watched):
            kernel.run("%load_ext jupyter_gpu")
        if simulated is not None:
            simulated.pid = int(watched.run("import os; print(os.getpid())"))
            stack.enter_context(simulated.changing(1.0))
        watched.show_monitor(1.0)
        watched.run("pass")
        watched.rest()
        sizes: list[int] = []
        ends: list[int] = []

        def with_monitor() -> float:
            before = len(watched.published)
            took = watched.processor_ms(piece)
            ended = len(watched.published)
            watched.rest()
            sizes.extend(ticks(watched.published[before:ended]))
            ends.append(sum(size for _, size, *_ in watched.published[ended:]))
            return took

        samples = pairs.take_turns(
            {
                WITH: with_monitor,
                WITHOUT: lambda: plain.processor_ms(piece),
                WITHOUT + pairs.AGAIN: lambda: plain.processor_ms(piece),
            },
            rounds,
        )
    what = f"processor time of the kernel a tick, cells of {piece:g} s"
    report.compare(what, samples, WITH, WITHOUT, pairs.Goal("difference", CPU_MS), digits=2)
    weigh(report, sizes, ends)
    return report


def weigh(report: pairs.Report, sizes: list[int], ends: list[int]) -> None:
    """Add the bytes of the ticks while a cell runs, and of what follows a cell, once for each."""
    most = max(sizes, default=0)
    report.results.append(
        {
            "what": "bytes published a tick while a cell runs, all frames of all messages",
            "ticks": len(sizes),
            "mean_bytes": round(statistics.fmean(sizes)) if sizes else None,
            "max_bytes": most,
            "goal": {"of": "max", "limit": WIRE_BYTES, "met": 0 < most <= WIRE_BYTES},
        }
    )
    report.results.append(
        {
            "what": "bytes published after a cell: the last looks, every card once more, and the "
            "picture for the saved notebook",
            "cells": len(ends),
            "median_bytes": round(statistics.median(ends)),
            "max_bytes": max(ends),
        }
    )
    mean = statistics.fmean(sizes) if sizes else 0
    print(f"\nbytes a tick: {mean:.0f} on average, {most} at most, {len(sizes)} ticks", end=" ")
    print(f"(limit {WIRE_BYTES})\nbytes after a cell, once: {max(ends)} at most")


class FastClock:
    """A clock whose waiting takes no time: the hour passes as fast as its ticks are made."""

    def __init__(self) -> None:
        self._now = 0.0

    def wall(self) -> float:
        """Return the seconds of the Unix epoch."""
        return 1_764_580_000.0 + self._now

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self._now

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Let the time pass, unless the event is set."""
        if not event.is_set():
            self._now += seconds


class Hour:
    """An hour's ticks of a feed and its renderer, with memory taken at two of them.

    Parameters
    ----------
    first, last
        The ticks between which nothing may grow.
    traced
        Count the allocated bytes, which is slow; otherwise the resident memory.
    """

    def __init__(self, first: int, last: int, *, traced: bool) -> None:
        self._first, self._last, self._traced = first, last, traced
        self._every = 10 if traced else 1  # to render while counting bytes takes ten times as long
        self._ticks = 0
        self._done = threading.Event()
        self._found: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        """Return what was found: memory at the first tick and at the last."""
        from jupyter_gpu.adapters.machine import find_machine
        from jupyter_gpu.feed import Feed
        from jupyter_gpu.overview import read_overview

        if self._traced:
            import tracemalloc

            tracemalloc.start()
        with tempfile.TemporaryDirectory(prefix="jupyter-gpu-bench-") as folder:
            self._machine = ChangingMachine(Path(folder) / "machine.json", 8)
            os.environ["JUPYTER_GPU_SIMULATE"] = str(self._machine.path)
            os.environ["JUPYTER_GPU_LEASE_DIR"] = f"{folder}/leases"
            self._feed = Feed(
                lambda machine: read_overview(os.environ, machine=machine),
                lambda: find_machine(os.environ),
                clock=FastClock(),
            )
            self._feed.cell_begins(1)
            watching = self._feed.watch(self._tick)
            if not self._done.wait(600):
                raise RuntimeError(f"only {self._ticks} ticks")
            watching.close()
            self._feed.close()
        return self._found

    def _tick(self, moment: object) -> None:
        """Render as a monitor does, and let a cell end and the next one begin."""
        from jupyter_gpu.core.monitor_html import page, parts
        from jupyter_gpu.core.monitor_view import Choice

        if self._done.is_set():
            return
        self._ticks += 1
        if self._ticks % self._every == 0:
            parts(moment, Choice())
        if self._ticks % 60 == 0:
            page(moment, Choice())
        if self._ticks == self._first:
            self._found["first"] = self._memory()
        if self._ticks == self._last:
            self._found["last"] = self._memory()
            self._done.set()
            return
        self._machine.change()
        self._feed.cells_end()
        self._feed.cell_begins(self._ticks)

    def _memory(self) -> int:
        import gc

        from cell_runner import allocated_by_us, resident_kib

        if self._traced:
            return allocated_by_us()
        gc.collect()
        return resident_kib()


def growth(first: int, last: int) -> dict[str, object]:
    """Run an hour's ticks in processes of their own, and return how memory has grown."""
    found = {}
    for kind in ("traced", "resident"):
        done = subprocess.run(
            [sys.executable, __file__, "--hour", kind, str(first), str(last)],
            env=pairs.child_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    allocated = found["traced"]["last"] - found["traced"]["first"]
    resident = found["resident"]["last"] - found["resident"]["first"]
    print(
        f"\nmemory from tick {first} to {last}: {allocated} bytes more allocated by our code "
        f"(of {found['traced']['last']}), {resident} KiB more resident"
    )
    result: dict[str, object] = {
        "what": f"memory from tick {first} to {last}, feed and renderer, a clock that runs ahead",
        "allocated_bytes": [found["traced"]["first"], found["traced"]["last"]],
        "resident_kib": [found["resident"]["first"], found["resident"]["last"]],
        "growth_bytes": allocated,
        "growth_resident_kib": resident,
    }
    if first >= FROM_TICK:  # before it, the history is still filling
        met = allocated <= GROWTH_BYTES and resident <= GROWTH_KIB
        result["goal"] = {"of": "growth", "limit": GROWTH_BYTES, "met": met}
    return result


def main() -> int:
    parser = pairs.options(__doc__.partition("\n")[0], pairs=1)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"with a monitor ({SECONDS})"
    )
    parser.add_argument("--ticks", type=int, default=TO_TICK, help=f"of the hour ({TO_TICK})")
    parser.add_argument("--hour", nargs=3, metavar=("KIND", "FIRST", "LAST"), help="(for itself)")
    chosen = parser.parse_args()
    if chosen.hour:
        kind, first, last = chosen.hour
        print(json.dumps(Hour(int(first), int(last), traced=kind == "traced").run()))
        return 0
    reports = []
    with tempfile.TemporaryDirectory(prefix="jupyter-gpu-bench-") as folder:
        for devices, part in ((8, 1), (2, 3)):
            simulated = ChangingMachine(Path(folder) / f"{devices}.json", devices)
            see = {"JUPYTER_GPU_SIMULATE": str(simulated.path)}
            words = f"simulated, {devices} busy GPUs"
            print(f"\n== {words}")
            seconds = chosen.seconds * chosen.pairs / part
            reports.append(watch(words, see, seconds, simulated))
    count = machines.count_gpus()
    if count:
        print(f"\n== {count} real GPUs")
        reports.append(watch(f"{count} real GPUs", {}, chosen.seconds * chosen.pairs))
    reports[0].results.append(growth(min(FROM_TICK, chosen.ticks // 2), chosen.ticks))
    if chosen.json:
        whole = {"schema": 1, "reports": [report.as_json() for report in reports]}
        Path(chosen.json).write_text(pairs.as_text(whole), encoding="utf-8")
    met = [r["goal"]["met"] for report in reports for r in report.results if "goal" in r]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
