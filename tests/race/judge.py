"""The race: contenders are started and killed at random, and a judge looks for double leases.

    python tests/race/judge.py --contenders 64 --devices 8 --acquisitions 20000 --seed 1

Nothing of the package is imported here. What is judged is only what the holders reported (see
contender.py) and when this program killed them, all on one clock. A holder has a device from a
moment *after* it got the lease until a moment *before* it gave it up; one that was killed has it
until the moment before the signal was sent. Two such spans on one device that overlap are a double
lease, without any doubt: the true spans are longer. What may be missed is an overlap of well under
a millisecond at an end; the holds are several times as long.

Answers with JSON, and with status 0 when no device was leased twice and none was lost.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

CONTENDER = Path(__file__).with_name("contender.py")
LINE_BYTES = 64
LOOK_SECONDS = 0.01


class Event(NamedTuple):
    """A line of a contender's report."""

    letter: str
    time: int
    devices: list


class Span(NamedTuple):
    """A time in which a holder surely had a device."""

    device: str
    start: int
    end: int
    holder: str


class Overlap(NamedTuple):
    """Two holders of one device at the same time, and for how long."""

    device: str
    first: str
    second: str
    nanoseconds: int


def read_events(data):
    """Return the whole lines of a contender's file; a line cut short by a kill never happened."""
    whole = len(data) - len(data) % LINE_BYTES
    lines = (data[at : at + LINE_BYTES].decode() for at in range(0, whole, LINE_BYTES))
    fields = (line.split() for line in lines)
    return [Event(f[0], int(f[1]), f[2].split(",") if len(f) > 2 else []) for f in fields]


def spans_of(holder, events, killed_at=None):
    """Return the spans in which a holder surely had its devices.

    The last one ends with the kill when there was one; a holder that ended by itself in the middle
    of a hold counts up to its last word.
    """
    spans, held = [], None
    for event in events:
        if event.letter == "H":
            held = event
        elif event.letter == "D" and held is not None:
            spans += [Span(device, held.time, event.time, holder) for device in held.devices]
            held = None
    if held is not None and killed_at is not None:
        spans += [Span(device, held.time, killed_at, holder) for device in held.devices]
    return spans


def overlaps_of(spans):
    """Return where two holders had one device at the same time."""
    found, last = [], {}
    for span in sorted(spans, key=lambda s: s.start):
        before = last.get(span.device)
        if before is not None and span.start < before.end:
            common = min(before.end, span.end) - span.start
            found.append(Overlap(span.device, before.holder, span.holder, common))
        if before is None or span.end > before.end:
            last[span.device] = span
    return found


