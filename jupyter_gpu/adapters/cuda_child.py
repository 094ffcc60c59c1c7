"""The CUDA driver as a fresh process with this process's variables finds it.

``cuInit`` settles a process's devices for good, so nobody may call it here to look. A Python of its
own may: it starts by exec, reads the variables anew, holds no memory of a GPU, and is gone at once.
What kills it (a broken driver) leaves this process alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from jupyter_gpu.core.facts import DriverAnswer

LONGEST_SECONDS = 20.0  # cuInit takes seconds where no program keeps eight GPUs awake
_ASK = """
import ctypes, json
def ask():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"found": False}
    version, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    answer = {"found": True, "version": version.value, "cuinit": cuda.cuInit(0), "uuids": []}
    if answer["cuinit"] == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        name = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        for ordinal in range(count.value):
            raw = (ctypes.c_ubyte * 16)()
            cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
            name(ctypes.byref(raw), handle)
            answer["uuids"].append(bytes(raw).hex())
    return answer
print(json.dumps(ask()))
"""


def ask_in_child(
    environ: Mapping[str, str], *, seconds: float = LONGEST_SECONDS, python: str | None = None
) -> DriverAnswer:
    """Return what the CUDA driver tells a process with these variables.

    Parameters
    ----------
    environ
        The whole environment of that process.
    seconds
        How long to wait for it.
    python
        The Python that asks, this one by default.
    """
    # -I and -S: nothing of the person's is imported there, and it starts in a few milliseconds.
    command = (python or sys.executable or "python3", "-I", "-S", "-c", _ASK)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd=os.sep,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return DriverAnswer(problem=f"it did not answer within {seconds:g} s")
    except OSError as error:
        return DriverAnswer(problem=f"{command[0]} cannot be run: {error.strerror}")
    if done.returncode < 0:
        return DriverAnswer(problem=f"it was ended by {_signal_name(-done.returncode)}")
    try:
        return _read(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return DriverAnswer(problem=lines[-1] if lines else f"it ended with {done.returncode}")


def _read(answer: Mapping[str, object]) -> DriverAnswer:
    if not answer["found"]:
        return DriverAnswer(found=False)
    cuinit, version, uuids = answer["cuinit"], answer["version"], answer["uuids"]
    if not (isinstance(cuinit, int) and isinstance(version, int) and isinstance(uuids, list)):
        raise TypeError("not the answer of our own program")
    # 1000 * major + 10 * minor
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version > 0 else None
    return DriverAnswer(cuinit=cuinit, cuda=cuda, uuids=tuple(map(str, uuids)))


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
