"""What is left behind: processes that keep devices, and which of them may be ended. Pure.

The rule is deliberately narrow. What it lets through is ended with a signal, so a process has to
be known for a leftover, and anything that speaks against that counts for more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from jupyter_gpu.core.leases import Lease, LeaseKind
from jupyter_gpu.core.standing import holder_name

# What a process is to the devices it keeps: it has outlived its kernel; it is what a lease in use
# was given to, or was started by that; it is the server that would restart such a kernel; it is a
# program that nobody leased for.
Role = Literal["leftover", "holder", "server", "program"]
# How it can be seen from here: it lives; it has ended and its parent has not reaped it; it is
# another user's and closed to us; it is of another pid namespace; it is gone, but the driver
# library still lists it.
Sight = Literal["alive", "zombie", "hidden", "outside", "gone"]

_STRONGER: tuple[Role, ...] = ("server", "holder", "leftover", "program")
_END: dict[LeaseKind, str] = {
    "kernel": "shut its kernel down",
    "command": "end that command",
    "api": "end that program, or let it release the lease",
}


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What is known about one process that keeps devices.

    ``pid`` is None where it has none that means anything here. ``own`` tells that it belongs to
    the user who asks, ``asking`` that it is the program that asks, or what has started that.
    ``start`` is in clock ticks since boot, ``since`` ISO 8601 in UTC; ``parent`` are words for the
    parent of a zombie. ``lease`` is the one it keeps or uses.
    """

    pid: int | None
    user: str | None
    command: str | None = None
    role: Role = "leftover"
    sight: Sight = "alive"
    own: bool = False
    asking: bool = False
    start: int | None = None
    since: str | None = None
    indices: tuple[int, ...] = ()
    memory_bytes: int | None = None
    lease: Lease | None = None
    parent: str | None = None

    @property
    def words(self) -> str:
        """Return ``"4711 of alice (python train.py)"``, or what can be said without a pid."""
        if self.sight == "outside":
            return "a process outside this container"
        if self.pid is None:
            return f"a process of {self.user or 'an unknown user'}"
        about = "" if self.command is None else f" ({self.command})"
        return f"{self.pid} of {self.user or 'an unknown user'}{about}"


@dataclass(frozen=True, slots=True)
class Left:
    """A process that is not ended, and why."""

    process: ProcessFacts
    why: str


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What may be ended, and what may not, each in the order of their devices."""

    may_end: tuple[ProcessFacts, ...] = ()
    left: tuple[Left, ...] = ()


def why_not(process: ProcessFacts, *, root: bool) -> str | None:
    """Return why a process may not be ended, None where it may.

    What it is comes before whose it is: that a lease is in use is true for everybody.
    """
    ended = {
        "outside": "it has no process id here: end it where it runs",
        "gone": "it has ended, and the driver library still lists it",
        "zombie": f"a zombie: it has ended, and {process.parent or 'its parent'} has to reap it",
    }.get(process.sight)
    if ended is not None:
        return ended
    if process.role in ("holder", "server"):
        return _in_use(process)
    return _closed(process, root=root) or (
        "it runs on its own, without a lease, and is not left behind"
        if process.role == "program"
        else None
    )


def _closed(process: ProcessFacts, *, root: bool) -> str | None:
    """Return why a process is not for the one who asks to end."""
    if process.sight == "hidden" or process.pid is None:
        who = "only root" if process.user is None else f"only {process.user} and root"
        return f"{who} may look at it:  sudo jupyter gpu release"
    if process.asking:
        return "it is this command, or has started it"
    if not process.own and not root:
        return f"only {process.user or 'its owner'} and root may end it"
    return None


def _in_use(process: ProcessFacts) -> str:
    lease = process.lease
    if lease is None:
        return "it uses a lease that is alive"
    holder = f"{lease.user or 'an unknown user'} ({holder_name(lease)})"
    what_to_do = _END[lease.record.owner.kind]
    if process.role == "server":
        return f"the server that keeps the lease of {holder}: {what_to_do} there"
    return f"the lease of {holder} is {lease.state}: {what_to_do}"


def sorted_out(processes: Iterable[ProcessFacts], *, root: bool) -> Leftovers:
    """Return which processes may be ended and which may not.

    Parameters
    ----------
    processes
        Facts from every source; several about one process are taken together.
    root
        Whether root asks, who may end anybody's.
    """
    may_end, left = [], []
    for process in sorted(merged(processes), key=_order):
        why = why_not(process, root=root)
        if why is None:
            may_end.append(process)
        else:
            left.append(Left(process, why))
    return Leftovers(tuple(may_end), tuple(left))


def _order(process: ProcessFacts) -> tuple[tuple[int, ...], int]:
    return process.indices, process.pid or 0


def merged(processes: Iterable[ProcessFacts]) -> tuple[ProcessFacts, ...]:
    """Return the facts with those about one process taken together.

    Of several roles the one that protects most counts: a worker of a dead kernel that a living
    one uses too is in use.
    """
    found: dict[int, ProcessFacts] = {}
    without_pid: list[ProcessFacts] = []
    for process in processes:
        pid = process.pid
        if pid is None:
            without_pid.append(process)
        elif pid in found:
            found[pid] = _together(found[pid], process)
        else:
            found[pid] = process
    return (*found.values(), *without_pid)


def _together(one: ProcessFacts, other: ProcessFacts) -> ProcessFacts:
    first, second = sorted((one, other), key=lambda process: _STRONGER.index(process.role))
    lease = first.lease
    if lease is None and first.role == "leftover":
        lease = second.lease
    return dataclasses.replace(
        first,
        indices=tuple(sorted({*first.indices, *second.indices})),
        memory_bytes=_sum(first.memory_bytes, second.memory_bytes),
        lease=lease,
        asking=first.asking or second.asking,
        sight=first.sight if first.sight != "alive" else second.sight,
        parent=first.parent or second.parent,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    known = [number_bytes for number_bytes in (one, other) if number_bytes is not None]
    return sum(known) if known else None


def chosen(leftovers: Leftovers, is_meant: Callable[[ProcessFacts], bool]) -> Leftovers:
    """Return of the leftovers those that are meant."""
    return Leftovers(
        tuple(filter(is_meant, leftovers.may_end)),
        tuple(one for one in leftovers.left if is_meant(one.process)),
    )


def is_offered(process: ProcessFacts, *, root: bool) -> bool:
    """Return whether a process belongs on the list of who names nothing.

    That is what has been left behind, one's own, and everybody's for root. Leases in use and
    programs that run on their own are told about only where somebody asks for their device.
    """
    if process.role in ("holder", "server"):
        return False
    if process.role == "program" and process.sight not in ("zombie", "outside"):
        return False
    return root or process.own
