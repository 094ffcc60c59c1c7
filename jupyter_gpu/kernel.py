"""The kernel wrapper: ``python -m jupyter_gpu.kernel -f FILE`` is ipykernel with its devices.

Under our provisioner the lease comes with the process and this only starts ipykernel. Front ends
that start ``argv`` themselves (VS Code, Zed, emacs-jupyter and others) never look at a
provisioner: there the wrapper leases by itself, in the same process, before anything of CUDA can
be loaded. If it cannot, the kernel starts without a GPU and says so; an exit would only make the
front end try again and again.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.inherited import keep_from_programs, take_inherited_lease
from jupyter_gpu.core.variables import ANNOUNCE, LEASE_FD, NOTICE, POOL, PROVISIONED, STARTER

if TYPE_CHECKING:
    from jupyter_gpu.core.leases import Origin
    from jupyter_gpu.core.request import Request
    from jupyter_gpu.lease import HeldLease

_OWN_OPTIONS = (
    "gpus",
    "devices",
    "min-free-memory",
    "model",
    "wait",
    "identifiers",
    "topology",
    "cpu-affinity",
    "memory-cap",
    "on-unavailable",
)
_IPYKERNELS = ("ip", "hb", "gui", "ext", "debug", "quiet", "shell", "iopub", "stdin", "control")
_KERNEL_ID = re.compile(r"kernel-([0-9a-fA-F-]+)\.json$")
FRAMEWORK = "JUPYTER_GPU_FRAMEWORK"
_SESSION_NAME = "JPY_SESSION_NAME"


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line says: our options, the connection file, and ipykernel's own rest."""

    options: dict[str, str]
    framework: str | None
    connection_file: str | None
    rest: tuple[str, ...]


def read_arguments(argv: list[str]) -> Arguments:
    """Read the command line; ``-f X``, ``-f=X`` and ``--f=X`` may stand anywhere.

    VS Code takes ``-f X`` from its place and puts ``--f=X`` at the end. What is not ours goes on
    to ipykernel untouched.
    """
    options: dict[str, str] = {}
    framework = connection_file = None
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        key = name.lstrip("-").replace("_", "-")
        written = name.startswith("--") or (equals and key in _OWN_OPTIONS)
        ours = written and (key in ("framework", "f") or _is_option(key.lower()))
        if ours or name == "-f":
            if not equals:
                value = words.pop(0) if words and not words[0].startswith("-") else ""
            if name in ("-f", "--f"):
                connection_file = value
            elif key == "framework":
                framework = value
            else:
                options[key.replace("-", "_")] = value
        else:
            rest.append(word)
    return Arguments(options, framework, connection_file, tuple(rest))


def _is_option(key: str) -> bool:
    """Tell whether a word is one of our options, or nearly.

    A misspelt one is taken too, so that reading the request refuses it by name: ipykernel would
    pass over it in silence, or end.
    """
    if key in _OWN_OPTIONS:
        return True
    if "." in key or key in _IPYKERNELS:
        return False
    from difflib import get_close_matches  # noqa: PLC0415 - only for a word that nobody knows

    parts = set(key.split("-"))
    return bool(parts & {"gpus", "devices"} or get_close_matches(key, _OWN_OPTIONS, cutoff=0.75))


def main(argv: list[str] | None = None) -> None:
    """Lease if nobody has, then become the kernel."""
    arguments = read_arguments(sys.argv[1:] if argv is None else argv)
    # As ipykernel's own launcher does: a module of the notebook's folder must not come before the
    # standard library's while the kernel loads; IPython puts the folder back.
    if sys.path and (sys.path[0] == "" or Path(sys.path[0]) == Path.cwd()):
        del sys.path[0]
    notice = prepare(arguments)
    if arguments.framework:
        os.environ[FRAMEWORK] = arguments.framework
    _become_kernel(arguments, notice)


def prepare(arguments: Arguments) -> str | None:
    """Bring the lease and the variables into this process.

    Returns what the person must be told at once, None where a kernel starts as it was asked to.
    """
    # Set by the provisioner for this very process: what it decided is not decided again, and the
    # lease is known to be there without a look at the lock file.
    urgent = os.environ.pop(ANNOUNCE, None) is not None
    if os.environ.pop(PROVISIONED, None) == str(os.getppid()):
        keep_from_programs(os.environ.pop(LEASE_FD, ""))
        return os.environ.get(NOTICE) if urgent else None
    if _has_inherited_lease():
        return None
    os.environ.pop(NOTICE, None)
    notice = _lease_here(arguments)
    if notice is not None:
        os.environ[NOTICE] = notice
    return notice


def _has_inherited_lease() -> bool:
    from jupyter_gpu.adapters.machine import is_simulated  # noqa: PLC0415 - not under ours
    from jupyter_gpu.adapters.place import find_place  # noqa: PLC0415

    place = find_place(os.environ, simulated=is_simulated(os.environ))
    return take_inherited_lease(os.environ, str(place.lock_path))


