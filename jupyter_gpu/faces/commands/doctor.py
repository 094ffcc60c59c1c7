"""``jupyter gpu doctor``: checks all that a kernel with GPUs depends on."""

from __future__ import annotations

import os

from jupyter_gpu.core.checks import checks_answer
from jupyter_gpu.core.checks_view import checks_view
from jupyter_gpu.core.errors import EXIT_FAILURE
from jupyter_gpu.doctor import examine
from jupyter_gpu.environments import examine_environments
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.faces.spec_checks import examine_kernelspecs
from jupyter_gpu.overview import read_overview


class Doctor(Command):
    """Runs every check, and names the one command that mends each finding."""

    name = "doctor"
    about = (
        "Check the driver, what CUDA and its libraries make of the variables, the lease\n"
        "directory and the leases, what is left on the GPUs, the environments of Jupyter\n"
        "servers, and the kernelspecs. Exits 1 when a check fails. As root it also names\n"
        "other users' processes. In a notebook,  %gpu check  adds what the kernel knows."
    )
    example = "  jupyter gpu doctor\n  sudo jupyter gpu doctor"
    has_arguments = False

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer with one line a check, and what mends it under it."""
        del rest
        overview = read_overview(os.environ, sensors=False)
        checks = (
            *examine(os.environ, overview),
            *examine_environments(os.environ),
            *examine_kernelspecs(overview.inventory),
        )
        answer(options, checks_answer(checks), checks_view(checks))
        return EXIT_FAILURE if any(check.status == "fail" for check in checks) else 0


COMMAND = Doctor()
