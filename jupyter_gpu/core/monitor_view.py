"""What a monitor shows of one moment: a card for each device, and the page as text. Pure.

A card has the newest reading of its device; what a reading leaves out comes from the overview,
which may be some seconds older.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jupyter_gpu.core.curves import known
from jupyter_gpu.core.devices import Device, Process
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.kernel_view import (
    lease_lines,
    mismatches,
    others_words,
    state_words,
    title_words,
)
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.live import Moment, Point, memory_here
from jupyter_gpu.core.machine_view import full_stop, limit_lines, queue_lines, site_notes
from jupyter_gpu.core.overview import SeenProcess
from jupyter_gpu.core.quantities import in_gib
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.core.view import Column, Table, View, machine_notes, machine_words, model_words

_GONE = "NVML no longer lists it"
_UUID_LENGTH = 12
_MODEL_LENGTH, _USER_LENGTH, _COMMAND_LENGTH, _PROBLEM_LENGTH = 32, 12, 24, 240
_COLUMNS = (
    Column("Visible = physical"),
    Column("Model", shrinks=True),
    Column("Memory", right=True),
    Column("This kernel", right=True),
    Column("Load", right=True),
    Column("Heat", right=True),
    Column("Power", right=True),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to show: ``uuids`` in this order, None for every visible device; one line each, or not.

    A device that is named and not visible in the kernel is shown all the same, and said to be so.
    """

    uuids: tuple[str, ...] | None = None
    compact: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """A process on a device: whose it is in words, and whether it counts as this kernel."""

    pid: int
    words: str
    memory_bytes: int | None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One device at one moment; None is unknown.

    ``ordinal`` is None for a device that is not visible in the kernel. ``problem`` is a sentence
    about what is wrong with it. ``processes`` are this kernel's first, then the largest.
    """

    uuid: str | None
    ordinal: int | None
    index: int | None
    model: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_mine_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    processes: tuple[Holding, ...] = ()
    problem: str | None = None
    points: Sequence[Point] = ()

    @property
    def memory_others_bytes(self) -> int | None:
        """What is in use and not this kernel's: others have it, or the driver itself."""
        if self.memory_used_bytes is None or self.memory_mine_bytes is None:
            return None
        return max(self.memory_used_bytes - self.memory_mine_bytes, 0)

    @property
    def memory_free_bytes(self) -> int | None:
        """What nobody uses."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return max(self.memory_total_bytes - self.memory_used_bytes, 0)

    @property
    def name(self) -> str:
        """``"cuda:0"``, or ``"physical 5"`` for what is not visible."""
        if self.ordinal is not None:
            return f"cuda:{self.ordinal}"
        if self.index is not None:
            return f"physical {self.index}"
        return "unknown device" if self.uuid is None else clean(self.uuid)[:_UUID_LENGTH]

    @property
    def heading(self) -> tuple[str, str, str]:
        """What stands before the name, the name, and what follows it.

        ``("", "cuda:0", " = physical 3")``, or ``("not visible: ", "physical 5", "")``.
        """
        if self.ordinal is None:
            return "not visible: ", self.name, ""
        return "", self.name, f" = physical {'unknown' if self.index is None else self.index}"

    @property
    def words(self) -> str:
        """``"cuda:0 = physical 3"``, ``"not visible: physical 5"``."""
        return "".join(self.heading)


def cards_of(moment: Moment, choice: Choice) -> tuple[Card, ...]:
    """Return the cards of the devices that are chosen, in their order."""
    rows = moment.overview.shown
    chosen: list[tuple[int | None, InForce]]
    if choice.uuids is None:
        # A device that is lost leaves what CUDA shows, but not the page of whoever watches it.
        gone = [(None, row) for row in moment.gone]
        chosen = [*((row.ordinal, row) for row in rows), *gone]
    else:
        visible = {row.uuid: row for row in reversed(rows)}
        chosen = [
            (visible[uuid].ordinal, visible[uuid])
            if uuid in visible
            else (None, InForce(0, None, uuid))
            for uuid in choice.uuids
        ]
    seen, own = moment.overview.known, moment.own_pids
    return tuple(_card(moment, ordinal, row, seen, own) for ordinal, row in chosen)


def _card(
    moment: Moment,
    ordinal: int | None,
    row: InForce,
    seen: Mapping[int, SeenProcess],
    own: frozenset[int],
) -> Card:
    device = None if row.uuid is None else moment.overview.inventory.find(row.uuid)
    reading = moment.readings.get(row.uuid or "")
    problem = _problem(device, reading)
    if device is None:
        return Card(row.uuid, ordinal, row.index, problem=problem, points=moment.past.of(row.uuid))
    # Where a device does not answer, what it said before is no reading of it.
    silent = reading is not None and reading.problem is not None
    merged = Reading() if silent else _merged(device, reading)
    return Card(
        row.uuid,
        ordinal,
        device.index,
        _short(model_words(device), _MODEL_LENGTH),
        device.memory_total_bytes,
        merged.memory_used_bytes,
        _no_more(memory_here(merged, own, seen), merged.memory_used_bytes),
        None if device.kind == "mig" else known(merged.utilization_percent),
        merged.temperature_celsius,
        known(merged.power_watts),
        _holdings(merged.processes or (), seen, own),
        problem,
        moment.past.of(row.uuid),
    )


def _no_more(part_bytes: int | None, whole_bytes: int | None) -> int | None:
    """Return a part that is not above its whole: the two are read one after the other."""
    if part_bytes is None or whole_bytes is None:
        return part_bytes
    return min(part_bytes, whole_bytes)


def _merged(device: Device, reading: Reading | None) -> Reading:
    """Return a reading that leaves nothing out that the overview knows."""
    new = Reading() if reading is None else reading
    return Reading(
        device.memory_used_bytes if new.memory_used_bytes is None else new.memory_used_bytes,
        device.utilization_percent if new.utilization_percent is None else new.utilization_percent,
        device.power_watts if new.power_watts is None else new.power_watts,
        temperature_celsius=device.temperature_celsius
        if new.temperature_celsius is None
        else new.temperature_celsius,
        processes=device.processes if new.processes is None else new.processes,
    )


def _problem(device: Device | None, reading: Reading | None) -> str | None:
    if reading is not None and reading.problem is not None:
        return _short(reading.problem, _PROBLEM_LENGTH)
    if device is None:
        return _GONE
    return None if device.problem is None else _short(device.problem, _PROBLEM_LENGTH)


def _holdings(
    processes: tuple[Process, ...], seen: Mapping[int, SeenProcess], own: frozenset[int]
) -> tuple[Holding, ...]:
    found = []
    for process in processes:
        # In a container a pid may mean another process: only what is seen here is who it says.
        one = seen.get(process.pid)
        mine = one is not None and process.pid in own
        if one is None:
            words = "unknown user"
        elif mine:
            words = "this kernel"
        else:
            user, command = _short(one.user, _USER_LENGTH), _short(one.command, _COMMAND_LENGTH)
            words = f"{user}: {command}" if command else user
        found.append(Holding(process.pid, words, process.memory_bytes, mine))
    return tuple(sorted(found, key=lambda one: (not one.own, -(one.memory_bytes or 0))))


def _short(text: str, length: int) -> str:
    shown = clean(text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def memory_split(card: Card) -> str:
    """Return ``"12.1 mine, 0.3 others, 128.0 GiB free"``, as far as it is known."""
    free = "–" if card.memory_free_bytes is None else f"{in_gib(card.memory_free_bytes)} GiB"
    if card.memory_mine_bytes is None or card.memory_used_bytes is None:
        return f"{in_gib(card.memory_used_bytes)} used, {free} free"
    mine, others = in_gib(card.memory_mine_bytes), in_gib(card.memory_others_bytes)
    return f"{mine} mine, {others} others, {free} free"


def load_words(card: Card) -> str:
    """Return the utilisation, ``"43 %"``."""
    return amount_words(card.utilization_percent, "%")


def amount_words(value: float | None, unit: str) -> str:
    """Return a rounded amount with its unit; what is unknown is a dash."""
    return f"– {unit}" if value is None else f"{value:.0f} {unit}"


def title_of(moment: Moment) -> str:
    """Return the answer in one line: how many devices are this kernel's."""
    return title_words(moment.overview, moment.overview.shown)


