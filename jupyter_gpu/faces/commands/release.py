"""``jupyter gpu release``: ends what keeps devices that nobody uses any more."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from datetime import datetime

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.device_files import DEVICE_FOLDER
from jupyter_gpu.adapters.ending import pidfd_opener
from jupyter_gpu.core.errors import EXIT_FAILURE, StoreError, UsageError
from jupyter_gpu.core.leftovers import Leftovers
from jupyter_gpu.core.leftovers_view import (
    found_view,
    question,
    release_answer,
    released_view,
)
from jupyter_gpu.core.view import View
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.leftovers import end_leftovers, find_leftovers, hold


class Release(Command):
    """Ends leftovers, after it has shown them and asked.

    ``device_folder`` is where the GPUs' device files stand.
    """

    name = "release"
    about = (
        "End processes that are left behind: workers of a kernel that is gone, which keep its\n"
        "lease or its memory. They are shown first, and ended only after you agree. It never\n"
        "touches a lease in use, or another user's processes; root may end everybody's leftovers.\n"
        "Without WHAT it is about all that you have left behind."
    )
    example = "  jupyter gpu release\n  jupyter gpu release 3 --yes\n  sudo jupyter gpu release"

    def __init__(self, device_folder: str = DEVICE_FOLDER) -> None:
        self._device_folder = device_folder

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what it is about, and the answer to the question."""
        parser.add_argument(
            "what",
            nargs="*",
            metavar="WHAT",
            help="a physical index, a UUID or its start, or the id of a lease",
        )
        parser.add_argument("--yes", action="store_true", help="end them without asking")

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Show what is left behind, ask, end it, and say what is free then."""
        del rest
        if not locks.possible():
            raise StoreError("There are no leases on this system, so nothing can be released.")
        found = find_leftovers(os.environ, options.what, device_folder=self._device_folder)
        if not found.leftovers.may_end:
            return answer(
                options,
                release_answer((), found.leftovers.left),
                found_view(found.leftovers, _now()),
            )
        with hold(found, pidfd_opener()) as targets:
            if not options.yes and not _agrees(options, found.leftovers):
                return 0
            released = end_leftovers(os.environ, found, targets)
        answer(
            options,
            release_answer(released.ended, released.left),
            released_view(released, _now()),
        )
        # Everything that was to be ended is gone, or this command has failed.
        return 0 if len(released.ended) == len(found.leftovers.may_end) else EXIT_FAILURE


def _agrees(options: Options, leftovers: Leftovers) -> bool:
    """Show what would be ended, and ask.

    Raises
    ------
    UsageError
        When there is nobody to ask.
    """
    asks = not options.json and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not options.json:
        answer(options, {}, found_view(leftovers, _now()))
        sys.stdout.flush()
    if not asks:
        raise UsageError("Nothing is ended: without a terminal to ask on, that needs --yes")
    sys.stderr.write(question(leftovers))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    answer(options, {}, View("Nothing is ended"))
    return False


def _now() -> datetime:
    return datetime.now().astimezone()


COMMAND = Release()
