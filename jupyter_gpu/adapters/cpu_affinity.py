"""CPU affinity: which CPUs this process may use, and keeping a new process to some of them.

Linux has this for programs of every user; on macOS and Windows there is nothing to choose from,
and whoever asks is told so.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection

from jupyter_gpu.adapters.processes import look
from jupyter_gpu.core.topology import cpu_list

# Threads that an unbound thread starts while the others are bound are found at the next look;
# those that a bound thread starts are bound from the beginning.
_LOOKS = 8


def allowed_cpus() -> frozenset[int] | None:
    """Return the CPUs that this thread may use, and so a process that it starts.

    None where the system does not know such a thing, or does not tell.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        return frozenset(os.sched_getaffinity(0))
    except OSError:
        return None


def nearest_allowed(cpus: Collection[int] | None) -> tuple[int, ...] | None:
    """Return those of the CPUs that may be used here, in order, or None to leave all as it is.

    There is nothing to bind to where none of them may be used (a container on other CPUs), and no
    need where all that may be used are among them (one socket). However few they are, they are
    taken: whoever asks for near CPUs gets no far ones.
    """
    allowed = allowed_cpus()
    if cpus is None or allowed is None:
        return None
    near = allowed.intersection(cpus)
    return tuple(sorted(near)) if near and near != allowed else None


def bind(pid: int, cpus: Collection[int]) -> str | None:
    """Keep a process that has just been started to these CPUs, with all threads that it has.

    What it starts later is bound with it. A process that it has already started is not: call this
    as soon as the process is there.

    Returns
    -------
    str or None
        None when it is done, else a sentence that says why it is not. This never raises: a kernel
        on far CPUs is better than none.
    """
    trouble = _trouble(pid, cpus)
    if trouble is None:
        return None
    return f"Process {pid} is not bound to CPUs {cpu_list(cpus) or '–'}: {trouble}."


def _trouble(pid: int, cpus: Collection[int]) -> str | None:
    if not hasattr(os, "sched_setaffinity"):
        return "this system does not let one choose"
    if pid <= 0:  # which would mean the caller
        return "that is no process"
    try:
        os.sched_setaffinity(pid, cpus)
        _bind_threads(pid, cpus)
    except (OSError, ValueError, OverflowError) as error:
        return _reason(error)
    info = look(pid)
    # The system also "binds" what has ended and was not waited for yet.
    return "it has ended" if info is not None and info.state in "ZX" else None


def _bind_threads(pid: int, cpus: Collection[int]) -> None:
    """Bind the threads that a process has beside its first one."""
    bound = {pid}
    for _ in range(_LOOKS):
        threads = {int(name) for name in os.listdir(f"/proc/{pid}/task")} - bound  # noqa: PTH208
        if not threads:
            return
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):  # this thread has ended meanwhile
                os.sched_setaffinity(thread, cpus)
        bound |= threads


def _reason(error: OSError | ValueError | OverflowError) -> str:
    if isinstance(error, (ProcessLookupError, FileNotFoundError)):
        return "it has ended"
    if isinstance(error, PermissionError):
        return "that is not permitted"
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return "none of them may be used"
    return str(error)
