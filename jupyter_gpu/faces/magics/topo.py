"""``%gpu topo``: how the GPUs are connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import SimulationError
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.core.topology_view import topology_answer, topology_view
from jupyter_gpu.faces.magics.subcommand import Answer, Options, Subcommand

if TYPE_CHECKING:
    from jupyter_gpu.faces.magics.context import Context


class Topo(Subcommand):
    """Shows the links between the GPUs, and what is near each of them."""

    name = "topo"
    about = (
        "How the GPUs are connected: NVLink or PCIe between each pair, and the NUMA node and the "
        "CPUs near each."
    )
    example = "  %gpu topo\n  links = %gpu topo --json"

    def answer(self, context: Context, options: Options) -> Answer:
        """Answer, whatever of it cannot be read."""
        del options
        overview = context.overview()
        try:
            topology = context.machine().topology()
        except SimulationError:  # the overview says why
            topology = Topology()
        return Answer(topology_view(overview, topology), topology_answer(overview, topology))


SUBCOMMAND = Topo()
