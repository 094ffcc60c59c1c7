"""A machine made of the doubles: write its inventory, run processes on it."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

GIB = 2**30
H200_BYTES = 150_754_820_096
_STARTS = ("aaaa1111", "bbbb2222", "cccc3333", "dddd4444")
_NOT_INHERITED = ("CUDA_", "NVIDIA_", "SLURM_", "JUPYTER_GPU_")


def gpu(index=0, **changes):
    """Describe one idle H200; ``changes`` replace keys of the inventory file, None removes one."""
    start = _STARTS[index] if index < len(_STARTS) else f"{index:08x}"
    described = {
        "uuid": f"GPU-{start}-5d9e-4a86-9c04-{index:012x}",
        "name": "NVIDIA H200",
        "pci_bus_id": f"00000000:{0x1B + index:02X}:00.0",
        "memory_total_bytes": H200_BYTES,
        "memory_used_bytes": 0,
        "memory_reserved_bytes": 645_000_000,
        "utilization_percent": 0,
        "temperature_celsius": 31,
        "power_watts": 75.5,
        "power_limit_watts": 700,
        "mig_mode": False,
        "minor": index,
    }
    return {key: value for key, value in (described | changes).items() if value is not None}


def mig(slot=0, profile="1g.18gb", **changes):
    """Describe one MIG device of an H200."""
    described = {
        "uuid": f"MIG-{slot + 1:04x}{slot + 1:04x}-5d9e-5a86-9c04-{slot:012x}",
        "profile": profile,
        "slot": slot,
        "memory_total_bytes": 16 * GIB,
        "memory_used_bytes": 0,
    }
    return {key: value for key, value in (described | changes).items() if value is not None}


class DriverDouble:
    """A machine whose driver is the doubles: ``libraries`` is their folder, ``path`` its file."""

    def __init__(self, libraries, path):
        self.libraries = Path(libraries)
        self.path = Path(path)

    def write(self, *gpus, **machine):
        """Replace the machine by these GPUs; running processes see it at their next call."""
        # Renamed into place: a reader never sees half a file, and the new inode shows the change
        # even within one tick of the clock.
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({**machine, "gpus": gpus}))
        fresh.replace(self.path)
        return self

    def environment(self, **variables):
        """Return the environment of a process on this machine, free of the host's own GPUs."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
        }
        return {
            **kept,
            "LD_LIBRARY_PATH": str(self.libraries),
            "JUPYTER_GPU_DOUBLE": str(self.path),
            **variables,
        }

    def run(self, *command, stdin=None, **variables):
        """Run a command on this machine and return what it printed."""
        done = subprocess.run(
            command,
            env=self.environment(**variables),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stderr}"
        return done.stdout

    def python(self, code, *, stdin=None, **variables):
        """Run Python code on this machine, warnings being errors, and return what it printed."""
        return self.run(sys.executable, "-W", "error", "-c", code, stdin=stdin, **variables)

    @contextlib.contextmanager
    def reader(self, **variables):
        """Start a process that reads the machine through our own adapter.

        Gives ``read(sensors=True)``, which returns the Inventory that an NVMLMachine, kept open in
        that process, reports at that moment; ``read(topology=True)`` returns its Topology.
        """
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("reader.py"))],
            env=self.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

        def read(*, sensors=True, topology=False):
            asked = {"sensors": sensors, "topology": topology}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            return pickle.load(process.stdout)

        with process:
            try:
                yield read
            finally:
                process.stdin.close()
                assert process.wait(timeout=10) == 0
