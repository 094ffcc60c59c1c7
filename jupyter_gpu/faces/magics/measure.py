"""``%%gpu`` on top of a cell: what it took of every visible device, and how long."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from jupyter_gpu.adapters import torch_memory
from jupyter_gpu.adapters.sampler import Sampler
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.measurement import Cell, Ending, Measurement, Recording, measurement
from jupyter_gpu.core.view import machine_words
from jupyter_gpu.faces.inner_cell import InnerCell, Run

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.faces.magics.context import Context
    from jupyter_gpu.faces.magics.subcommand import Options


class Measure:
    """How ``%%gpu`` is called, for its help and for complaints."""

    name: ClassVar[str] = ""
    usage: ClassVar[str | None] = "%(prog)s[-h] [-o NAME] [--json]"
    about: ClassVar[str] = (
        "Run the cell and show what it took: the memory of each visible device, its load and its "
        "energy, and the time. These are the whole device's, whoever uses it; where PyTorch has "
        "initialised CUDA, its allocator's numbers for this kernel stand beside them, and its own "
        "peak counter (torch.cuda.max_memory_allocated) begins anew with the cell. Work that the "
        "cell leaves running on a device is not in its time: end it with torch.cuda.synchronize() "
        "where that matters."
    )
    example: ClassVar[str] = "  %%gpu -o step\n  loss = model(batch).sum(); loss.backward()"
    hint: ClassVar[str] = " The cell's code stands below the line. Subcommands: %gpu, one %."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option that keeps the result."""
        parser.add_argument(
            "-o", dest="output", metavar="NAME", help="keep the result in this variable too"
        )


COMMAND = Measure()


def prepare(context: Context, options: Options, cell: str) -> InnerCell | None:
    """Return the cell, or None where its syntax is wrong and has been complained of.

    Raises
    ------
    UsageError
        When the variable's name is none, or the cell cannot be run inside a magic.
    SyntaxError
        Outside of IPython's own run of a cell, where nobody has been told.
    """
    name, shell = options.output, context.shell
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"-o {name}: this is not the name of a variable.")
    try:
        return InnerCell(shell, cell)
    except SyntaxError as error:
        result = shell.displayhook.exec_result
        if result is None:
            raise
        # Raised from here, it would be shown with all the frames of the magic above it.
        shell.showsyntaxerror()
        result.error_before_exec = error
        return None


def measure(context: Context, options: Options, inner: InnerCell) -> Mapping[str, object] | None:
    """Run a cell and show what it took, after its own output and before its error.

    Returns
    -------
    Mapping or None
        The data, where ``--json`` asks for it and no variable takes it.

    Raises
    ------
    BaseException
        Whatever the cell itself ends with.
    """
    before = context.overview()
    watched, frozen, count = _watched(before), _is_frozen(before), _count(before)
    allocated = torch_memory.begin(count, frozen=frozen)
    machine = context.machine()
    with Sampler(lambda: machine.gauge(watched), len(watched)) as sampler:
        run = inner.run()
        recording = sampler.stop()
    try:
        measured = _measured(context, run, recording, watched, allocated)
        data = _hand_over(context, measured, options, failed=run.failure is not None)
    except Exception as error:  # noqa: BLE001 - the cell has run: its own end counts, not ours
        print(f"%%gpu could not tell what the cell took: {error}", file=sys.stderr)  # noqa: T201
        data = None
    if run.failure is not None:
        inner.fail(run.failure)
    return data


def _measured(
    context: Context,
    run: Run,
    recording: Recording,
    watched: tuple[str, ...],
    allocated: Mapping[int, int] | None,
) -> Measurement:
    after = context.overview()
    cell = Cell(
        run.seconds,
        _ending(run),
        after.shown,
        watched,
        torch_memory.end(_count(after), allocated, frozen=_is_frozen(after)),
    )
    inventory = after.inventory
    return measurement(recording, cell, inventory, machine=machine_words(inventory))


def _hand_over(
    context: Context, measured: Measurement, options: Options, *, failed: bool
) -> Mapping[str, object] | None:
    """Show the measurement, keep it where a name is given, and return the data to return."""
    from IPython.display import display  # noqa: PLC0415 - only inside IPython

    data = measured.as_json() if options.json else None
    if options.output is not None:
        context.shell.push({options.output: measured if data is None else data})
    if data is None:
        display(measured)
    elif options.output is None and failed:
        display(data)  # a cell that fails returns nothing
    return data if options.output is None else None


def _ending(run: Run) -> Ending:
    if isinstance(run.failure, KeyboardInterrupt):
        return "interrupted"
    return "failed" if isinstance(run.failure, Exception) else "done"


def _is_frozen(overview: Overview) -> bool:
    return overview.process is not None and overview.process.state == "frozen"


def _count(overview: Overview) -> int:
    in_force = None if overview.process is None else overview.process.in_force
    return len(in_force or ())


def _watched(overview: Overview) -> tuple[str, ...]:
    """Return the devices to sample: those in force; before CUDA is frozen, all that may be.

    A cell can still choose its devices then, and what is in force is known only after it.
    """
    process = overview.process
    if process is not None and process.in_force is not None:
        return tuple(row.uuid for row in process.in_force if row.uuid is not None)
    devices = (device for device in overview.inventory.devices if not device.mig_mode)
    return tuple(device.uuid for device in devices if device.uuid is not None)
