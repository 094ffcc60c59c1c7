"""The seam to the machine: NVML or a simulation, behind one ``read``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from jupyter_gpu.core.devices import Inventory

if TYPE_CHECKING:
    from jupyter_gpu.adapters.gauge import Gauge
    from jupyter_gpu.core.topology import Topology

SIMULATE = "JUPYTER_GPU_SIMULATE"


class Machine(Protocol):
    """Something that reports devices. Used in a ``with``; may be read many times."""

    def __enter__(self) -> Machine:
        """Open it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""

    def read(self, *, sensors: bool = True) -> Inventory:
        """Return what there is now; without sensors the slow readings are None."""

    def gauge(self, uuids: Sequence[str]) -> Gauge:
        """Return what reads these devices again and again, quickly."""

    def topology(self) -> Topology:
        """Return how the GPUs are connected; what cannot be known of that is None, no error."""


def is_simulated(environ: Mapping[str, str]) -> bool:
    """Return whether this environment asks for a simulated machine."""
    return bool(environ.get(SIMULATE))


def find_machine(environ: Mapping[str, str]) -> Machine:
    """Return the machine that this environment means, not opened yet."""
    description = environ.get(SIMULATE)
    if description:
        from jupyter_gpu.adapters.simulated import SimulatedMachine  # noqa: PLC0415 - one of two

        return SimulatedMachine(description)
    from jupyter_gpu.adapters.nvml import NVMLMachine  # noqa: PLC0415 - one of two

    return NVMLMachine()