def state_lines(moment: Moment) -> tuple[str, ...]:
    """Return what CUDA does in this kernel, and whose the lease is since when."""
    overview, process = moment.overview, moment.overview.process
    if process is None:
        return ()
    lease = overview.lease
    leased = () if lease is None else lease_lines(lease, process, moment.at)
    return (state_words(process), *leased)


def warnings_of(moment: Moment) -> tuple[str, ...]:
    """Return what one should know or do, the most important first."""
    overview, process = moment.overview, moment.overview.process
    problem = () if moment.problem is None else (clean(moment.problem),)
    found = (
        *(() if process is None else process.notices),
        *problem,
        *(() if process is None else mismatches(overview, process, overview.shown)),
        *machine_notes(overview.inventory, overview.leasing),
        *site_notes(overview),
        *(() if process is None else (*process.advice, *process.missing)),
    )
    return tuple(dict.fromkeys(found))


def monitor_view(moment: Moment, choice: Choice) -> View:
    """Return the monitor's page as text is made of it.

    Parameters
    ----------
    moment
        What there is to show.
    choice
        Which devices, and how.
    """
    overview = moment.overview
    cards = cards_of(moment, choice)
    table = Table("Devices of this kernel", _COLUMNS, tuple(map(_row, cards)))
    # What was last known of the others is no answer while nothing can be read.
    others = "" if moment.problem is not None else others_words(overview, moment.at)
    problems = (
        full_stop(f"{card.words}: {card.problem}") for card in cards if card.problem is not None
    )
    return View(
        title=title_of(moment),
        machine=machine_words(overview.inventory),
        tables=(table,) if cards else (),
        lines=(
            f"At {moment.at:%H:%M:%S}.",
            *state_lines(moment),
            *([others] if others else []),
            *queue_lines(overview),
            *limit_lines(overview),
        ),
        notes=(*problems, *warnings_of(moment)),
    )


def _row(card: Card) -> tuple[str, ...]:
    mine = card.memory_mine_bytes
    total, used = card.memory_total_bytes, card.memory_used_bytes
    return (
        card.words,
        card.model or "–",
        "–" if total is None else f"{in_gib(used)} of {in_gib(total)} GiB",
        "–" if mine is None else f"{in_gib(mine)} here",
        load_words(card),
        amount_words(card.temperature_celsius, "°C"),
        amount_words(card.power_watts, "W"),
    )
