"""Moments of a made machine, for the tests of the monitor's views."""

from support_cli import GIB, NOW, device, inventory, kernel, lease, overview, uuid, waiter

from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.live import Moment, Past, Point
from jupyter_gpu.core.readings import Reading

AT = NOW.timestamp()
TOTAL = 150_754_820_096
SEEN = ((4711, "alice", "python"), (4411, "bob", "python train.py --epochs 30"))


def points(count=301, *, load=lambda n: n * 7 % 101, memory=lambda n: n * GIB // 4, every=1):
    """Readings at equal distances, the last of them now."""
    return [Point(AT - (count - 1 - n) * every, memory(n), None, load(n)) for n in range(count)]


def reading(*processes, **changes):
    """A busy device with these processes, 600 MiB beside them."""
    processes = processes or (Process(4711, 12 * GIB), Process(4411, 3 * GIB))
    used = sum(process.memory_bytes or 0 for process in processes) + 600 * 2**20
    plain = {"utilization_percent": 43, "power_watts": 412.3, "temperature_celsius": 61}
    return Reading(used, **{**plain, "processes": processes, **changes})


def moment(count=8, own=(3, 5), *, devices=None, readings=None, past=None, running=True, **changes):
    """A kernel of alice's with the lease of ``own`` on a machine of ``count`` GPUs."""
    value = ",".join(map(str, own))
    process = changes.pop("process", None) or kernel(
        launched=value, now=value, lease_id="a" * 15, state="frozen", in_force=own
    )
    machine = inventory(*(devices or [device(index) for index in range(count)]))
    mine = lease("a", own, "alice", Owner("kernel", notebook="/home/alice/train.ipynb"))
    leases = changes.pop("leases", (mine, lease("b", (0,), "bob"))) if own else ()
    problem = changes.pop("problem", None)
    seen = overview(machine, leases, value=value, process=process, seen=SEEN, **changes)
    if readings is None:
        readings = {uuid(index): reading() for index in own}
    if past is None:
        past = {uuid(index): points() for index in own}
    return Moment(NOW, seen, readings, Past(past), running, problem)


def waiting():
    """Somebody who waits for two GPUs."""
    return (waiter("w", gpus=2),)
