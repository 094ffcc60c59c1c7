"""Builds the doubles with the machine's C compiler."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
LIBRARIES = {
    "libnvidia-ml.so.1": (
        "nvml.c",
        "nvml_parts.c",
        "nvml_topology.c",
        "nvml_calls.c",
        "inventory.c",
    ),
    "libcuda.so.1": ("cuda.c", "inventory.c"),
}
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def compiler():
    """Return the C compiler; without one the tests are skipped, but never in CI."""
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        reason = "no C compiler (cc) to build the driver doubles with"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def build(directory, *, old=False):
    """Build both libraries into a directory and return it; ``old`` is a driver before 510."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, sources in LIBRARIES.items():
        command = [
            compiler(),
            *FLAGS,
            *(["-DOLD_DRIVER"] if old else []),
            f"-Wl,-soname,{name},--version-script,{SOURCES / 'exports.map'}",
            "-o",
            str(directory / name),
            *(str(SOURCES / source) for source in sources),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return directory
