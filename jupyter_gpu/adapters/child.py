"""One command as a child that gets its parent's signals, and whose end is the parent's end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType

from jupyter_gpu.core.errors import CommandError

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALLED = 128


class Child:
    """A running command. Use it in a ``with``, in the main thread: signals are held meanwhile.

    Parameters
    ----------
    command, environment
        What to run, and the whole of its environment.
    pass_fds
        Descriptors that it inherits beside the standard three.

    Raises
    ------
    CommandError
        When it cannot be started.
    """

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], pass_fds: tuple[int, ...]
    ) -> None:
        # From here on signals wait until they are asked for, so that none is lost between the
        # start and the wait. The command itself gets back the mask that we came with.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=pass_fds,
                preexec_fn=self._restore,  # noqa: PLW1509 - this process has no other thread
            )
        except OSError as error:
            self._restore()
            reason = None if isinstance(error, FileNotFoundError) else error.strerror
            raise CommandError(command[0], reason) from error

    def _restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let signals through again; the command, if it still runs, goes on."""
        self._restore()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def wait(self) -> int:
        """Pass signals on until it ends; returns its status, 128+n when signal n ended it."""
        while self._process.poll() is None:
            number, everywhere = _next_signal()
            # What a terminal sends goes to its whole foreground group, this child included.
            if number in FORWARDED and not everywhere:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(self.pid, number)
        code = self._process.returncode
        return code if code >= 0 else _SIGNALLED - code


def _next_signal() -> tuple[int, bool]:
    """Wait for a signal; tell its number, and whether the system sent it to a whole group."""
    waited = (*FORWARDED, signal.SIGCHLD)
    if sys.platform == "linux":
        info = signal.sigwaitinfo(waited)
        return info.si_signo, info.si_code > 0  # SI_KERNEL; kill(2) gives SI_USER, 0
    number = signal.sigwait(waited)
    return number, number == signal.SIGINT
