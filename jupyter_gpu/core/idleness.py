"""Since when nobody uses a lease: the rule, and the words for who has left it. Pure.

A lease is idle while no cell runs and its devices do nothing. What is not known never counts as
idle, because kernels are ended for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.leases import Record
from jupyter_gpu.core.quantities import in_words, parse_seconds
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.view import View, spans

# A look at the devices says what they did since the one before, if that is no longer ago.
VOUCHED = timedelta(seconds=60)
IDLE_TIME = 'a time above 0 such as "30m" or "8h", or "none"'
# Requests that run the person's code. Others ask the kernel about itself, some every few seconds.
_RUNS_CODE = ("execute_request", "comm_open", "comm_msg", "comm_close")
_WAIT = ("wait", "waits")
_LONGEST_SECONDS = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Cells:
    """Which cells of a kernel run, as its status messages tell.

    ``running`` holds for each of its shells the message that it works at: a kernel with subshells
    says "idle" for one of them while a cell runs in another. ``ended`` is when the last one ended.
    ``heard`` is whether it has told anything yet: until then nothing is known.
    """

    running: Mapping[str | None, str] = field(default_factory=dict)
    ended: datetime | None = None
    heard: bool = False

    def told(self, state: object, parent: Mapping[str, object], at: datetime) -> Cells:
        """Return what is known after a status message.

        Parameters
        ----------
        state
            The kernel's ``execution_state``.
        parent
            The header of the request that it is about, empty where it is about none.
        at
            When it came.
        """
        message, lane = parent.get("msg_id"), parent.get("subshell_id")
        if parent.get("msg_type") not in _RUNS_CODE or not isinstance(message, str):
            return replace(self, heard=True)
        lane = lane if isinstance(lane, str) else None
        if state == "busy":
            # One shell does one thing at a time: what ran there before has ended.
            return Cells({**self.running, lane: message}, self.ended, heard=True)
        if state != "idle":
            return replace(self, heard=True)
        left = {key: one for key, one in self.running.items() if one != message}
        return Cells(left, at, heard=True)


@dataclass(frozen=True, slots=True)
class Idleness:
    """What is known of a lease's use at one moment.

    ``active`` is the last moment at which it was used, or may have been; ``seen`` the last one of
    which anything is known; ``quiet`` whether its devices have been seen to do nothing since.
    """

    active: datetime
    seen: datetime
    quiet: bool = False

    @classmethod
    def begins(cls, at: datetime) -> Idleness:
        """Return what is known of a kernel that has just been started."""
        return cls(at, at)

    def used(self, at: datetime) -> Idleness:
        """Return what is known after a cell that ended, or still runs, at a moment."""
        return self if at <= self.active else Idleness(at, max(at, self.seen))

    def looked(self, at: datetime, percents: Iterable[float | None]) -> Idleness:
        """Return what is known after a look at the load of each of its devices.

        Work of others on a shared device cannot be told from its own and counts as work; so does
        a load that is unknown, and a time in which nobody has looked.
        """
        since = at - self.seen
        if -VOUCHED <= since <= timedelta(0):
            return self  # it tells of a time before the last cell's end, or has been counted
        loads = tuple(percents)
        quiet = bool(loads) and all(load is not None and load <= 0 for load in loads)
        continuous = timedelta(0) < since <= VOUCHED  # else the clock, or the machine, has jumped
        return Idleness(self.active if quiet and continuous else at, at, quiet)

    def since(self, now: datetime, least_seconds: float) -> datetime | None:
        """Return since when it has been idle; None where it is not, or nobody knows.

        Who works in a notebook pauses all the time, so less than ``least_seconds`` is no idleness.
        """
        stale = abs(now - self.seen) > VOUCHED
        brief = (now - self.active).total_seconds() < least_seconds
        return None if not self.quiet or stale or brief else self.active


def parse_idle_time(option: str, given: object) -> float | None:
    """Return the seconds of an idle time as a person writes it; None where it is switched off.

    Raises
    ------
    RequestError
        When it is not a time above 0: ending kernels is not for guessing.
    """
    if given in (None, "", "none"):
        return None
    try:
        seconds = parse_seconds(option, given)
    except RequestError:
        raise RequestError(option, given, IDLE_TIME) from None
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise RequestError(option, given, IDLE_TIME)
    return seconds


def shorter(*times: float | None) -> float | None:
    """Return the shortest of some times, None for no time."""
    return min((seconds for seconds in times if seconds is not None), default=None)


def is_over(idle_since: str | None, seconds: float, now: datetime) -> bool:
    """Return whether a lease has been idle for so long; what is unknown is not."""
    return idle_since is not None and seconds_left(idle_since, seconds, now) <= 0


def seconds_left(idle_since: str, seconds: float, now: datetime) -> float:
    """Return how long it takes until a lease has been idle for so many seconds."""
    return seconds - (now - datetime.fromisoformat(idle_since)).total_seconds()


def idle_view(record: Record, waiting: int, now: datetime) -> View:
    """Return what a kernel is told that holds devices and uses none of them.

    Parameters
    ----------
    record
        Its lease's.
    waiting
        How many wait who could use one of its devices.
    now
        The present, in the reader's time zone.
    """
    count = len(record.uuids)
    since = since_in_words(record.owner.idle_since or "", now)
    shown = f"physical {spans(record.indices)}"
    held = f"{record.share_words} ({shown})" if record.share_words else shown
    it, each = ("it", "it does") if count == 1 else ("them", "they do")
    lines = [f"No cell has run since then, and {each} nothing."]
    if waiting:
        one_of = "it" if count == 1 else "one of them"
        lines.append(f"{in_words(waiting, 'other')} {_WAIT[waiting == 1]} for {one_of}.")
    lines.append(f"To give {it} back:  Kernel > Shut Down Kernel,  or  %gpu use 0")
    return View(
        title=f"{in_words(count)} idle since {since}: this kernel holds {held}.",
        lines=tuple(lines),
    )
