"""A request's options on a command line: the names of interface.md with dashes."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.request import OPTIONS
from jupyter_gpu.faces.commands.command import Options

_HELP = {
    "gpus": 'how many: 1 (the default), 2, …, 0, "all"; a share of one, such as 1/4; '
    "or a MIG device by its profile, such as mig:1g.18gb",
    "devices": "choose from these: physical indices or UUIDs, by comma",
    "min_free_memory": 'memory that must be free on each, such as "20GiB"',
    "model": 'a part of the model\'s name, such as "H200"',
    "wait": 'how long to wait for them, such as "10m"',
    "identifiers": "how CUDA_VISIBLE_DEVICES names them: auto, index or uuid",
    "topology": "devices joined by NVLink: any (the default: no matter), prefer or require",
    "cpu_affinity": "which CPUs the program may use: none (the default: no matter) or closest "
    "(those near its devices)",
    "memory_cap": "memory that it may use on each device: auto (the default: a share's part), "
    'none, or less than that, such as "10GiB"',
    "on_unavailable": "what a kernel does without: cpu (the default), wait or error",
}
# Slurm's, fixed by the interface, but of a later release: refused by name.
_SLURM = (
    *("slurm", "partition", "account", "qos", "time", "cpus", "mem", "constraint", "nodelist"),
    *("gpu-type", "gpu-bind", "extra"),
)
_METAVARS = {
    "gpus": "N",
    "wait": "T",
    "min_free_memory": "SIZE",
    "memory_cap": "SIZE",
    "devices": "LIST",
}


def add_request_arguments(parser: ArgumentParser, *, without: tuple[str, ...] = ()) -> None:
    """Add every option of a request but some."""
    group = parser.add_argument_group("what is asked for")
    for name in OPTIONS:
        if name not in without:
            group.add_argument(_flag(name), metavar=_METAVARS.get(name, "NAME"), help=_HELP[name])


def add_slurm_arguments(parser: ArgumentParser) -> None:
    """Add Slurm's options, so that they are refused by name and not as unknown."""
    for name in _SLURM:
        parser.add_argument(_flag(name), nargs="?", const=True, help=SUPPRESS)


def refuse_slurm(options: Options) -> None:
    """Refuse Slurm's options.

    Raises
    ------
    UsageError
        Naming the first one given.
    """
    for name in _SLURM:
        if getattr(options, name.replace("-", "_")) is not None:
            raise UsageError(f"The option --{name} is not built yet; leave it out.")


def given_options(options: Options) -> dict[str, object]:
    """Return the request's options that were given, as they were written."""
    values = {name: getattr(options, name, None) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
