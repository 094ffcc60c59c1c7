"""The outfit of a lease: the variables, the caps and the CPUs that its program gets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.adapters import cpu_affinity
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.mps import find_daemon
from jupyter_gpu.adapters.torch_version import torch_version
from jupyter_gpu.core import neighbours
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.environment import remembered_caps, variables, without_caps
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.request import Identifiers, Request
from jupyter_gpu.core.share_caps import share_caps
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.core.variables import CAPS


@dataclass(frozen=True, slots=True)
class Outfit:
    """What a program gets with its devices.

    ``caps`` are sentences about how hard what it may use is limited; ``cpus`` the numbers of those
    that it is to run on, None for all; ``because`` says why those.
    """

    environment: dict[str, str]
    caps: tuple[str, ...] = ()
    cpus: tuple[int, ...] | None = None
    because: tuple[str, ...] = ()


def daemon_for(request: Request, environ: Mapping[str, str]) -> MPS | None:
    """Return the MPS daemon that a share would go through, None where nothing is shared."""
    return None if request.share is None else find_daemon(environ)


def outfit(
    devices: tuple[Device, ...],
    request: Request,
    inventory: Inventory,
    environ: Mapping[str, str],
    *,
    program: str | None = None,
    mps: MPS | None = None,
    topology: Topology | None = None,
) -> Outfit:
    """Return what a program gets with these devices.

    Parameters
    ----------
    devices
        What was granted, in visible order.
    request
        What was asked for.
    inventory
        The machine.
    environ
        The environment that the program would have without us.
    program
        What runs: its Python tells which torch will read the caps. None is this Python.
    mps
        The control daemon that shares go through; None without shares.
    topology
        How the machine is put together, for CPUs near the devices.
    """
    through_mps = request.share is not None and mps is not None and mps.daemon is True
    # MPS has an order of its own, so devices are named by what they are.
    identifiers: Identifiers = "uuid" if through_mps else request.identifiers
    environment = variables(devices, inventory, identifiers, environ)
    sentences: tuple[str, ...] = ()
    if devices and (request.share is not None or isinstance(request.memory_cap, int)):
        version = torch_version(program or sys.executable, environ)
        # What caps the lease that this program runs under is no wish of the person's.
        own = without_caps(environ)
        caps = share_caps(
            request.share,
            request.memory_cap,
            devices,
            own,
            mps,
            version,
            simulated=is_simulated(environ),
        )
        sentences = caps.words
        environment |= caps.environment
        if caps.environment:
            environment[CAPS] = remembered_caps(own, caps.environment)
    cpus: tuple[int, ...] | None = None
    because: tuple[str, ...] = ()
    if request.cpu_affinity == "closest" and topology is not None:
        near = neighbours.cpus_near(devices, topology)
        cpus = None if near is None else cpu_affinity.nearest_allowed(near)
        allowed = cpu_affinity.allowed_cpus()
        because = (neighbours.affinity_words(devices, topology, cpus, allowed),)
    return Outfit(environment, sentences, cpus, because)
