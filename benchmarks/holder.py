"""A process that holds leases while something is measured; it answers a line on its input.

``all`` holds every device, with ``acquire``; ``many N`` holds N leases on one made-up device each.
It says ``ready``. At ``release`` it gives up what it holds and says at what time it began to, on
the clock that all processes of a machine share; it ends when its input does.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path


class Holder:
    """Another process that holds leases, in the environment given; use it in a ``with``."""

    def __init__(self, environment: Mapping[str, str], *what: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *what],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._read("ready")

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()

    def release(self) -> float:
        """Let it release, and return when it began to (``time.monotonic``)."""
        self.process.stdin.write("release\n")
        return float(self._read().removeprefix("released "))

    def kill(self) -> float:
        """Kill it, and return when (``time.monotonic``)."""
        when = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        return when

    def _read(self, wanted: str | None = None) -> str:
        line = self.process.stdout.readline().strip()
        if not line or (wanted is not None and line != wanted):
            raise RuntimeError(f"the holder said {line!r} and not {wanted!r}")
        return line


def hold_all() -> list:
    from jupyter_gpu import acquire

    return [acquire("all")]


def hold_many(count: int) -> list:
    from jupyter_gpu.adapters.place import find_place
    from jupyter_gpu.adapters.processes import reference
    from jupyter_gpu.adapters.store import LeaseStore
    from jupyter_gpu.core.leases import Owner, Record

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 200, hard), hard))
    me = reference(os.getpid())
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    claims = []
    with LeaseStore(find_place(os.environ, simulated=True), write=True) as store:
        for number in range(count):
            claim = store.new_claim()
            uuid = f"GPU-{number:08x}-0000-0000-0000-000000000000"
            if not claim.take((uuid,)):
                raise RuntimeError(f"{uuid} could not be taken")
            owner = Owner("kernel", f"kernel-{number}", f"/notebooks/{number}.ipynb", None, (me,), me)
            store.publish(claim, Record(claim.id, owner, now, uuids=(uuid,), indices=(number,)))
            claims.append((claim, store))
    return claims


def main() -> None:
    what, *rest = sys.argv[1:]
    held = hold_all() if what == "all" else hold_many(int(rest[0]))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "release":
            print("released", time.monotonic(), flush=True)
            for lease in held:
                lease.release()


if __name__ == "__main__":
    main()
