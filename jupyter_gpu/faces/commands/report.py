"""``jupyter gpu report``: who has used the GPUs, and how much."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from datetime import datetime

from jupyter_gpu.adapters.grant_log import LOG_DIRECTORY, GrantLog, still_alive
from jupyter_gpu.adapters.machine import is_simulated
from jupyter_gpu.adapters.place import SETUP_COMMAND, Place, find_place
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.grants import Log, usage
from jupyter_gpu.core.report_view import (
    USUAL_PERIOD,
    Report,
    by_user,
    parse_since,
    report_answer,
    report_view,
)
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.faces.commands.hold import require_leases


class UsageReport(Command):
    """Adds up the log of grants for every user."""

    name = "report"
    about = (
        "Who has used the GPUs, and how much: leases and device-hours of every user, from the\n"
        "log that cooperating programs write. What is used without a lease is not in it."
    )
    example = "  jupyter gpu report --since 2026-11-01\n  jupyter gpu report --user alice --json"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the period and the user."""
        parser.add_argument(
            "--since",
            metavar="WHEN",
            default=USUAL_PERIOD,
            help=f"7d, 36h, or a day such as 2026-11-01 ({USUAL_PERIOD})",
        )
        parser.add_argument("--user", metavar="NAME", help="only this user")

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer from the log and, for what has no end in it, from the lease directory."""
        del rest
        require_leases()
        now = datetime.now().astimezone()
        since = parse_since(options.since, now).astimezone()
        place = find_place(os.environ, simulated=is_simulated(os.environ))
        log = GrantLog(place).read(since)
        problem = None
        try:
            live, seen = still_alive(place, log.users)
        except StoreError as error:
            live, seen, problem = frozenset[str](), {}, str(error)
        uses = by_user(usage(log.users, since, now, live=live, seen=seen), options.user)
        report = Report(since, now, uses, log, options.user, problem, _advice(place, log))
        return answer(options, report_answer(report), report_view(report))


def _advice(place: Place, log: Log) -> str | None:
    """Return how to get a log, or one that lasts."""
    if place.kind == "shared" or (place.kind == "system" and not log.exists):
        words = f"For a log of the whole machine in {LOG_DIRECTORY}, run  {SETUP_COMMAND}"
        lasting = "This log ends with a restart of the machine. " if log.exists else ""
        return f"{lasting}{words}"
    return None if log.exists else "It begins with the first lease here."


COMMAND = UsageReport()