def _lease_here(arguments: Arguments) -> str | None:
    """Lease what a ``%gpu use`` before a restart has wished, else what the command line says."""
    from jupyter_gpu.core.errors import GPUError  # noqa: PLC0415 - only without provisioner
    from jupyter_gpu.wish import devices_in_words, not_granted, take_wish  # noqa: PLC0415

    wish = take_wish(arguments.connection_file)
    if wish is None:
        return _asked_for(arguments)[1]
    trouble = wish.trouble
    try:
        if wish.request is not None:
            return _acquired(wish.request, arguments, "magic").caution
    except GPUError as error:
        trouble = error
    assert isinstance(trouble, GPUError), "neither a request nor a trouble"
    lease, notice = _asked_for(arguments)
    kept = devices_in_words(() if lease is None else lease.devices)
    return "\n".join(filter(None, [not_granted(wish, trouble, kept), notice]))


def _asked_for(arguments: Arguments) -> tuple[HeldLease | None, str | None]:
    """Lease what the command line asks for; returns the lease, and what the person must be told."""
    from jupyter_gpu.asking import asked_for  # noqa: PLC0415 - only without provisioner
    from jupyter_gpu.core.errors import GPUError, NoDeviceAvailable  # noqa: PLC0415
    from jupyter_gpu.core.variables import VISIBLE  # noqa: PLC0415

    request = None
    try:
        # Jupyter servers without our provisioner name the notebook; other front ends do not.
        asked = asked_for(arguments.options, os.environ, os.environ.get(_SESSION_NAME))
        request = asked.request
        if request.on_unavailable == "wait":
            request = dataclasses.replace(request, wait_seconds=_FOR_EVER_SECONDS)
        lease = _acquired(request, arguments, asked.origin)
    except GPUError as error:
        refused = isinstance(error, NoDeviceAvailable) and request is not None
        if refused and request is not None and request.on_unavailable == "error":
            sys.exit(f"{error}\nThe kernel was not started, because on_unavailable is error.")
        os.environ[VISIBLE] = "-1"
        return None, f"This kernel has no GPU.\n{error}"
    except Exception as error:  # noqa: BLE001 - the outermost edge: an exit is a restart loop
        os.environ[VISIBLE] = "-1"
        return None, f"This kernel has no GPU. Leasing failed: {type(error).__name__}: {error}"
    return lease, "\n".join(filter(None, [*asked.notices, lease.caution])) or None


_FOR_EVER_SECONDS = 10**8


def _acquired(request: Request, arguments: Arguments, origin: Origin) -> HeldLease:
    """Lease, set the variables, and leave the lease to this process, with which it ends."""
    from jupyter_gpu.adapters.cpu_affinity import bind  # noqa: PLC0415
    from jupyter_gpu.adapters.processes import reference  # noqa: PLC0415
    from jupyter_gpu.allocator import Acquisition, acquire_now  # noqa: PLC0415
    from jupyter_gpu.core.environment import merged  # noqa: PLC0415
    from jupyter_gpu.core.leases import Owner  # noqa: PLC0415
    from jupyter_gpu.granting import Caller  # noqa: PLC0415
    from jupyter_gpu.pool import limits_of, written_limits  # noqa: PLC0415

    found = _KERNEL_ID.search(arguments.connection_file or "")
    owner = Owner(
        "kernel",
        kernel_id=found[1] if found else None,
        command=f"a kernel in {Path.cwd()}",
        processes=(reference(os.getpid()),),
    )
    limits = limits_of(os.environ)
    caller = Caller(origin)
    lease = acquire_now(Acquisition(request, owner, os.environ, limits=limits, caller=caller))
    if lease.cpus is not None:
        bind(os.getpid(), lease.cpus)  # where it cannot, the kernel runs on any CPU
    environment = merged(os.environ, lease.environment)
    # The descriptor is not inherited by programs, where its number would mean anything.
    for name in (LEASE_FD, STARTER, POOL):
        environment.pop(name, None)
    if limits:
        environment[POOL] = written_limits(limits)
    os.environ.update(environment)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    lease.leave()
    return lease


def _become_kernel(arguments: Arguments, notice: str | None) -> None:
    from ipykernel.kernelapp import IPKernelApp  # noqa: PLC0415 - after the lease

    words = list(arguments.rest)
    if arguments.connection_file is not None:
        words += ["-f", arguments.connection_file]
    app = IPKernelApp.instance()
    app.initialize(words)
    if app.shell is not None:
        try:
            app.shell.extension_manager.load_extension("jupyter_gpu")
        except Exception:
            # The person's kernel matters more than our magic: it starts without, and says so.
            app.log.exception("The extension jupyter_gpu could not be loaded")
        if notice is not None:
            _announce(app.shell, notice)
    app.start()


def _announce(shell: object, notice: str) -> None:
    """Say the notice under the first cell that runs, once; on the terminal at once.

    Front ends run code of their own that nobody sees (VS Code does at every start); it is not
    kept in the history, and the notice waits for a cell that is.
    """
    print(notice, file=sys.__stderr__, flush=True)
    events = shell.events  # type: ignore[attr-defined] # IPython is untyped here

    def tell(info: object) -> None:
        if not getattr(info, "store_history", True):
            return
        events.unregister("pre_run_cell", tell)
        print(notice, file=sys.stderr)  # noqa: T201 - stderr is shown under the cell

    events.register("pre_run_cell", tell)


if __name__ == "__main__":
    main()
