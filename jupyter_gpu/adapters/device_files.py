"""Who has GPUs' device files open, whatever the driver library says.

A worker that was forked from a kernel has no context, so NVML does not list it; the memory stays
taken for as long as it has ``/dev/nvidia<minor>`` open all the same (measured on H200). Only one's
own processes can be looked into, or everybody's by root.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from jupyter_gpu.adapters import processes
from jupyter_gpu.core.facts import DeviceUser
from jupyter_gpu.core.variables import LEASE

DEVICE_FOLDER = "/dev"
_GPU = re.compile(r"nvidia[0-9]+")
_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*\s|ipykernel|\bmultiprocessing\b")
# How the commands of kernels read, and of the workers that multiprocessing spawns for them.
_WORKER = re.compile(r"ipykernel|jupyter_gpu\.kernel|\bmultiprocessing\b")
# Variables that Jupyter, or this package, gives to a kernel; what it starts inherits them.
_KERNEL_MARKS = (b"JPY_PARENT_PID=", f"{LEASE}=".encode())
_ENVIRONMENT_LIMIT = 1 << 20


def users_of(
    indices: Mapping[int, int], *, folder: str = DEVICE_FOLDER, ours: int | None = None
) -> tuple[DeviceUser, ...]:
    """Return the processes that have GPUs open, by pid.

    Parameters
    ----------
    indices
        The physical index of each minor number, which is not the index.
    folder
        Where the device files stand.
    ours
        A process that is left out: this one knows what it does.
    """
    wanted = {f"{folder}/nvidia{minor}": index for minor, index in indices.items()}
    found = []
    for pid in sorted(processes.all_pids()) if wanted else ():
        opened = set() if pid == ours else _opened(pid, wanted)
        info = processes.look(pid) if opened else None
        if info is not None:
            found.append(
                DeviceUser(pid, info.user, info.command, tuple(sorted(opened)), _is_orphan(info))
            )
    return tuple(found)


def has_gpu_open(pid: int, *, folder: str = DEVICE_FOLDER) -> bool | None:
    """Return whether a process has any GPU's device file open; None where one may not look."""
    paths = _open_paths(pid)
    if paths is None:
        return None
    return any(
        path.startswith(f"{folder}/") and _GPU.fullmatch(path[len(folder) + 1 :]) for path in paths
    )


def _opened(pid: int, wanted: Mapping[str, int]) -> set[int]:
    return {wanted[path] for path in _open_paths(pid) or () if path in wanted}


def _open_paths(pid: int) -> list[str] | None:
    """Return the paths that a process has open, None where it is gone or not ours to look into."""
    folder, found = f"/proc/{pid}/fd", []
    try:
        for descriptor in os.listdir(folder):  # noqa: PTH208 - a hot path on plain strings
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(f"{folder}/{descriptor}"))  # noqa: PTH115
    except OSError:  # of one's own processes of another group all but the links can be read
        return None
    return found


def _is_orphan(info: processes.ProcessInfo) -> bool:
    """Tell whether a process is a Python worker that has outlived its kernel.

    A kernel leads a session of its own and is gone. Daemons lose theirs on purpose, so only Python
    counts; programs that were meant to outlive a terminal lose theirs too, so what is left of the
    family has to look like a kernel's.
    """
    if info.session in (0, info.pid) or _PYTHON.search(info.command + " ") is None:
        return False
    leader = processes.look(info.session)
    if leader is not None and leader.state not in "ZX":
        return False
    # A shell gives each of its jobs a process group; a kernel's workers stay in their kernel's.
    if _group(info.pid) != info.session:
        return False
    eldest = _eldest(info)
    return _WORKER.search(eldest.command) is not None or _has_kernel_mark(eldest.pid)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _eldest(info: processes.ProcessInfo) -> processes.ProcessInfo:
    """Return the living ancestor of a process that stands highest in its session."""
    parent = processes.look(info.parent)
    while parent is not None and parent.session == info.session and parent.state not in "ZX":
        info, parent = parent, processes.look(parent.parent)
    return info


def _has_kernel_mark(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - a plain string
            variables = file.read(_ENVIRONMENT_LIMIT).split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(_KERNEL_MARKS) for variable in variables)
