"""What this process runs in: a container, a pid namespace, a kernel module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from jupyter_gpu.adapters import processes

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
