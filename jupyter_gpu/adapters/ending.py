"""Ends processes, and surely those that were meant: a pid may be another process's by now.

Where the system has pidfds a process is held by one before anybody is asked, and every signal goes
through it. Elsewhere the start time is compared once more right before a signal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from jupyter_gpu.adapters import processes
from jupyter_gpu.core.leases import ProcessRef

GRACE_SECONDS = 5.0
LAST_SECONDS = 2.0
_EVERY_SECONDS = 0.02  # where there is no pidfd to wait for
# Systems without pidfds, and sandboxes that forbid them.
_NO_PIDFD = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EMFILE, errno.ENFILE)

Opener = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a process: ``signal`` is the last one it got, None where it had gone before.

    ``problem`` says why it still lives.
    """

    pid: int
    signal: Literal["TERM", "KILL"] | None = None
    problem: str | None = None


def pidfd_opener() -> Opener | None:
    """Return what opens a pidfd, None where the system has none."""
    opener: Opener | None = getattr(os, "pidfd_open", None)
    return opener if hasattr(signal, "pidfd_send_signal") else None


class Target:
    """One process that may be ended; ``close`` it.

    Parameters
    ----------
    pid
        Its number.
    start
        Its start time in clock ticks since boot, which tells it from a later one with its number.
    fd
        A pidfd of it, where the system has those.
    """

    def __init__(self, pid: int, start: int, fd: int | None) -> None:
        self.pid, self._start, self._fd = pid, start, fd

    @classmethod
    def find(cls, pid: int, start: int, opener: Opener | None) -> Target | None:
        """Return the process with this number and start time, None where it is gone."""
        fd = None
        if opener is not None:
            try:
                fd = opener(pid)
            except OSError as error:
                if error.errno not in _NO_PIDFD:
                    return None
        target = cls(pid, start, fd)
        # Opened first and looked at then: whoever has this start time now had the pid before.
        if target.lives():
            return target
        target.close()
        return None

    @property
    def fd(self) -> int | None:
        """The pidfd, which can be read from once the process has ended."""
        return self._fd

    def lives(self) -> bool:
        """Return whether the process is there and has not ended."""
        reference = ProcessRef(self.pid, self._start, processes.pid_namespace())
        return processes.is_alive(reference) is True

    def send(self, number: signal.Signals) -> str | None:
        """Send a signal; returns why that could not be done, None also where it has ended."""
        try:
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)  # type: ignore[attr-defined,unused-ignore] # Linux only
            elif self.lives():
                os.kill(self.pid, number)
        except ProcessLookupError:
            return None
        except PermissionError:
            return "this user may not end it"
        return None

    def close(self) -> None:
        """Close the pidfd."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Targets:
    """Several processes, held from before a question until they have ended. Use it in a ``with``.

    Parameters
    ----------
    wanted
        The number and the start time of each.
    opener
        Opens a pidfd; None where the system has none.
    """

    def __init__(self, wanted: Iterable[tuple[int, int]], *, opener: Opener | None = None) -> None:
        self._targets: dict[int, Target | None] = {
            pid: Target.find(pid, start, opener) for pid, start in wanted
        }

    def __enter__(self) -> Targets:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for target in self._targets.values():
            if target is not None:
                target.close()

    def end(
        self, *, grace_seconds: float = GRACE_SECONDS, last_seconds: float = LAST_SECONDS
    ) -> tuple[Outcome, ...]:
        """Ask each to end, kill those that do not, and wait until they are gone.

        Returns an outcome for each, in the order they were given in.
        """
        there = [one for one in self._targets.values() if one is not None and one.lives()]
        refused: dict[int, str] = {}
        asked = _sent(there, signal.SIGTERM, refused)
        stubborn = _left_after(grace_seconds, asked)
        killed = _sent(stubborn, signal.SIGKILL, refused)
        left = {target.pid for target in _left_after(last_seconds, killed)}
        names: dict[int, Literal["TERM", "KILL"]] = {
            **{target.pid: "TERM" for target in asked},
            **{target.pid: "KILL" for target in killed},
        }
        still = "it has not ended, although it was killed: it waits inside the system's kernel"
        return tuple(
            Outcome(pid, names.get(pid), still if pid in left else refused.get(pid))
            for pid in self._targets
        )


def _sent(
    targets: Iterable[Target], number: signal.Signals, refused: dict[int, str]
) -> list[Target]:
    """Send a signal to each; returns those that got it, and notes why the others did not."""
    got = []
    for target in targets:
        problem = target.send(number)
        if problem is None:
            got.append(target)
        else:
            refused[target.pid] = problem
    return got


def _left_after(seconds: float, targets: Sequence[Target]) -> list[Target]:
    """Wait until all have ended, at most so long; returns those that have not."""
    deadline = time.monotonic() + seconds
    left = [target for target in targets if target.lives()]
    while left and (rest := deadline - time.monotonic()) > 0:
        _wait_for_one(left, rest)
        left = [target for target in left if target.lives()]
    return left


def _wait_for_one(targets: Sequence[Target], seconds: float) -> None:
    descriptors = [target.fd for target in targets]
    if None in descriptors:
        time.sleep(min(seconds, _EVERY_SECONDS))
        return
    poller = select.poll()
    for fd in descriptors:
        assert fd is not None, "looked at above"
        poller.register(fd, select.POLLIN)
    with contextlib.suppress(InterruptedError):
        poller.poll(max(1, int(seconds * 1000)))
