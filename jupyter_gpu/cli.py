"""The command ``jupyter gpu``: finds the subcommand; errors become sentences and exit codes.

A subcommand's module is imported when it is called, because ``status`` has to answer quickly.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import signal
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import EXIT_FAILURE, EXIT_USAGE, GPUError, UsageError

if TYPE_CHECKING:
    from jupyter_gpu.faces.commands.command import Command

SUMMARIES = MappingProxyType(
    {
        "status": "every GPU: memory, load, and who has it",
        "who": "every lease, and who waits",
        "map": "what CUDA makes of a value of CUDA_VISIBLE_DEVICES",
        "run": "run a command on GPUs that nobody else has",
        "install": "make a kernelspec that asks for GPUs",
        "remove": "remove such a kernelspec",
        "list": "list such kernelspecs",
        "doctor": "check driver, leases, servers and kernelspecs",
        "mps": "a daemon that makes the caps of shares hard: start, stop, status",
        "setup": "make the machine-wide lease directory (root)",
        "hold": "take a device out of service (root)",
        "unhold": "put it back into service (root)",
        "report": "who has used the GPUs, and how much",
        "release": "end what a kernel that is gone has left behind",
    }
)
_SIGNALLED = 128
_PLAIN = "jupyter-gpu-plain"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code; the entry point ``jupyter-gpu``.

    0 for success; 1 for a failure of our own, and for ``doctor`` when a check fails; 2 for wrong
    usage and for a request that this machine can never meet; 75 when no device could be had now.
    ``run`` gives its command's own, and 127 or 126 where that cannot be found or started.
    """
    _open_what_is_closed()
    codecs.register_error(_PLAIN, _in_plain_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except GPUError as error:
        from jupyter_gpu.core.render_text import wrapped_lines  # noqa: PLC0415 - only after a mistake

        _explain(f"{wrapped_lines(f'jupyter gpu: {error}')}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        # The reader has seen enough. Python would complain when it flushes at exit.
        _silence_output()
        return _SIGNALLED + 13  # SIGPIPE, as other commands end
    except OSError as error:
        # The answer could not be written: a full disk, say.
        _silence_output()
        _explain(f"jupyter gpu: the answer could not be written: {error.strerror}\n")
        return EXIT_FAILURE
    return code


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """Write what a terminal has no letters for with those that it has: "1/4" for "¼", else "?"."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import unicodedata  # noqa: PLC0415 - few terminals need it

    text = unicodedata.normalize("NFKC", error.object[error.start : error.end]).replace("⁄", "/")
    return "".join(letter if letter.isascii() else "?" for letter in text), error.end


def _open_what_is_closed() -> None:
    """Let cron and daemons close our standard streams: what is said then goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _silence_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _explain(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens
        sys.stderr.write(text)
        sys.stderr.flush()


def _dispatch(words: list[str]) -> int:
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if name == "--version":
        from jupyter_gpu import __version__  # noqa: PLC0415 - rarely asked

        sys.stdout.write(f"{__version__}\n")
        return 0
    if not name:
        _explain(_help())
        return EXIT_USAGE
    return _command(name).main(rest)


def _command(name: str) -> Command:
    if name in SUMMARIES:
        module = importlib.import_module(f"jupyter_gpu.faces.commands.{name}")
        command: Command = module.COMMAND
        return command
    if name == "monitor":
        raise UsageError(
            "The monitor is shown in a notebook:  %gpu monitor  Here there is  jupyter gpu status"
        )
    from jupyter_gpu.core.spelling import did_you_mean  # noqa: PLC0415 - only after a mistake

    raise UsageError(
        f"There is no command {name!r}.{did_you_mean(name, SUMMARIES)} See  jupyter gpu --help"
    )


def _help() -> str:
    rows = "\n".join(f"  {name:<9} {summary}" for name, summary in SUMMARIES.items())
    return (
        "usage: jupyter gpu COMMAND [options]\n\n"
        "GPUs that nobody else has, for kernels and commands.\n\n"
        f"{rows}\n\n"
        "Every command has --json and --help.\n"
        "Example:  jupyter gpu run --gpus 2 -- python train.py\n"
    )
