"""``jupyter gpu setup``: makes the machine-wide lease directory, as root."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from pathlib import Path

from jupyter_gpu.core.view import View
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.machine_setup import set_up


class Setup(Command):
    """Makes leases safe against other users of the machine."""

    name = "setup"
    about = (
        "Make the lease directory of the whole machine, /run/jupyter-gpu, now and at every\n"
        "start of the machine. Only then are leases safe against other users. Needs root."
    )
    example = "  sudo jupyter gpu setup"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the root that the tests use, named as systemd-tmpfiles names its own."""
        parser.add_argument("--root", type=Path, default=Path("/"), help=SUPPRESS)

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Do what is left to do, and say what that was."""
        del rest
        done = set_up(options.root)
        title = "The lease directory of this machine is ready" + ("" if done else ", as it was")
        return answer(options, {"schema": 1, "done": list(done)}, View(title, lines=done))


COMMAND = Setup()
