"""The machine that a benchmark runs on: its own GPUs, else doubles of the driver, else simulated."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pairs

_DOUBLES = pairs.ROOT / "tests" / "doubles"
_LIBRARIES = {
    "libnvidia-ml.so.1": ("nvml.c", "nvml_parts.c", "nvml_calls.c", "inventory.c"),
    "libcuda.so.1": ("cuda.c", "inventory.c"),
}
# Measured on two H200s, driver 580: nvmlInit, and 8.3 ms for all readings of both, nearly all of it
# utilisation and power.
_DELAYS_MS = {"nvmlInit": 13, "nvmlDeviceGetUtilizationRates": 2.9, "nvmlDeviceGetPowerUsage": 1.2}
_DOUBLE_GPU = {
    "name": "NVIDIA H200",
    "memory_total_bytes": 150_754_820_096,
    "memory_used_bytes": 0,
    "utilization_percent": 0,
    "temperature_celsius": 31,
    "power_watts": 75.5,
}


@dataclass(frozen=True, slots=True)
class Where:
    """What the numbers were measured on, and the variables that make a program see it."""

    words: str
    environment: Mapping[str, str]


def find(folder: Path) -> Where:
    """Return this machine's own GPUs, or a machine of doubles made in ``folder``, or simulated."""
    count = count_gpus()
    if count:
        return Where(f"{count} real GPUs" if count > 1 else "1 real GPU", {})
    if shutil.which("cc") is not None and _DOUBLES.is_dir():
        words = "doubles of the driver that take as long as two H200s do"
        return Where(words, make_doubles(folder, delays_ms=_DELAYS_MS))
    return Where("simulated 2xH200", {"JUPYTER_GPU_SIMULATE": "2xH200"})


def count_gpus() -> int:
    """Return how many GPUs NVML reports to a fresh process."""
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=pairs.child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else 0


def make_doubles(
    folder: Path, gpus: int = 2, delays_ms: Mapping[str, float] | None = None
) -> dict[str, str]:
    """Build the tests' doubles of libnvidia-ml and libcuda, and return what makes them used."""
    for name, sources in _LIBRARIES.items():
        script = f"-Wl,-soname,{name},--version-script,{_DOUBLES / 'exports.map'}"
        files = [str(_DOUBLES / source) for source in sources]
        flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", script]
        subprocess.run(["cc", *flags, "-o", str(folder / name), *files], check=True)
    described = [
        {
            "uuid": f"GPU-{'abcd'[index] * 4}{index:04x}-5d9e-4a86-9c04-{index:012x}",
            "pci_bus_id": f"00000000:{0x1B + index:02X}:00.0",
            "minor": index,
            **_DOUBLE_GPU,
        }
        for index in range(gpus)
    ]
    path = folder / "machine.json"
    path.write_text(json.dumps({"gpus": described, "delays_ms": delays_ms or {}}))
    return {"LD_LIBRARY_PATH": str(folder), "JUPYTER_GPU_DOUBLE": str(path)}
