"""``jupyter gpu remove``: removes a kernelspec that asks for GPUs."""

from __future__ import annotations

from argparse import ArgumentParser

from jupyter_gpu.core.view import View
from jupyter_gpu.faces import kernelspecs
from jupyter_gpu.faces.commands.command import Command, Options, answer


class Remove(Command):
    """Removes one of ours, and nobody else's."""

    name = "remove"
    about = (
        "Remove a kernelspec that asks for GPUs; any other stays. Of several of one name it is\n"
        "the one that Jupyter uses; the next is used then, and this says so."
    )
    example = "  jupyter gpu remove pytorch-2gpus"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the name."""
        parser.add_argument("spec", metavar="NAME", help="as  jupyter gpu list  shows it")

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Remove it, and say which folder is gone and which is used now."""
        del rest
        path = kernelspecs.remove(options.spec)
        left = kernelspecs.folder_of(options.spec)
        data = {
            "schema": 1,
            "removed": options.spec,
            "path": str(path),
            "used_now": None if left is None else str(left),
        }
        lines = () if left is None else (f"Another of that name is used now: {left}",)
        return answer(options, data, View(f"Removed {path}", lines=lines))


COMMAND = Remove()
