"""Every error that a person can meet, in one tree.

::

    GPUError
    ├── RequestError (ValueError)          the request itself is wrong: exit 2
    │   └── ImpossibleRequest              well formed, but this machine can never meet it
    ├── NoDeviceAvailable (RuntimeError)   nothing could be had now: exit 75
    ├── SimulationError (ValueError)       JUPYTER_GPU_SIMULATE cannot be read: exit 2
    ├── UsageError (ValueError)            a command or magic was called wrongly: exit 2
    ├── StoreError (OSError)               the lease directory cannot be used: exit 1
    ├── KernelspecError (RuntimeError)     a kernelspec cannot be installed or removed: exit 1
    └── CommandError (OSError)             run's command cannot be started: exit 127 or 126

An error holds its data and writes its own sentence: what was asked, what was found, what to do.
"""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 75  # EX_TEMPFAIL of sysexits.h: try again later

_SHOWN = 120  # characters of what was given


class GPUError(Exception):
    """The root; every error of this package is one, so that one ``except`` catches all."""

    exit_code = EXIT_FAILURE


class RequestError(GPUError, ValueError):
    """A request that cannot be read: it names the option, what was given and what is accepted."""

    exit_code = EXIT_USAGE

    def __init__(self, option: str, given: object, accepted: str) -> None:
        self.option, self.given, self.accepted = option, given, accepted
        try:
            shown = repr(given)
        except ValueError:  # Python writes no number of thousands of digits
            shown = "a huge number"
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
        super().__init__(f"{option}: {shown} is not {accepted}")


class UnknownOption(RequestError):
    """An option that does not exist."""

    def __init__(self, option: str, known: tuple[str, ...]) -> None:
        self.option, self.known = option, known
        sentence = f"There is no option {option!r}. The options are {', '.join(known)}."
        GPUError.__init__(self, sentence)


class ImpossibleRequest(RequestError):
    """A well-formed request that this machine can never meet, with what the machine has."""

    def __init__(self, sentence: str) -> None:
        GPUError.__init__(self, sentence)


class NoDeviceAvailable(GPUError, RuntimeError):
    """No device could be had now; the message says who holds what and what to do."""

    exit_code = EXIT_UNAVAILABLE


class SimulationError(GPUError, ValueError):
    """``JUPYTER_GPU_SIMULATE`` describes no machine that can be simulated."""

    exit_code = EXIT_USAGE


class UsageError(GPUError, ValueError):
    """A command or a magic was called in a way it does not know."""

    exit_code = EXIT_USAGE


class StoreError(GPUError, OSError):
    """The lease directory cannot be used; the sentence says why and what mends it."""


class KernelspecError(GPUError, RuntimeError):
    """A kernelspec could not be installed, found or removed."""


class CommandError(GPUError, OSError):
    """The command of ``run`` cannot be found (exit 127) or started (126), as shells tell it."""

    def __init__(self, command: str, reason: str | None = None) -> None:
        self.command = command
        self.exit_code = 127 if reason is None else 126
        GPUError.__init__(self, f"{command}: {reason or 'there is no such command'}.")
