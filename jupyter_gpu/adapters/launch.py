"""The start of this process: who it was, and what CUDA_VISIBLE_DEVICES was then.

``/proc/self/environ`` keeps what stood there at exec, whatever was changed since: the only witness
to what a program was launched with. Imports only names of ours, so that an extension loads quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu.core.variables import STARTER, STARTS_AGAIN

VISIBLE = "CUDA_VISIBLE_DEVICES"
WRAPPER = "jupyter_gpu.kernel"


@dataclass(frozen=True, slots=True)
class Launch:
    """A process's pid, and its value of CUDA_VISIBLE_DEVICES at the start, None when not set."""

    pid: int
    visible: str | None

    @classmethod
    def of_this_process(cls) -> Launch:
        """Return this process's own; to be asked early, before a fork or a change."""
        return cls(os.getpid(), launched_with(VISIBLE))


def launched_with(name: str) -> str | None:
    """Return a variable's value at the start of this process, or None when it was not set.

    The kernel wrapper sets variables in the process that becomes the kernel, before any of the
    person's code: there, and where there is no /proc, the value now is the answer, so ask early.
    """
    if WRAPPER in sys.orig_argv:
        return os.environ.get(name)
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return os.environ.get(name)
    wanted = name.encode() + b"="
    for item in block.split(b"\0"):
        if item.startswith(wanted):
            return os.fsdecode(item[len(wanted) :])
    return None


def starter(environ: Mapping[str, str]) -> str | None:
    """Return the word of the provisioner that started this very kernel; None where none has."""
    pid, _, word = environ.get(STARTER, "").partition(" ")
    return word if pid == str(os.getppid()) else None


def restarts_by_itself(environ: Mapping[str, str]) -> bool:
    """Return whether whoever started this kernel starts it again when it ends by itself."""
    return starter(environ) == STARTS_AGAIN
