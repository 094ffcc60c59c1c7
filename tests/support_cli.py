"""What the tests of the faces share: overviews made by hand, and the command as a process."""

import json
import os
import subprocess
import sys
from datetime import datetime, timezone

from jupyter_gpu.cli import main
from jupyter_gpu.core.devices import Device, Inventory, Process
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.leases import Holdings, Lease, Owner, Record, Waiter
from jupyter_gpu.core.overview import Leasing, Overview, SeenProcess
from jupyter_gpu.core.policy import USUAL_REASON
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.visibility import visible

GIB = 2**30
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=timezone.utc)
SINCE = "2026-12-01T10:42:00+00:00"
LONG_AGO = "2026-11-30T18:40:00+00:00"


def uuid(index):
    return f"GPU-{index:08x}-5d9e-4a86-9c04-71e6a3d8f25b"


def device(index, **changes):
    plain = {
        "name": "NVIDIA H200",
        "memory_total_bytes": 150_754_820_096,
        "memory_used_bytes": 0,
        "utilization_percent": 0,
        "pci_bus_id": f"00000000:{index:02X}:00.0",
    }
    return Device(index, uuid(index), **{**plain, **changes})


def inventory(*devices, source="nvml", **changes):
    devices = devices or tuple(device(index) for index in range(4))
    return Inventory(source, "580.159.04", "13.0", devices=devices, **changes)


def lease(lease_id, indices, user="alice", owner=None, **changes):
    record = Record(
        lease_id * 15,
        owner or Owner("kernel", notebook=f"/home/{user}/exp{lease_id}.ipynb"),
        changes.pop("since", SINCE),
        uuids=tuple(map(uuid, indices)),
        indices=tuple(indices),
        ancestors=changes.pop("ancestors", ()),
        because=changes.pop("because", (USUAL_REASON,)),
    )
    return Lease(
        record, user, changes.pop("state", "active"), changes.pop("pids", (4711,)), **changes
    )


def waiter(lease_id, user="carol", stalled=False, owner=None, **request):
    owner = owner or Owner("kernel")
    record = Record(lease_id * 15, owner, LONG_AGO, Request(**request), ticket=0)
    return Waiter(record, user, stalled)


def kernel(pid=4711, launched="3,5", now="3,5", state="open", in_force=None, **changes):
    given = None
    if in_force is not None:
        given = tuple(InForce(n, index, uuid(index)) for n, index in enumerate(in_force))
    return KernelProcess(pid, launched, now, state, given, **changes)


def overview(machine=None, leases=(), *, value=None, process=None, **changes):
    machine = machine or inventory()
    holdings = Holdings(tuple(leases), changes.pop("waiters", ()), changes.pop("unclaimed", ()))
    seen = tuple(SeenProcess(*row) for row in changes.pop("seen", ()))
    return Overview(
        machine,
        visible(value, machine, environment={}),
        holdings,
        changes.pop("leasing", Leasing("/leases")),
        seen,
        process,
    )


def using(pid, memory_bytes=None):
    return (Process(pid, memory_bytes),)


def gpu(capsys, *words):
    """Run the command in this process; returns its exit code, standard output and error."""
    capsys.readouterr()
    code = main(list(map(str, words)))
    return code, *capsys.readouterr()


def gpu_json(capsys, *words):
    """Run the command with --json, and return its answer; it has to succeed."""
    at = words.index("--") if "--" in words else len(words)
    code, out, err = gpu(capsys, *words[:at], "--json", *words[at:])
    assert code == 0, err
    answer = json.loads(out)
    assert answer["schema"] == 1
    return answer


def command(*words):
    """The words that run the command as a program of its own."""
    return [sys.executable, "-m", "jupyter_gpu", *map(str, words)]


def start(*words, **options):
    """Start the command as a process; the caller waits for it."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command(*words), cwd=options.pop("cwd", "/"), **options)


def finish(*words, timeout=30, **options):
    """Run the command as a process to its end."""
    with start(*words, **options) as process:
        out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def environment(**changes):
    """This environment with some variables set, or dropped where the value is None."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
