"""GPU leases for Jupyter kernels, and a truthful ``%gpu``.

``acquire`` leases devices, ``inventory`` tells what the machine has, ``visible`` what the CUDA
driver makes of ``CUDA_VISIBLE_DEVICES``; ``Monitor`` shows a notebook's devices live. Importing
this package loads nothing of the GPU stack, of IPython or of Jupyter; ``%load_ext jupyter_gpu``
brings the magic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import GPUError, ImpossibleRequest, NoDeviceAvailable, RequestError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_gpu.core.devices import Inventory
    from jupyter_gpu.core.visibility import Visible
    from jupyter_gpu.lease import HeldLease
    from jupyter_gpu.widget import Monitor

__version__ = "0.1.0"

__all__ = [
    "GPUError",
    "ImpossibleRequest",
    "Monitor",
    "NoDeviceAvailable",
    "RequestError",
    "acquire",
    "inventory",
    "load_ipython_extension",
    "unload_ipython_extension",
    "visible",
]


def acquire(gpus: int | str = 1, *, wait: float | str = 0, **options: object) -> HeldLease:
    """Lease devices for this program.

    Parameters
    ----------
    gpus
        How many, or ``"all"``; a share of one, ``"1/4"``; a MIG profile, ``"mig:1g.18gb"``; 0
        gives a lease on nothing.
    wait
        How long to wait for them, in seconds or as ``"10m"``. 0 asks once.
    **options
        The other request options: ``devices``, ``min_free_memory``, ``model``, ``identifiers``,
        ``topology``, ``cpu_affinity`` (the lease then names ``cpus``), ``memory_cap``.

    Returns
    -------
    HeldLease
        A context manager with ``devices``, ``environment`` (the variables to set for a process
        that uses them) and ``release()``. This process's own variables are not touched.

    Raises
    ------
    NoDeviceAvailable
        When nothing could be had in that time; the message names the holders.
    RequestError
        When the request is malformed, or (ImpossibleRequest) can never be met here.
    """
    import os  # noqa: PLC0415 - importing this package stays cheap

    from jupyter_gpu.adapters.processes import command_line, reference  # noqa: PLC0415
    from jupyter_gpu.allocator import Acquisition, acquire_now  # noqa: PLC0415
    from jupyter_gpu.core.leases import Owner  # noqa: PLC0415
    from jupyter_gpu.core.request import Request  # noqa: PLC0415
    from jupyter_gpu.granting import Caller  # noqa: PLC0415
    from jupyter_gpu.pool import limits_of  # noqa: PLC0415

    request = Request.parse({"gpus": gpus, "wait": wait, **options}, default_wait=0)
    owner = Owner(
        "api", command=command_line(os.getpid()), processes=(reference(os.getpid()),)
    )
    limits = limits_of(os.environ)
    caller = Caller("api")
    return acquire_now(Acquisition(request, owner, os.environ, limits=limits, caller=caller))


def inventory() -> Inventory:
    """Return what the driver library, or the simulated machine, reports now.

    Raises
    ------
    SimulationError
        When ``JUPYTER_GPU_SIMULATE`` cannot be read. NVML's errors are in the result's ``problem``
        and in each device's.
    """
    import os  # noqa: PLC0415

    from jupyter_gpu.adapters.machine import find_machine  # noqa: PLC0415

    with find_machine(os.environ) as machine:
        return machine.read()


_UNSET = "unset: what the environment says"


def visible(value: str | None = _UNSET) -> Visible:
    """Return what the CUDA driver makes of a value of CUDA_VISIBLE_DEVICES on this machine.

    Parameters
    ----------
    value
        The value; None means that the variable is not set. Left out: this environment's.
    """
    import os  # noqa: PLC0415

    from jupyter_gpu.core.variables import VISIBLE  # noqa: PLC0415
    from jupyter_gpu.overview import read_value  # noqa: PLC0415

    asked = os.environ.get(VISIBLE) if value is _UNSET else value
    return read_value(asked, inventory(), os.environ)


def __getattr__(name: str) -> object:
    """Load ``Monitor`` when it is asked for; Python calls this for a name that is not here yet."""
    if name == "Monitor":
        from jupyter_gpu.widget import Monitor  # noqa: PLC0415

        return Monitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Load the extension; IPython calls this for ``%load_ext jupyter_gpu``."""
    from jupyter_gpu.faces.extension import load  # noqa: PLC0415

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Unload the extension; IPython calls this for ``%unload_ext jupyter_gpu``."""
    from jupyter_gpu.faces.extension import unload  # noqa: PLC0415

    unload(shell)
