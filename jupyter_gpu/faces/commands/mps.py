"""``jupyter gpu mps``: a control daemon of one's own, which makes the caps of shares hard."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path

from jupyter_gpu.adapters import mps
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.view import Column, Table, View
from jupyter_gpu.faces.commands.command import Command, Options, answer

_ACTIONS = ("start", "stop", "status")
_COLUMNS = (Column("Pid", right=True), Column("Program", shrinks=True))
_FROM_NOW_ON = (
    "Shares that start from now on go through it, with hard limits on memory and multiprocessors. "
    "Kernels that run already are not affected: restart them."
)


class MPS(Command):
    """Starts, stops and shows the daemon.

    ``environ`` and ``home`` are those of this process and this user where none are given.
    """

    name = "mps"
    about = (
        "NVIDIA's Multi-Process Service makes the caps of a share hard: it limits the memory\n"
        "and the multiprocessors of each process, whatever framework that uses. It limits no\n"
        "bandwidth, and a fault in one program can end the others on that GPU.\n"
        "start runs a control daemon for you, without root. It serves your own programs only;\n"
        "a share that starts afterwards goes through it, a kernel that runs already does not.\n"
        "stop ends it, and refuses while programs use it. status tells who does."
    )
    example = (
        "  jupyter gpu mps start\n"
        "  jupyter gpu run --gpus 1/4 -- python train.py    (goes through it)\n"
        "  jupyter gpu mps stop"
    )

    def __init__(self, environ: Mapping[str, str] | None = None, home: Path | None = None) -> None:
        self._environ, self._home = environ, home

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what is to be done, and the option of stop."""
        parser.add_argument("action", choices=_ACTIONS, help="what to do")
        parser.add_argument(
            "--force", action="store_true", help="stop although programs use it: they lose the GPU"
        )

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Do it, and say what is so now."""
        del rest
        environ = os.environ if self._environ is None else self._environ
        if options.force and options.action != "stop":
            raise UsageError(f"--force goes with stop, not with {options.action}.")
        if options.action == "status":
            daemon = mps.status(environ, home=self._home)
            return answer(options, _as_json(daemon), _status_view(daemon))
        if options.action == "start":
            daemon, changed = mps.start(environ, home=self._home)
            title = "Your MPS control daemon runs" + (" now" if changed else ", as it did")
            if not daemon.own:
                title = "The MPS control daemon that CUDA_MPS_PIPE_DIRECTORY names runs already"
            view = View(title, lines=(*_places(daemon), _FROM_NOW_ON))
        else:
            daemon, changed = mps.stop(environ, force=options.force, home=self._home)
            view = self._stopped_view(environ, changed=changed)
        return answer(options, {**_as_json(daemon), "changed": changed}, view)

    def _stopped_view(self, environ: Mapping[str, str], *, changed: bool) -> View:
        title = "Your MPS control daemon is stopped" if changed else "No daemon of yours runs"
        other = mps.status(environ, home=self._home)
        if not other.runs:
            return View(title)
        line = f"The one of {other.directory} goes on: {other.user or 'somebody'} has started it."
        return View(title, lines=(line,))


def _as_json(daemon: mps.Daemon) -> dict[str, object]:
    return {
        "schema": 1,
        "daemon": daemon.runs,
        "directory": daemon.directory,
        "pid": daemon.pid,
        "servers": list(daemon.servers),
        "clients": None if daemon.clients is None else len(daemon.clients),
        "log": daemon.log,
        "own": daemon.own,
        "user": daemon.user,
    }


def _status_view(daemon: mps.Daemon) -> View:
    if daemon.runs is False:
        start = "For hard limits on memory and multiprocessors:  jupyter gpu mps start"
        return View("No MPS control daemon runs for you", lines=(start,))
    rows = tuple((str(one.pid), one.command or "–") for one in daemon.clients or ())
    notes = []
    if daemon.runs is None:
        notes.append("Shares do not rely on it, and get the caps that frameworks keep to.")
    elif daemon.clients is None:
        notes.append(f"Who uses it is unknown: it does not answer, or {mps.PROGRAM} is missing.")
    if daemon.runs and not daemon.own and daemon.user == "root":
        notes.append(
            "root's daemon serves one user after the other: a program may have to wait for "
            "another user's."
        )
    return View(
        _title(daemon),
        tables=(Table("Programs", _COLUMNS, rows),) if rows else (),
        lines=_places(daemon),
        notes=tuple(notes),
    )


def _title(daemon: mps.Daemon) -> str:
    if daemon.runs is None:
        return "Whether an MPS control daemon runs cannot be seen from here"
    if daemon.clients is None:
        return "An MPS control daemon runs"
    if not daemon.clients:
        return "An MPS control daemon runs, and no program uses it"
    count = len(daemon.clients)
    used = "1 program uses it" if count == 1 else f"{count} programs use it"
    return f"An MPS control daemon runs, and {used}"


def _places(daemon: mps.Daemon) -> tuple[str, ...]:
    """Return where it is: each place stands in a line of its own, to be copied."""
    whose = f" of {daemon.user}" if daemon.user else ""
    process = () if daemon.pid is None else (f"Process    {daemon.pid}{whose}",)
    return (*process, f"Directory  {daemon.directory}", f"Log        {daemon.log}")


COMMAND = MPS()
