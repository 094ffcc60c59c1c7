"""The kernel that this process is, as Jupyter sees it: its file, its notebook, its restart."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_gpu.adapters.launch import WRAPPER
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.core.leases import Owner

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# What a kernel needs to send its last messages is well under a second; then whoever still keeps
# the process (a thread of the person's that never ends) is not waited for.
_END_SECONDS = 5.0
_KERNEL_ID = re.compile(r"kernel-([0-9a-fA-F-]+)\.json$")


def connection_file(shell: InteractiveShell) -> str | None:
    """Return the full path of this kernel's connection file; None where this is no kernel."""
    if getattr(shell, "kernel", None) is None:
        return None
    from ipykernel.kernelapp import IPKernelApp  # noqa: PLC0415 - only inside a kernel

    if not IPKernelApp.initialized():
        return None
    path = IPKernelApp.instance().abs_connection_file
    return str(path) if path else None


def is_wrapper() -> bool:
    """Return whether this process has become a kernel through our wrapper."""
    return WRAPPER in sys.orig_argv


def owner(shell: InteractiveShell, environ: Mapping[str, str]) -> Owner:
    """Return who this kernel is, for the record of a lease that it takes by itself."""
    found = _KERNEL_ID.search(connection_file(shell) or "")
    return Owner(
        "kernel",
        kernel_id=found[1] if found else None,
        notebook=_notebook(shell, environ),
        command=f"a kernel in {Path.cwd()}",
        processes=(reference(os.getpid()),),
    )


def _notebook(shell: InteractiveShell, environ: Mapping[str, str]) -> str | None:
    """Return the notebook's full path where the front end tells it: VS Code, or a Jupyter server.

    A server tells a path below its root folder, and starts the kernel in the notebook's folder.
    """
    told = shell.user_ns.get("__vsc_ipynb_file__") or environ.get("JPY_SESSION_NAME") or ""
    path = Path(str(told))
    if not path.is_absolute():
        path = Path.cwd() / path.name
    return str(path) if path.suffix == ".ipynb" and path.is_file() else None


def end_for_restart(shell: InteractiveShell) -> None:
    """End this kernel, once its cell has been answered, so that it is started again.

    As ``exit()`` does: the shell stops the kernel's loop. What keeps the process after that is not
    waited for.
    """
    shell.exit_now = True
    thread = threading.Timer(_END_SECONDS, os.kill, (os.getpid(), signal.SIGKILL))
    thread.daemon = True
    thread.start()
