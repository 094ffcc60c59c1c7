"""A lease that this process has inherited from whoever started it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping

from jupyter_gpu.core.variables import LEASE, LEASE_FD


def take_inherited_lease(environ: MutableMapping[str, str], lock_path: str) -> bool:
    """Return whether this process holds an inherited lease, and keep its children from it.

    The descriptor's number is inherited further down, where it may mean anything: it counts only
    while it is the lock file, and the variable that names it is dropped. Forked children keep the
    lease all the same, because they may go on using the devices; programs that are started do not.
    """
    number = environ.pop(LEASE_FD, "")
    if LEASE not in environ:
        return False
    try:
        found, wanted = os.fstat(int(number)), os.stat(lock_path)  # noqa: PTH116 - hot path
    except (OSError, ValueError, OverflowError):  # not open, no number, larger than any descriptor
        return False
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
        return False
    keep_from_programs(number)
    return True


def keep_from_programs(descriptor: str) -> None:
    """Keep a lease's descriptor from the programs that this process starts; its forks keep it."""
    with contextlib.suppress(OSError, ValueError, OverflowError):  # closed by a launcher between us
        os.set_inheritable(int(descriptor), False)  # noqa: FBT003 - the standard library
