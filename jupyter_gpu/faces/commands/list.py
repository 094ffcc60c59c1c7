"""``jupyter gpu list``: the kernelspecs that ask for GPUs."""

from __future__ import annotations

from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.view import Column, Table, View
from jupyter_gpu.faces.commands.command import Command, Options, answer
from jupyter_gpu.faces.kernelspecs import InstalledSpec, installed

_COLUMNS = (
    Column("Name"),
    Column("Display name", shrinks=True),
    Column("GPUs", right=True),
    Column("Provisioner"),
    Column("Folder"),
)


class ListSpecs(Command):
    """Lists what Jupyter finds, whether or not a server here could start it."""

    name = "list"
    about = "The kernelspecs that ask for GPUs, those whose server part is missing included."
    example = "  jupyter gpu list"
    has_arguments = False

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Answer with one row a kernelspec."""
        del rest
        specs = installed()
        rows = tuple(
            (s.name, s.display_name, str(s.gpus), s.provisioner or "none", str(s.path))
            for s in specs
        )
        view = View(
            title=f"{in_words(len(specs), 'kernelspec')} for GPUs" if specs else _NONE,
            tables=(Table("Kernelspecs", _COLUMNS, rows, headed=True),) if rows else (),
        )
        data = {"schema": 1, "kernelspecs": [as_json(spec) for spec in specs]}
        return answer(options, data, view)


_NONE = "There is no kernelspec for GPUs: make one with  jupyter gpu install --gpus 1"


def as_json(spec: InstalledSpec) -> dict[str, object]:
    """Return a kernelspec as interface.md has it."""
    return {
        "name": spec.name,
        "display_name": spec.display_name,
        "gpus": spec.gpus,
        "provisioner": spec.provisioner,
        "path": str(spec.path),
        "wrapper": spec.wrapper,
    }


COMMAND = ListSpecs()
