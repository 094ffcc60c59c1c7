"""Gathers what the checks look at beside the overview. Nothing is initialised in this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

from jupyter_gpu.adapters import device_files, surroundings
from jupyter_gpu.adapters.cuda_child import ask_in_child
from jupyter_gpu.adapters.installed import installed_libraries
from jupyter_gpu.adapters.mps import find_mps
from jupyter_gpu.core.facts import DriverAnswer, Facts
from jupyter_gpu.core.overview import Overview


def gather(environ: Mapping[str, str], overview: Overview) -> Facts:
    """Return the facts about this environment, on the machine of an overview.

    Where a kernel asks, its libraries are those of its own Python, and its fixes are lines for a
    cell.
    """
    in_kernel = overview.process is not None
    # A machine that is only described has nobody's device open, and no driver to ask.
    real = overview.inventory.source != "simulated"
    foreign = surroundings.has_foreign_pids()
    minors = {gpu.minor: gpu.index for gpu in overview.inventory.gpus if gpu.minor is not None}
    return Facts(
        driver=_driver(environ, overview) if real else None,
        installed=installed_libraries(),
        users=device_files.users_of(minors, ours=os.getpid()) if real else (),
        sees_everybody=getattr(os, "geteuid", lambda: 1)() == 0 and not foreign,
        mps=find_mps(environ),
        container=surroundings.in_container(environ),
        foreign_pids=foreign,
        kernel_module=surroundings.kernel_module() if real else None,
        python=None if in_kernel else sys.executable,
        pip="%pip" if in_kernel else f"{shlex.quote(sys.executable)} -m pip",
    )


def _driver(environ: Mapping[str, str], overview: Overview) -> DriverAnswer | None:
    """Ask the driver in a child, unless this process is a fork: there nothing is begun."""
    if overview.process is not None and overview.process.state == "forked":
        return None
    return ask_in_child(environ)
