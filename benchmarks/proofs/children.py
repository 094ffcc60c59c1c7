"""Part e: processes that outlive their kernel without a copy of its lease.

Spawned children, those of a fork server and programs do not inherit the lease. While they compute
they stand in NVML's list, and that keeps the device from being given out. A monitor does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from proofs.findings import Findings
from proofs.place import Workplace, lives, ms_since, until

HOWS = ("spawn", "forkserver", "popen")
WATCH_SECONDS = 2.5
_MONITOR = """
import os, pynvml, sys
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
paths = [f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(gpu)}" for gpu in gpus]
kept = [os.open(path, os.O_RDWR) for path in paths if os.path.exists(path)]
print(len(kept), flush=True)
sys.stdin.read()
"""


def prove(place: Workplace, findings: Findings, hows: tuple[str, ...]) -> None:
    for how in hows:
        _prove_child(place, findings, how)
    _prove_monitor(place, findings)


def _prove_child(place: Workplace, findings: Findings, how: str) -> None:
    ready = place.folder / f"ready-{how}"
    with place.server() as server:
        kernel = server.start("pytorch-1gpu")
        uuid = place.lease_of(kernel["kernel"]).record.uuids[0]
        server.call(kernel, f"start_child({how!r}, {str(ready)!r})")
        until(ready.exists, 60)
        child = int(ready.read_text())
        killed = server.kill_with(kernel)
    try:
        until(lambda: place.is_free(uuid), 10)
        freed = ms_since(killed)
        asked, given, words = _ask_meanwhile(place, uuid, child, killed)
        named = child in place.named_pids(uuid)
    finally:
        os.kill(child, signal.SIGKILL)
    ended = time.monotonic()
    until(lambda: place.refusal(uuid) is None, 10, every=0)
    findings.check(
        f"a child by {how} computes after its kernel's end: not given out meanwhile",
        given == 0 and asked > 0,
        f"lease free after {freed} ms, {asked} requests refused ({words}); "
        f"granted {ms_since(ended)} ms after the child's end",
        requests=asked,
        given_out=given,
        named_by_nvml=named,
    )


def _ask_meanwhile(
    place: Workplace, uuid: str, child: int, killed: float
) -> tuple[int, int, str]:
    """Ask for the device again and again, and count what was answered while the child lived."""
    asked = given = 0
    words = ""
    while time.monotonic() - killed < WATCH_SECONDS or asked == 0:
        answer = place.refusal(uuid)
        if not lives(child):
            raise RuntimeError(f"the child ended by itself after {ms_since(killed)} ms")
        asked += 1
        given += answer is None
        words = answer or words
        time.sleep(0.05)
    return asked, given, words


def _prove_monitor(place: Workplace, findings: Findings) -> None:
    monitor = subprocess.Popen(
        [sys.executable, "-c", _MONITOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        opened = monitor.stdout.readline().strip()
        answers = [place.refusal(gpu.uuid) for gpu in place.gpus]
    finally:
        monitor.communicate(timeout=10)
    findings.check(
        "a monitor that has NVML and the device files open blocks nobody",
        bool(opened) and not any(answers),
        f"{opened or 'no'} device files open; " + "; ".join(filter(None, answers)),
    )
