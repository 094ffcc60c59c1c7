"""The lease of this very process: found by its descriptor, because nothing else can be trusted.

Variables are inherited by programs for which they mean nothing, and objects get lost; a descriptor
of the lock file whose description keeps a lease of this kernel alive is that lease.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import Place, find_place
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.environment import without_caps
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.variables import LEASE

_DESCRIPTORS = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class OwnLease:
    """A lease that this process keeps alive: its descriptor, and what its record says."""

    fd: int
    record: Record
    place: Place

    @property
    def has_keeper(self) -> bool:
        """Whether a server holds it too, and goes on holding it through a restart."""
        return self.record.owner.keeper is not None


def find_own_lease(environ: Mapping[str, str], place: Place | None = None) -> OwnLease | None:
    """Return the lease on which this process's kernel runs, or None where nobody has leased for it.

    A lease that the kernel runs under, or that the person's own code has taken, is not the one.
    """
    place = place or find_place(environ, simulated=is_simulated(environ))
    descriptors = tuple(_descriptors(place))
    if not descriptors:
        return None
    try:
        with Witness(place) as witness:
            for fd in descriptors:
                record = _lease_on(witness, fd, environ.get(LEASE))
                if record is not None:
                    return OwnLease(fd, record, place)
    except StoreError:  # replaced or spoilt since: nothing there can be changed
        return None
    return None


def above(environ: Mapping[str, str], own: OwnLease | None) -> dict[str, str]:
    """Return the environment of this process as it would be without the lease of its own."""
    result = dict(environ) if own is None else without_caps(environ)
    if own is not None:
        result.pop(LEASE, None)
        if own.record.ancestors:
            result[LEASE] = own.record.ancestors[-1]
    return result


def _descriptors(place: Place) -> Iterator[int]:
    """Yield this process's descriptors of the lock file, the lowest first."""
    try:
        wanted = place.lock_path.stat()
        numbers = sorted(map(int, os.listdir(_DESCRIPTORS)))  # noqa: PTH208 - /proc
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):  # the one that has listed them
            found = os.fstat(number)
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                yield number


def _lease_on(witness: Witness, fd: int, named: str | None) -> Record | None:
    for lease_id in witness.leases_on(fd):
        record = witness.own_record(lease_id)
        if record is None and lease_id == named:
            # Its record is lost, and can be written again.
            owner = Owner("kernel", processes=(processes.reference(os.getpid()),))
            return Record(lease_id, owner, since="")
        if record is None or record.owner.kind != "kernel" or record.ticket is not None:
            continue
        if lease_id == named or _is_of_this_process(record.owner):
            return record
    return None


def _is_of_this_process(owner: Owner) -> bool:
    # A launcher may stand between the server and the kernel: then it leads the session. And right
    # after a start the record may not name the kernel yet, but the server that has started it.
    mine = {os.getpid(), os.getsid(0)}
    named = [process for process in owner.processes if process.pid in mine]
    if owner.keeper is not None and owner.keeper.pid == os.getppid():
        named.append(owner.keeper)
    return any(processes.is_alive(process) is not False for process in named)
