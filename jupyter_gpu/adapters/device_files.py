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

_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*\s|ipykernel|\bmultiprocessing\b")


def users_of(
    indices: Mapping[int, int], *, folder: str = "/dev", ours: int | None = None
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


def _opened(pid: int, wanted: Mapping[str, int]) -> set[int]:
    folder, found = f"/proc/{pid}/fd", set()
    with contextlib.suppress(OSError):  # not ours to look into, or gone
        for descriptor in os.listdir(folder):  # noqa: PTH208 - a hot path on plain strings
            with contextlib.suppress(OSError, KeyError):  # closed meanwhile, or something else
                found.add(wanted[os.readlink(f"{folder}/{descriptor}")])  # noqa: PTH115
    return found


def _is_orphan(info: processes.ProcessInfo) -> bool:
    """Tell whether a process is a Python worker whose session has no leader any more.

    A kernel leads a session of its own. Daemons lose theirs on purpose, so only Python counts.
    """
    if info.session in (0, info.pid) or _PYTHON.search(info.command + " ") is None:
        return False
    leader = processes.look(info.session)
    return leader is None or leader.state in "ZX"
