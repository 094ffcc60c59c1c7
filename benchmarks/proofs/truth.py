"""Part h: what ``%gpu`` says in a kernel is what the driver, NVML and the libraries say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pairs

from proofs.findings import Findings
from proofs.place import Workplace

GIB = 2**30
PEAK_WITHIN = 0.02
JOULES_WITHIN = 0.05
# Module, what imports it, and the first call that initialises CUDA (facts measured before).
LIBRARIES = (
    ("torch", "import torch", "torch.cuda.is_available()"),
    ("torch", "import torch\nn = torch.cuda.device_count()", "x = torch.ones(3).cuda()"),
    ("jax", "import jax", "jax.devices()"),
    ("cupy", "import cupy", "cupy.cuda.runtime.getDeviceCount()"),
    ("numba", "from numba import cuda", "len(cuda.gpus)"),
    ("accelerate", "from accelerate import Accelerator", "a = Accelerator()"),
    ("transformers", "import transformers", "import torch; torch.cuda.current_device()"),
    ("lightning", "import lightning", "import torch; torch.cuda.current_device()"),
)
HOG = """
import sys, torch
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("taken", flush=True)
sys.stdin.read()
"""
WORK = """%%gpu -o measured
kept = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
big = torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda")
del big
a = torch.ones(8192, 8192, device="cuda")
for _ in range(400):
    b = a @ a
torch.cuda.synchronize()
"""


def prove(place: Workplace, findings: Findings) -> None:
    """Prove each statement in a kernel of its own."""
    for module, bring, use in LIBRARIES:
        _prove_library(findings, module, bring, use)
    _prove_late_change(place, findings)
    _prove_wrong_ids(findings)
    _prove_out_of_memory(place, findings)
    _prove_measurement(findings)
    _prove_limit_and_free(findings)
    _prove_rest(findings)


@contextlib.contextmanager
def kernel_manager(**environ: str) -> Iterator[object]:
    """Start a plain ipykernel that loads our extension, as any front end may; give its manager."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    words = [sys.executable, "-m", "ipykernel_launcher", "--ext=jupyter_gpu"]
    manager._kernel_spec = KernelSpec(argv=[*words, "-f", "{connection_file}"], language="python")
    manager.start_kernel(env={**os.environ, **environ})
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@contextlib.contextmanager
def _kernel(**environ: str) -> Iterator[object]:
    sys.path.insert(0, str(pairs.ROOT / "tests"))
    from cell_kernel import CellKernel

    with kernel_manager(**environ) as manager:
        kernel = CellKernel(manager)
        try:
            yield kernel
        finally:
            kernel.client.stop_channels()


def _process(kernel) -> dict:
    cell = kernel.run("import json\nstate = %gpu --json\nprint(json.dumps(state))")
    return json.loads(cell.printed.splitlines()[-1])["process"]


def _prove_library(findings: Findings, module: str, bring: str, use: str) -> None:
    shown = f"{bring.splitlines()[-1]}: open; then {use.rsplit('; ', maxsplit=1)[-1]}: frozen"
    with _kernel() as kernel:
        brought = kernel.run(bring)
        if "ModuleNotFoundError" in brought.error:
            findings.not_run(shown, f"{module} is not installed here")
            return
        before = _process(kernel)
        used = kernel.run(use)
        after = _process(kernel)
    named = after["frozen_by"] or {}
    findings.check(
        shown,
        (before["state"], after["state"]) == ("open", "frozen")
        and named.get("cell") == used.number
        and named.get("import") is None
        and not (brought.hints or used.hints),
        f"{before['state']}, {after['state']}, by {named}, {brought.error}{used.error}",
        imports=after["imports"],
    )


def _prove_late_change(place: Workplace, findings: Findings) -> None:
    first = place.gpus[0]
    with _kernel() as kernel:
        kernel.run("import torch\nok = torch.cuda.is_available()")
        said = kernel.run("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'")
        process = _process(kernel)
        count = kernel.run("torch.cuda.device_count()").result
        where = kernel.run("str(torch.cuda.get_device_properties(0).uuid)").result
    uuid = (process["in_force"] or [{}])[0].get("uuid") or ""
    findings.check(
        "is_available(), then CUDA_VISIBLE_DEVICES=1: one warning, in force physical 0",
        len(said.hints) == 1
        and "changes nothing in this kernel" in said.hint
        and "cell [1] (torch.cuda.is_available)" in said.hint
        and "cuda:0 = physical 0" in said.hint
        and uuid == first.uuid
        and where.strip("'") in uuid,
        f"{said.hint} torch.cuda.device_count() answers {count}",
    )


