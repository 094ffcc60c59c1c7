"""The magic ``%gpu``: what is true in this kernel and on its machine."""

from __future__ import annotations

import dataclasses
import os
import shlex
from datetime import datetime
from typing import NoReturn

from jupyter_gpu.adapters.launch import Launch
from jupyter_gpu.adapters.machine import SIMULATE, Machine, find_machine
from jupyter_gpu.core.answers import map_answer, status_answer, who_answer
from jupyter_gpu.core.kernel_view import kernel_view
from jupyter_gpu.core.machine_view import map_view, who_view
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.spelling import did_you_mean
from jupyter_gpu.core.view import View
from jupyter_gpu.faces.extension import HELP, SUBCOMMANDS
from jupyter_gpu.kernel_process import look_at_kernel
from jupyter_gpu.overview import read_overview, read_value


class Shown:
    """What ``%gpu`` returns: one view, as text and as HTML."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __repr__(self) -> str:
        return as_text(self._view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return both forms; IPython calls this to display the object."""
        del include, exclude  # IPython filters the bundle itself
        return {"text/plain": as_text(self._view), "text/html": as_html(self._view)}


class GPUMagic:
    """The magic of one shell. Keeps its machine open, so that a second ``%gpu`` is quick."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._opened_for: tuple[int, str | None] | None = None
        self._machine: Machine | None = None

    def close(self) -> None:
        """Close the machine; the next ``%gpu`` opens it again."""
        machine, self._machine, self._opened_for = self._machine, None, None
        if machine is not None:
            machine.__exit__(None, None, None)

    def line(self, line: str) -> Shown | dict[str, object] | None:
        """Answer ``%gpu …``; IPython calls this."""
        words = _split(line)
        as_json = "--json" in words
        if {"-h", "--help"} & set(words):
            print(HELP)  # noqa: T201 - a magic's help goes to the cell's output
            return None
        words = [word for word in words if word != "--json"]
        if "--" in words:
            words.remove("--")
        command, *rest = words or ["status"]
        if command not in SUBCOMMANDS:
            _refuse(
                f"%gpu has no {command!r}.{did_you_mean(command, SUBCOMMANDS)} "
                f"There are: {', '.join(SUBCOMMANDS)}; %gpu --help shows each."
            )
        if len(rest) > (command == "map"):
            _refuse(f"%gpu {command} does not know what to do with {rest[-1]!r}: see %gpu --help")
        if command == "map":
            return self._map(rest, as_json=as_json)
        return self._overview(command, as_json=as_json)

    def cell(self, line: str, cell: str) -> NoReturn:
        """Refuse ``%%gpu``, which is part of the interface but not of this release."""
        del line, cell
        _refuse("%%gpu is not built yet; %gpu, on a line of its own, is.")

    def _overview(self, command: str, *, as_json: bool) -> Shown | dict[str, object]:
        overview = read_overview(
            os.environ, machine=self._open_machine(), sensors=command == "status"
        )
        now = datetime.now().astimezone()
        if command == "who":
            return who_answer(overview) if as_json else Shown(who_view(overview, now))
        process = look_at_kernel(os.environ, overview.inventory, self._launch)
        overview = dataclasses.replace(overview, process=process)
        return status_answer(overview) if as_json else Shown(kernel_view(overview, process, now))

    def _map(self, rest: list[str], *, as_json: bool) -> Shown | dict[str, object]:
        overview: Overview = read_overview(os.environ, machine=self._open_machine(), sensors=False)
        found = overview.visible
        if rest:
            found = read_value(rest[0], overview.inventory, os.environ)
        return map_answer(found) if as_json else Shown(map_view(found, overview.inventory))

    def _open_machine(self) -> Machine:
        """Return the machine that is meant now: another one after a fork or a new simulation."""
        wanted = (os.getpid(), os.environ.get(SIMULATE))
        if self._machine is None or self._opened_for != wanted:
            if self._opened_for is not None and self._opened_for[0] == wanted[0]:
                self.close()
            self._machine, self._opened_for = find_machine(os.environ), wanted
        return self._machine


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        _refuse(f"%gpu: {error} in {line!r}")


def _refuse(sentence: str) -> NoReturn:
    from IPython.core.error import UsageError  # noqa: PLC0415 - only inside IPython

    raise UsageError(sentence)
