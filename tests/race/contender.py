"""Programs that fight over devices, and report what they see in files of their own.

One process loads the package and forks the contenders; it forks another one for each that dies.
A contender acquires, reports the devices that it would use, works for a moment, reports that it
gives them up, and releases. It knows nothing of the others, and the judge nothing of this.

A report is a line of 64 bytes, written at once: a letter, the monotonic time in nanoseconds and
the value of CUDA_VISIBLE_DEVICES. ``H`` stands after the lease was had and ``D`` before it is given
up, so a device is truly held from the time of the one to the time of the other; ``R`` is a refusal.
"""

import argparse
import os
import random
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

LINE_BYTES = 64
FAILED = 70
# Most ask once: while somebody waits, devices stand still until that one's next look.
WAITS = (0,) * 399 + (0.1,)


class Reporter:
    """Writes the lines of one contender; its file's name says who it is."""

    def __init__(self, folder, number):
        start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._fd = os.open(folder / f"{number}-{os.getpid()}-{start}", flags)

    def tell(self, letter, value=""):
        line = f"{letter} {time.monotonic_ns()} {value}".encode().ljust(LINE_BYTES - 1) + b"\n"
        assert len(line) == LINE_BYTES
        os.write(self._fd, line)


def contend(folder, number, options):
    """Acquire and release until told to stop."""
    import jupyter_gpu

    chance = random.Random(f"{options.seed} {number}")
    reporter = Reporter(folder, number)
    if options.skip_locking:
        skip_locks(chance, options.skip_locking)
    stop = folder / "stop"
    while not stop.exists():
        count, wait = chance.randint(1, options.most), chance.choice(WAITS)
        try:
            lease = jupyter_gpu.acquire(count, wait=wait)
        except jupyter_gpu.NoDeviceAvailable:
            reporter.tell("R")
            time.sleep(chance.random() * 0.02)
            continue
        value = lease.environment["CUDA_VISIBLE_DEVICES"]
        assert len(lease.devices) == count == len(value.split(","))
        reporter.tell("H", value)
        time.sleep(chance.random() * options.hold)
        reporter.tell("D", value)
        if chance.random() < 0.1:
            del lease  # forgotten instead of released
        else:
            lease.release()


def skip_locks(chance, share):
    """Plant the fault that the judge must find: some locks succeed without being taken."""
    from jupyter_gpu.adapters import locks

    really = locks.try_lock

    def pretend(fd, where, *, shared=False):
        return chance.random() < share or really(fd, where, shared=shared)

    locks.try_lock = pretend


def run_one(folder, number, options):
    """Be a contender in a forked child, and never return."""
    status = 0
    try:
        contend(folder, number, options)
    except BaseException:
        traceback.print_exc()
        status = FAILED
    finally:
        os._exit(status)


def fork_contenders(folder, options):
    """Keep so many contenders running until told to stop; returns how many failed."""
    import_module("jupyter_gpu.allocator")
    failed = number = 0
    running = set()
    while running or not (folder / "stop").exists():
        while len(running) < options.contenders and not (folder / "stop").exists():
            number += 1
            pid = os.fork()
            if pid == 0:
                run_one(folder, number, options)
            running.add(pid)
        if running:
            pid, status = os.wait()
            running.discard(pid)
            failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    return failed


def take_everything():
    """Return the devices that one program gets when nobody else is there."""
    import jupyter_gpu

    with jupyter_gpu.acquire("all", wait=1) as lease:
        return lease.environment["CUDA_VISIBLE_DEVICES"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--contenders", type=int, default=8)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--hold", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-locking", type=float, default=0.0)
    parser.add_argument("--everything", action="store_true")
    options = parser.parse_args()
    if options.everything:
        print(take_everything())
    else:
        print(fork_contenders(options.folder, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
