"""``jupyter gpu install``: makes a kernelspec that asks for GPUs."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path

from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.core.policy import require_possible
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.view import View
from jupyter_gpu.faces import kernelspecs
from jupyter_gpu.faces.commands.command import Command, Options, answer, explain
from jupyter_gpu.faces.commands.list import as_json
from jupyter_gpu.faces.commands.request_options import (
    add_request_arguments,
    add_slurm_arguments,
    given_options,
    refuse_slurm,
)


class Install(Command):
    """Writes one kernelspec, after checking what it asks for against this machine."""

    name = "install"
    about = (
        "Make a kernelspec that asks for GPUs: PyTorch for this Python, or a GPU version of\n"
        "any kernelspec that is there already, in any language. Where Jupyter goes on using\n"
        "another kernelspec of the same name, the new one is written all the same, this says\n"
        "so, and the exit status is 0: a Jupyter with another path may use it."
    )
    example = (
        '  jupyter gpu install --gpus 2                 "PyTorch (2 GPUs)"\n'
        '  jupyter gpu install --gpus 1/4               "PyTorch (¼ GPU)"\n'
        "  jupyter gpu install --gpus 1 --from julia-1.11\n"
        "  jupyter gpu install --python ~/venvs/new/bin/python --wait 10m"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the request's options, and those about the kernelspec and its place."""
        add_request_arguments(parser)
        spec = parser.add_argument_group("the kernelspec")
        spec.add_argument("--from", dest="source", metavar="NAME", help="start from this one")
        spec.add_argument("--name", help="its folder's name")
        spec.add_argument("--display-name", metavar="TEXT", help="what the launcher shows")
        spec.add_argument("--python", metavar="EXE", help="the Python that runs the kernel")
        spec.add_argument(
            "--env", action="append", default=[], metavar="K=V", help="a variable of the kernel"
        )
        spec.add_argument(
            "--no-provisioner",
            action="store_true",
            help="lease in the kernel alone, for servers that do not have this package",
        )
        place = parser.add_argument_group("where it goes").add_mutually_exclusive_group()
        place.add_argument("--user", action="store_true", help="this user's folder (the default)")
        place.add_argument("--sys-prefix", action="store_true", help="this Python's environment")
        place.add_argument("--prefix", metavar="P", help="another environment")
        add_slurm_arguments(parser)

    def run(self, options: Options, rest: tuple[str, ...] | None) -> int:
        """Check the request, write the kernelspec, and say where it is."""
        del rest
        refuse_slurm(options)
        given = given_options(options)
        request = Request.parse(given)
        _check(request)
        written: dict[str, object] = {**given, "gpus": request.amount}
        if request.devices:
            written["devices"] = list(request.devices)
        found = kernelspecs.install(
            written,
            name=options.name,
            display_name=options.display_name,
            source=options.source,
            python=options.python,
            env=options.env,
            where=_where(options),
            provisioner=not options.no_provisioner,
        )
        if not found.wrapper:
            explain(
                "Only a Jupyter server that has jupyter-gpu leases for it: front ends that start\n"
                "kernels themselves, such as VS Code, do not."
            )
        hidden_by = None if found.hidden_by is None else str(found.hidden_by)
        data = {"schema": 1, "kernelspec": {**as_json(found), "hidden_by": hidden_by}}
        return answer(options, data, _view(found))


def _view(found: kernelspecs.InstalledSpec) -> View:
    """Return what was done; where Jupyter uses another of that name, that this one is not used."""
    if found.hidden_by is None:
        return View(f'Installed "{found.display_name}" as {found.name} in {found.path}')
    return View(
        f'Not in use: Jupyter goes on using another "{found.name}"',
        lines=(
            f"Used: {found.hidden_by}",
            f"Written, but later on Jupyter's path: {found.path}",
            f"To have both, install it under a name of its own:  --name {found.name}-mine",
        ),
    )


def _where(options: Options) -> kernelspecs.Where:
    if options.prefix is not None:
        return Path(options.prefix)
    return "sys-prefix" if options.sys_prefix else "user"


def _check(request: Request) -> None:
    """Refuse what this machine can never give; say so where that cannot be known here."""
    with find_machine(os.environ) as machine:
        inventory = machine.read(sensors=False)
        topology = machine.topology() if request.topology == "require" else None
    if inventory.gpus:
        require_possible(request, inventory, inventory.devices, topology=topology)
    elif request.gpus != 0:
        why = inventory.problem or "no GPU is here"
        explain(f"Not checked against this machine: {why}")


COMMAND = Install()