def _prove_wrong_ids(findings: Findings) -> None:
    with _kernel(CUDA_VISIBLE_DEVICES="0") as kernel:
        kernel.run("import torch\nmodel = torch.nn.Linear(2, 2).cuda()")
        wrong = kernel.run("torch.nn.DataParallel(model, device_ids=[1, 2])")
        computed = kernel.run("n = 3\ntorch.ones(3).to(f'cuda:{n}')")
    findings.check(
        "DataParallel(device_ids=[1, 2]) with one GPU: the hint names the ids that work",
        "device_ids=[0]" in wrong.hint and "0 = physical 0" in wrong.hint,
        f"{wrong.error}: {wrong.hint}",
    )
    findings.check(
        "a computed cuda:3 with one GPU is explained",
        "cuda:3" in computed.hint and "1 device" in computed.hint,
        f"{computed.error.splitlines()[0]}: {computed.hint}",
    )


def _prove_out_of_memory(place: Workplace, findings: Findings) -> None:
    free = place.gpus[0].memory_total_bytes or 0
    taken = free // 2
    with subprocess.Popen(
        [sys.executable, "-c", HOG, str(taken)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as hog:
        try:
            hog.stdout.readline()
            with _kernel(CUDA_VISIBLE_DEVICES="0") as kernel:
                kernel.run("import torch\nmine = torch.empty(2**32, dtype=torch.uint8).cuda()")
                failed = kernel.run(
                    f"torch.empty({free * 3 // 4}, dtype=torch.uint8, device='cuda')"
                )
        finally:
            hog.stdin.close()
    findings.check(
        "out of memory: who else is on the device, with how much",
        str(hog.pid) in failed.hint and "cuda:0 (physical 0)" in failed.hint,
        f"{failed.error.splitlines()[0]}: {failed.hint}",
        other_gib=round(taken / GIB, 1),
    )


def _prove_measurement(findings: Findings) -> None:
    with _kernel(CUDA_VISIBLE_DEVICES="0") as kernel:
        kernel.run("import torch\nx = torch.ones(3).cuda()")
        before = _millijoules()
        cell = kernel.run(WORK)
        after = _millijoules()
        own = int(kernel.run("torch.cuda.max_memory_allocated()").result)
        measured = json.loads(
            kernel.run("import json\nprint(json.dumps(measured.as_json()))").printed
        )
    device = measured["devices"][0]
    peak, joules = (device["torch"] or {}).get("allocated_peak_bytes"), device["energy_joules"]
    around = (after - before) / 1000
    findings.check(
        "%%gpu: its peak is torch's own max_memory_allocated within 2 %",
        peak is not None and abs(peak - own) <= PEAK_WITHIN * own,
        f"{peak} and {own} bytes",
        measured=measured,
        text=cell.hints,
    )
    findings.check(
        "%%gpu: its joules are what NVML's counter gives from outside, within 5 %",
        joules is not None and abs(joules - around) <= JOULES_WITHIN * around,
        f"{joules} J, from outside {around:.1f} J",
    )


def _millijoules() -> int:
    import pynvml

    return pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))


def _prove_limit_and_free(findings: Findings) -> None:
    with _kernel(CUDA_VISIBLE_DEVICES="0") as kernel:
        kernel.run("import torch\nx = torch.ones(3).cuda()")
        told = kernel.run("%gpu limit 10%")
        over = kernel.run("y = torch.empty(30 * 2**30, dtype=torch.uint8, device='cuda')")
        kernel.run("%gpu limit off")
        kernel.run("big = torch.empty(8 * 2**30, dtype=torch.uint8, device='cuda')\ndel big")
        kernel.run("kept = torch.empty(2**30, dtype=torch.uint8, device='cuda')")
        freed = kernel.run("%gpu free")
    findings.check(
        "%gpu limit 10%: more than that is refused by torch, and the hint speaks of the cap",
        "OutOfMemoryError" in over.error and bool(over.hints),
        f"{told.answer} {over.hint}",
    )
    findings.check(
        "%gpu free: gives back what nothing uses, and names the variable that holds the rest",
        "kept" in freed.answer and "GiB" in freed.answer,
        freed.answer,
    )


def _prove_rest(findings: Findings) -> None:
    with _kernel() as kernel:
        began = time.perf_counter()
        check = kernel.run("import json\nc = %gpu check --json\nprint(json.dumps(c))")
        took = time.perf_counter() - began
        topo = kernel.run("import json\nt = %gpu topo --json\nprint(json.dumps(t))")
        text = kernel.run("%gpu topo")
        state = _process(kernel)["state"]
    checks = json.loads(check.printed.splitlines()[-1])["checks"]
    bad = [one for one in checks if one["status"] == "fail"]
    findings.check(
        "%gpu check on a healthy machine: nothing fails, and CUDA stays open",
        not bad and state == "open",
        f"{len(checks)} checks in {took:.1f} s; {bad}",
        checks=checks,
    )
    findings.measured("%gpu topo", text.answer)
    findings.check(
        "%gpu topo tells a NUMA node or a CPU list of the GPU",
        "cpus" in topo.printed,
        topo.printed[:400],
    )
