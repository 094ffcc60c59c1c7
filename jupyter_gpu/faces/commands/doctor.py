"""``jupyter gpu doctor``: checks all that a kernel with GPUs depends on."""

from __future__ import annotations

import os
import sys

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.errors import EXIT_FAILURE
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.render_text import wrapped
from jupyter_gpu.doctor import examine
from jupyter_gpu.environments import examine_environments
from jupyter_gpu.faces.commands.command import Command, Options, write_json
from jupyter_gpu.faces.spec_checks import examine_kernelspecs
from jupyter_gpu.overview import read_overview

_INDENT = " " * 6
_COMMANDS = ("/", "'/", "jupyter ", "sudo ", "kill ", "nvidia-smi ", "python")


class Doctor(Command):
    """Runs every check, and names the one command that mends each finding."""

    name = "doctor"
    about = (
        "Check the driver, what is visible, the lease directory and the leases, the\n"
        "environments of Jupyter servers, and the kernelspecs. Exits 1 when a check fails.\n"
        "As root it also names other users' processes."
    )
    example = "  jupyter gpu doctor\n  sudo jupyter gpu doctor"
    has_arguments = False

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer with one line a check, and what mends it under it."""
        del rest
        inventory = read_overview(os.environ, sensors=False).inventory
        checks = (
            *examine(os.environ),
            *examine_environments(os.environ),
            *examine_kernelspecs(inventory),
        )
        data = {"schema": 1, "checks": [check.as_json() for check in checks]}
        if options.json:
            write_json(data)
        else:
            sys.stdout.write(f"{_text(checks)}\n")
        return EXIT_FAILURE if any(check.status == "fail" for check in checks) else 0


def _text(checks: tuple[Check, ...]) -> str:
    lines = []
    for check in checks:
        found = f"{check.status:<4}  {check.name}: {check.found}"
        lines.extend(wrapped(found, indent=_INDENT))
        if check.fix is not None:
            fix = f"{_INDENT}→ {check.fix}"
            # A command stays in one piece, however long: it is there to be copied.
            is_command = check.fix.startswith(_COMMANDS)
            lines.extend([fix] if is_command else wrapped(fix, indent=f"{_INDENT}  "))
    failed = sum(check.status == "fail" for check in checks)
    warned = sum(check.status == "warn" for check in checks)
    lines.append(f"{in_words(len(checks), 'check')}: {failed} failed, {warned} with a warning")
    return "\n".join(lines)


COMMAND = Doctor()
