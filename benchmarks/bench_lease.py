"""What leases cost: taking one, reading who holds what, and getting one that becomes free.

All of it through the public interface and the lease directory in shared memory, on a simulated
machine of eight GPUs (``--real``: on this machine's own). The comparison for taking a lease is the
least that any lease of this kind must do: eight locks on a file and one record renamed into place.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pairs
from holder import Holder

LEASE = "8 devices, record included"
LEAST = "8 bare locks, 1 bare file"
LOOKS = 25
MANY = 1000
DEAD = 10_000


def lease_ms() -> float:
    import jupyter_gpu

    began = time.perf_counter()
    lease = jupyter_gpu.acquire("all")
    took = time.perf_counter() - began
    lease.release()
    return took * 1000


def least_ms(folder: Path) -> float:
    import fcntl

    text = "x" * 700
    began = time.perf_counter()
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    for number in range(8):
        where = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, number << 20, 27_720, 0)
        fcntl.fcntl(fd, 37, where)
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "record")
    took = time.perf_counter() - began
    os.close(fd)
    return took * 1000


def who_us(store) -> float:
    began = time.perf_counter()
    holdings = store.holdings()
    return (time.perf_counter() - began) / len(holdings.leases) * 1e6


def place_of():
    from jupyter_gpu.adapters.machine import is_simulated
    from jupyter_gpu.adapters.place import find_place

    return find_place(os.environ, simulated=is_simulated(os.environ))


@contextlib.contextmanager
def surroundings(environment: Mapping[str, str]) -> Iterator[Path]:
    """Give this process and its children a machine and a lease directory of their own."""
    before = dict(os.environ)
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="jupyter-gpu-bench-", dir=parent))
    try:
        places = {"JUPYTER_GPU_LEASE_DIR": str(folder / "leases")}
        changed = pairs.child_environment(**environment, **places)
        os.environ.clear()
        os.environ.update(changed)
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def leave_dead_records(count: int) -> None:
    """Leave records behind that no lease stands behind, as after a power cut."""
    import jupyter_gpu
    from jupyter_gpu.core.layout import new_lease_id

    place = place_of()
    with jupyter_gpu.acquire("all") as lease:
        text = (place.directory / "records" / f"{lease.id}.json").read_text()
        for _ in range(count):
            name = new_lease_id()
            (place.directory / "records" / f"{name}.json").write_text(text.replace(lease.id, name))


def grant_ms(how: str) -> float:
    """Return how long after its holder's end a waiter gets the devices."""
    import jupyter_gpu

    granted: list[float] = []

    def wait() -> None:
        with jupyter_gpu.acquire("all", wait=30):
            granted.append(time.monotonic())

    with Holder(os.environ, "all") as holder:
        waiter = threading.Thread(target=wait)
        waiter.start()
        await_queue()
        time.sleep(random.uniform(0.05, 0.15))
        freed = holder.release() if how == "release" else holder.kill()
        waiter.join()
    return (granted[0] - freed) * 1000


def await_queue() -> None:
    from jupyter_gpu.adapters.store import LeaseStore

    with LeaseStore(place_of()) as store:
        deadline = time.monotonic() + 30
        while not store.anyone_waits():
            if time.monotonic() > deadline:
                raise TimeoutError("the waiter did not line up")
            time.sleep(0.002)


def measure_taking(report: pairs.Report, rounds: int, folder: Path, around: str) -> None:
    candidates = {
        LEASE: lease_ms,
        LEAST: lambda: least_ms(folder),
        LEAST + pairs.AGAIN: lambda: least_ms(folder),
    }
    samples = pairs.take_turns(candidates, rounds)
    report.compare(
        f"leasing, uncontended{around}", samples, LEASE, LEAST, pairs.Goal("median", 1), digits=3
    )


def measure_reading(report: pairs.Report, rounds: int) -> None:
    from jupyter_gpu.adapters.store import LeaseStore

    with LeaseStore(place_of()) as store:
        clean = "before the dead records"
        candidates = {clean: lambda: who_us(store), clean + pairs.AGAIN: lambda: who_us(store)}
        samples = pairs.take_turns(candidates, rounds)
        leave_dead_records(DEAD)
        dirty = f"with {DEAD} dead records beside them"
        samples |= pairs.take_turns({dirty: lambda: who_us(store)}, rounds)
    report.unit = "µs"
    report.compare(
        f"who holds what, for each of {MANY} leases (µs)",
        samples, dirty, clean, pairs.Goal("median", 100),
    )  # fmt: skip
    report.unit = "ms"


def measure_granting(report: pairs.Report, rounds: int) -> None:
    killed, released = "after SIGKILL of the holder", "after its release"
    candidates = {
        killed: lambda: grant_ms("kill"),
        released: lambda: grant_ms("release"),
        released + pairs.AGAIN: lambda: grant_ms("release"),
    }
    samples = pairs.take_turns(candidates, rounds)
    for how in (released, killed):
        report.alone(f"a waiter gets all devices {how}", samples[how], pairs.Goal("worst", 100))
    report.compare("the same, compared", samples, killed, released)


def run(rounds: int, environment: Mapping[str, str], where: str) -> pairs.Report:
    report = pairs.Report("lease", where)
    with surroundings(environment) as folder:
        measure_taking(report, rounds, folder, "")
        measure_granting(report, max(5, rounds // 10))
        with Holder(os.environ, "many", str(MANY)):
            measure_taking(report, rounds, folder, f", {MANY} leases alive")
            measure_reading(report, LOOKS)
            measure_taking(report, rounds, folder, f", {MANY} alive and {DEAD} dead records")
    return report


def main() -> int:
    parser = pairs.options(__doc__.partition("\n")[0], pairs=300)
    parser.add_argument("--real", action="store_true", help="lease this machine's own GPUs")
    arguments = parser.parse_args()
    machine = {} if arguments.real else {"JUPYTER_GPU_SIMULATE": "8xH200"}
    where = "this machine's GPUs" if arguments.real else "simulated 8xH200"
    report = run(arguments.pairs, machine, where)
    report.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
