"""The overview: everything that a face shows about one machine at one moment, as one value.

It is put together in ``jupyter_gpu.overview``; what people read is made of it in the views, what
programs read in ``answers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.holds import Holds
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.leases import Holdings, Lease

if TYPE_CHECKING:
    from jupyter_gpu.core.kernel_process import KernelProcess
    from jupyter_gpu.core.visibility import Visible


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a device that exists here too: a pid may also mean nothing in this container."""

    pid: int
    user: str
    command: str


@dataclass(frozen=True, slots=True)
class Leasing:
    """How far leases can be relied on here.

    ``problem`` says why there are none, or why they cannot be read; ``warning`` that other users
    could tamper with them.
    """

    directory: str | None = None
    exclusive: bool = True
    problem: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class RulesShown:
    """What of the site's rules concerns who looks.

    ``limit`` is a sentence about their own limit and what they hold, ``reserved`` words by the UUID
    of each device that they may not have, ``held_back`` the sentence by lease id of each waiter
    whom only their own limit keeps waiting; ``in_vain`` are names of reserved devices that
    mean none here; ``problem`` why the rules cannot be used, which means
    that nothing is granted; ``answer`` what programs read.
    """

    source: str | None = None
    limit: str | None = None
    reserved: Mapping[str, str] = field(default_factory=dict)
    held_back: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    answer: Mapping[str, object] = field(default_factory=dict)
    in_vain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """One machine at one moment; ``process`` only where a kernel asks."""

    inventory: Inventory
    visible: Visible
    holdings: Holdings = field(default_factory=Holdings)
    leasing: Leasing = field(default_factory=Leasing)
    seen: tuple[SeenProcess, ...] = ()
    process: KernelProcess | None = None
    holds: Holds = field(default_factory=Holds)
    rules: RulesShown | None = None

    @property
    def shown(self) -> tuple[InForce, ...]:
        """What CUDA has given to the kernel that asks, or else what it would give."""
        process = self.process
        if process is not None and process.in_force is not None:
            return process.in_force
        if process is not None and process.state == "absent":
            return ()
        return tuple(InForce(one.ordinal, one.index, one.uuid) for one in self.visible.devices)

    @property
    def lease(self) -> Lease | None:
        """The living lease of the kernel that asks, or None."""
        wanted = None if self.process is None else self.process.lease_id
        return next((lease for lease in self.holdings.leases if lease.record.id == wanted), None)

    def memory_used_on(self, lease: Lease) -> int | None:
        """Return the bytes in use on a lease's devices, whoever uses them; None if unknown."""
        devices = map(self.inventory.find, lease.record.uuids)
        used = [device.memory_used_bytes for device in devices if device is not None]
        known = [number_bytes for number_bytes in used if number_bytes is not None]
        return sum(known) if known else None

    @property
    def known(self) -> Mapping[int, SeenProcess]:
        """The processes that exist here, by pid."""
        return {process.pid: process for process in self.seen}
