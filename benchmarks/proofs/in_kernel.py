"""What runs inside the kernels, and in the processes that they start: it uses the devices.

Every function prints one line of JSON, because that is what comes back from a cell.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

KEPT = []  # what must live as long as the kernel
MIB, GIB = 2**20, 2**30


def driver_uuids() -> tuple[int, list[str]]:
    """Initialise the driver, and return cuInit's code and the digits of the UUIDs it shows."""
    cuda = ctypes.CDLL("libcuda.so.1")
    code = cuda.cuInit(0)
    count = ctypes.c_int()
    if code or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return code, []
    found = []
    for ordinal in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetUuid_v2(ctypes.byref(raw), device)
        found.append(bytes(raw).hex())
    return code, found


def digits(uuid: str) -> str:
    """Return a UUID's 32 digits: programs disagree about prefixes and dashes."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "").lower()


def tell_devices() -> None:
    """Say which devices torch and the driver have here."""
    import torch

    count = torch.cuda.device_count()
    by_torch = [digits(str(torch.cuda.get_device_properties(n).uuid)) for n in range(count)]
    used = [float(torch.ones(8, device=f"cuda:{n}").sum()) for n in range(count)]
    _say(
        torch=by_torch,
        driver=driver_uuids()[1],
        computed=used == [8.0] * count,
        value=os.environ.get("CUDA_VISIBLE_DEVICES"),
        lease=os.environ.get("JUPYTER_GPU_LEASE"),
    )


def take_memory(mib: int) -> None:
    """Keep memory of the first device."""
    import torch

    KEPT.append(torch.ones(mib * MIB // 4, device="cuda"))
    torch.cuda.synchronize()
    _say(pid=os.getpid())


def tell_memory() -> None:
    """Say what torch sees of the first device's memory and multiprocessors."""
    import torch

    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    names = ("MPS", "ALLOC_CONF", "MEM_FRACTION", "VISIBLE")
    _say(
        free_gib=round(free / GIB, 2),
        total_gib=round(total / GIB, 2),
        properties_gib=round(properties.total_memory / GIB, 2),
        multiprocessors=properties.multi_processor_count,
        variables={
            name: value
            for name, value in os.environ.items()
            if any(part in name for part in names) and "DIRECTORY" not in name
        },
    )


def take_until_refused() -> None:
    """Take memory with torch, a gibibyte at a time, until it is refused; then give it back."""
    import torch

    kept, error = [], None
    while error is None and len(kept) < 200:
        try:
            kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
        except RuntimeError as refused:
            error, words = type(refused).__name__, str(refused).split(". ")[0]
    taken = len(kept)
    kept.clear()
    torch.cuda.empty_cache()
    _say(taken_gib=taken, error=error, words=words if error else None)


def take_until_refused_by_jax() -> None:
    """The same with JAX, whose allocator keeps what it has."""
    import jax
    import jax.numpy as jnp

    kept, error, words = [], None, None
    while error is None and len(kept) < 200:
        try:
            kept.append(jnp.zeros((GIB,), dtype=jnp.uint8).block_until_ready())
        except Exception as refused:
            error, words = type(refused).__name__, str(refused).split("\n")[0][:200]
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    taken = len(kept)
    kept.clear()
    _say(taken_gib=taken, error=error, words=words, limit_gib=round(limit / GIB, 2))


def let_a_child_take(gib: int) -> None:
    """Take so much, and let a child process of this kernel try the same beside it."""
    import torch

    KEPT.append(torch.empty(gib * GIB, dtype=torch.uint8, device="cuda"))
    code = f"import torch; torch.empty({gib} * 2**30, dtype=torch.uint8, device='cuda'); print(1)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    _say(took=done.stdout.strip() == "1", said=done.stderr.strip().split("\n")[-1][:200])


def tell_cpus() -> None:
    """Say on which CPUs this kernel may run."""
    _say(cpus=sorted(os.sched_getaffinity(0)))


def start_workers(mib: int) -> None:
    """Use the device, then start two DataLoader workers by fork, which stay."""
    import torch
    from torch.utils.data import DataLoader

    KEPT.append(torch.ones(mib * MIB // 4, device="cuda"))
    torch.cuda.synchronize()
    loader = DataLoader(
        range(64), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    batches = iter(loader)
    KEPT.append((loader, batches, next(batches)))
    _say(pids=[worker.pid for worker in batches._workers])


def compute(ready: str) -> None:
    """Compute on the first device until killed; write our pid into ``ready`` once that runs."""
    import torch

    numbers = torch.ones(2048, 2048, device="cuda")
    (numbers @ numbers).sum().item()
    written = Path(ready + ".new")
    written.write_text(str(os.getpid()))
    written.rename(ready)
    while True:
        (numbers @ numbers).sum().item()
        time.sleep(0.005)


def start_child(how: str, ready: str) -> None:
    """Start a process that computes: by ``spawn``, ``forkserver`` or ``popen``."""
    if how == "popen":
        code = f"from proofs.in_kernel import compute; compute({ready!r})"
        child = subprocess.Popen([sys.executable, "-c", code])
    else:
        child = multiprocessing.get_context(how).Process(target=compute, args=(ready,))
        child.start()
    KEPT.append(child)
    _say(pid=child.pid)


def _say(**values: object) -> None:
    print(json.dumps(values))