class Race:
    """One race in a lease directory of its own."""

    def __init__(self, options):
        self.options = options
        self.chance = random.Random(options.seed)
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.home = Path(tempfile.mkdtemp(prefix="jupyter-gpu-race-", dir=shared))
        self.reports = self.home / "reports"
        self.reports.mkdir()
        self.killed = {}
        self.gone = set()
        self.read_to = {}
        self.had = 0

    def environment(self):
        foreign = ("CUDA_", "NVIDIA_", "JUPYTER_GPU_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        above = str(CONTENDER.parents[2])
        return kept | {
            "JUPYTER_GPU_SIMULATE": f"{self.options.devices}xH200",
            "JUPYTER_GPU_LEASE_DIR": str(self.home / "leases"),
            "PYTHONPATH": os.pathsep.join(filter(None, (above, kept.get("PYTHONPATH")))),
        }

    def command(self, *arguments):
        return [sys.executable, str(CONTENDER), str(self.reports), *map(str, arguments)]

    def run(self):
        options, began = self.options, time.monotonic()
        command = self.command(
            *("--contenders", options.contenders, "--most", options.most, "--hold", options.hold),
            *("--seed", options.seed, "--skip-locking", options.skip_locking),
        )
        contenders = subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, text=True
        )
        late = False
        while self.grants() < options.acquisitions and contenders.poll() is None:
            if self.chance.random() < options.kills_per_second * LOOK_SECONDS:
                self.kill_somebody()
            late = time.monotonic() - began > options.deadline
            if late:
                break
            time.sleep(LOOK_SECONDS)
        (self.reports / "stop").touch()
        try:
            failed = int(contenders.communicate(timeout=60)[0] or -1)
        except subprocess.TimeoutExpired:
            late, failed = True, -1
            self.kill_everybody(contenders)
        return self.report(time.monotonic() - began, failed, late)

    def incarnations(self):
        return [path for path in self.reports.iterdir() if path.name != "stop"]

    def grants(self):
        """How many leases were had so far."""
        for path in self.incarnations():
            at = self.read_to.get(path.name, 0)
            size = path.stat().st_size // LINE_BYTES * LINE_BYTES
            if size > at:
                with path.open("rb") as file:
                    file.seek(at)
                    self.had += file.read(size - at)[::LINE_BYTES].count(b"H")
                self.read_to[path.name] = size
        return self.had

    def kill_somebody(self):
        """Kill a contender, whatever it is doing, and remember the moment before."""
        living = sorted(p.name for p in self.incarnations() if p.name not in self.gone)
        if not living:
            return
        some = self.chance.sample(living, min(len(living), 16))
        # Every other time preferably one that has just reported a lease.
        holding = [name for name in some if self.chance.random() < 0.5 and self.seems_to_hold(name)]
        name = (holding or some)[0]
        _, pid, start = name.split("-")
        self.gone.add(name)
        # A pid may have a new owner by now: the descriptor stands for one process only.
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(pid))
            try:
                if is_running(pid, start):
                    moment = time.monotonic_ns()
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    self.killed[name] = moment
            finally:
                os.close(descriptor)

    def seems_to_hold(self, name):
        return (self.reports / name).read_bytes()[-LINE_BYTES:][:1] == b"H"

    def kill_everybody(self, contenders):
        contenders.kill()
        contenders.wait()
        while any(path.name not in self.gone for path in self.incarnations()):
            self.kill_somebody()

    def devices_left(self):
        """How many devices one program gets when all the others are gone."""
        answer = subprocess.run(
            self.command("--everything"),
            env=self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return len(answer.stdout.strip().split(",")) if answer.returncode == 0 else 0

    def report(self, seconds, failed, late):
        spans, letters, holding = [], [], 0
        for path in self.incarnations():
            events = read_events(path.read_bytes())
            spans += spans_of(path.name, events, self.killed.get(path.name))
            letters += [event.letter for event in events]
            holding += path.name in self.killed and bool(events) and events[-1].letter == "H"
        overlaps = overlaps_of(spans)
        grants = letters.count("H")
        return {
            "schema": 1,
            "seed": self.options.seed,
            "contenders": self.options.contenders,
            "devices": self.options.devices,
            "grants": grants,
            "refusals": letters.count("R"),
            "kills": len(self.killed),
            "kills_while_holding": holding,
            "failed_contenders": failed,
            "overlaps": len(overlaps),
            "first_overlaps": [overlap._asdict() for overlap in overlaps[:10]],
            "lost_devices": self.options.devices - self.devices_left(),
            "finished": not late,
            "seconds": round(seconds, 2),
            "grants_per_second": round(grants / seconds, 1),
            "processors": len(os.sched_getaffinity(0)),
        }

    def close(self):
        shutil.rmtree(self.home, ignore_errors=True)


def is_running(pid, start):
    """Return whether this pid is still the process that started then, and not on its way out."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == start and fields[0] not in "ZX"


def is_clean(report):
    return (
        report["finished"]
        and report["overlaps"] == report["lost_devices"] == report["failed_contenders"] == 0
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contenders", type=int, default=16)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--acquisitions", type=int, default=2000)
    parser.add_argument("--most", type=int, default=3, help="devices that one asks for")
    parser.add_argument("--hold", type=float, default=0.004, help="seconds, the longest")
    parser.add_argument("--kills-per-second", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=900, help="seconds")
    parser.add_argument("--skip-locking", type=float, default=0, help="plant faults: their share")
    parser.add_argument("--report", type=Path, help="write the JSON here too")
    options = parser.parse_args(arguments)
    race = Race(options)
    try:
        report = race.run()
    finally:
        race.close()
    text = json.dumps(report, indent=2) + "\n"
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if is_clean(report) else 1


if __name__ == "__main__":
    sys.exit(main())
