"""What a kernel's start asks for: its kernelspec's options, the notebook's own, the site's wait."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.notebook_file import read_notebook_options
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.leases import Origin
from jupyter_gpu.core.notebook_request import combined
from jupyter_gpu.core.request import Request
from jupyter_gpu.site import Site

_DEFAULT_WAIT = "8s"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, where it came from, and what the person must be told about it."""

    request: Request
    origin: Origin
    notices: tuple[str, ...] = ()
    notebook: str | None = None

    def explained(self, error: GPUError) -> GPUError:
        """Return an error about the request, with where it stands if the notebook has made it."""
        if self.origin != "notebook" or self.notebook is None:
            return error
        whose = f"The notebook asks for it itself: jupyter_gpu in the metadata of {self.notebook}."
        return GPUError(f"{error}\n{whose}")


def asked_for(
    options: Mapping[str, object],
    environ: Mapping[str, str],
    notebook: str | None,
    origin: Origin = "kernelspec",
) -> Asked:
    """Return what a kernel's start asks for.

    Parameters
    ----------
    options
        What the kernelspec, or the server's configuration, says.
    environ
        The environment that the kernel would have without us; names the lease directory.
    notebook
        The path of the notebook that the kernel is started for, None for none.
    origin
        Whose the options are.

    Raises
    ------
    RequestError
        For an option that is unknown, or a value that is not of its form, the notebook's included.
    RulesError
        When the file of rules cannot be used.
    """
    request = Request.parse(options, default_wait=_DEFAULT_WAIT)
    if request.gpus == 0:  # nothing is granted, so no rule stands against it
        return Asked(request, origin)
    place = find_place(environ, simulated=is_simulated(environ))
    # Where nothing is leased there are no rules either.
    sites = Site(place, environ).own.default_wait if locks.possible() else None
    if sites is not None:
        request = Request.parse(options, default_wait=sites)
    own = None if notebook is None else read_notebook_options(notebook)
    if own is None or notebook is None:
        return Asked(request, origin)
    name = os.path.basename(notebook)  # noqa: PTH119 - a name to show
    found = combined(request, own, name)
    whose: Origin = "notebook" if found.origin == "notebook" else origin
    return Asked(found.request, whose, found.notices, name)
