"""What this process runs in: a container, a pid namespace, an MPS daemon, a kernel module."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from jupyter_gpu.adapters import processes
from jupyter_gpu.core.facts import MPS

_DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default
_DAEMON = "nvidia-cuda-mps-control"
_MARKS = ("/.dockerenv", "/run/.containerenv")
_HOST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of linux/proc_ns.h
_MODULE = re.compile(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)\s")


def in_container(environ: Mapping[str, str], *, root: str = "/") -> bool:
    """Return whether this is a container, by the marks that Docker, Podman and others leave."""
    marks = (Path(root, mark.lstrip("/")) for mark in _MARKS)
    return "container" in environ or any(mark.exists() for mark in marks)


def has_foreign_pids() -> bool:
    """Return whether the pids here are not the host's, which are those that NVML tells."""
    return processes.pid_namespace() not in (None, _HOST_PID_NAMESPACE)


def kernel_module(path: str = "/proc/driver/nvidia/version") -> str | None:
    """Return the version of the NVIDIA module in the system's kernel, None where there is none."""
    try:
        found = _MODULE.search(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if found is None else found[1]


def find_mps(environ: Mapping[str, str]) -> MPS:
    """Return where MPS clients of this environment look, and whether a daemon runs there.

    Nothing is connected to. A pipe left by a daemon of another pid namespace leaves it unknown.
    """
    directory = environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_PIPES
    if not os.path.lexists(os.path.join(directory, "control")):  # noqa: PTH118 - may not be a path
        return MPS(directory, daemon=False)
    pid = _pid_in(Path(directory, f"{_DAEMON}.pid"))
    command = None if pid is None else processes.command_line(pid)
    if command is not None and _DAEMON in command:
        return MPS(directory, daemon=True)
    return MPS(directory, daemon=None if has_foreign_pids() or pid is None else False)


def _pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
