"""A recognised error in the kernel that it is of, and what every hint says of such a case. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_gpu.core.failures import Failure
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import value_words


@dataclass(frozen=True, slots=True)
class Case:
    """The error, the machine, and the kernel, with the map from its ids to physical devices."""

    failure: Failure
    overview: Overview
    process: KernelProcess

    @property
    def rows(self) -> tuple[InForce, ...]:
        """What CUDA has given to the kernel, or what it would give, in visible order."""
        return self.overview.shown

    @property
    def simulated(self) -> bool:
        """Whether there is no CUDA behind the devices."""
        return self.process.state == "simulated"

    @property
    def machine(self) -> str:
        """What a hint says of its machine: only that it is simulated."""
        return "simulated machine" if self.simulated else ""

    @property
    def caveat(self) -> tuple[str, ...]:
        """A sentence on a map that CUDA has not confirmed, none where it has."""
        if self.process.in_force is not None or self.process.state == "absent":
            return ()
        read = f"the map is read from {VISIBLE} ({value_words(self.process.set_now)})."
        if self.simulated:
            return (f"No CUDA is behind simulated devices: {read}",)
        if self.process.state == "forked":
            return (f"CUDA is not asked in a forked process: {read}",)
        return (f"CUDA is open here: {read}",)

    @property
    def raised_inside(self) -> tuple[str, ...]:
        """Which library raised the error, none where the cell asked the framework itself."""
        libraries = self.failure.libraries
        if not libraries:
            return ()
        way = "" if len(libraries) == 1 else f", which {libraries[0]} calls"
        return (f"Raised inside {libraries[-1]}{way}.",)

    @property
    def map_line(self) -> str:
        """The map, ``"0 = physical 1 · 1 = physical 2"``."""
        return " · ".join(f"{row.ordinal} = {self.physical(row)}" for row in self.rows)

    def named(self, ordinal: int) -> str:
        """Return ``"cuda:0 (physical 3)"``."""
        row = next((row for row in self.rows if row.ordinal == ordinal), None)
        return f"cuda:{ordinal}" if row is None else f"cuda:{ordinal} ({self.physical(row)})"

    def physical(self, row: InForce) -> str:
        """Return ``"physical 3"``, ``"part of physical 3"`` or ``"physical unknown"``."""
        if row.index is None:
            return "physical unknown"
        return f"{'part of ' if self.is_part(row) else ''}physical {row.index}"

    def is_part(self, row: InForce) -> bool:
        """Return whether a device is a MIG device."""
        device = None if row.uuid is None else self.overview.inventory.find(row.uuid)
        return device is not None and device.kind == "mig"


def variable_words(value: str | None) -> str:
    """Return ``'CUDA_VISIBLE_DEVICES is "1"'``, or that it is not set."""
    return f"{VISIBLE} is {value_words(value)}"
