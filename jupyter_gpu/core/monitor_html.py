"""The monitor as HTML: its parts for the live widget, and one page for saved notebooks. Pure.

The class names and how the parts lie on each other are in ``monitor_style``. Markup has single
quotes, because JSON would escape double ones on the wire, and everything that comes from others is
escaped.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from jupyter_gpu.core.curves import SPAN_WORDS, in_slots, load_curve, memory_curve
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.live import Moment
from jupyter_gpu.core.machine_view import device_words, limit_lines, queue_lines
from jupyter_gpu.core.monitor_style import COMPACT, GRID, ROOT, STYLE
from jupyter_gpu.core.monitor_view import (
    Card,
    Choice,
    Holding,
    amount_words,
    cards_of,
    load_words,
    memory_split,
    state_lines,
    title_of,
    warnings_of,
)
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.standing import FREE, standing_words
from jupyter_gpu.core.view import load_words as device_load_words
from jupyter_gpu.core.view import machine_words, memory_words, model_words

PROCESSES = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """The markup of each part of the live monitor.

    ``now`` has the fast numbers of all devices, ``cards`` one card for each; ``rest_title`` is
    plain text about the rest of the machine, empty where there is none.
    """

    style: str
    state: str
    now: str
    cards: tuple[str, ...]
    rest_title: str
    rest: str


def parts(moment: Moment, choice: Choice) -> Parts:
    """Return the parts of the live monitor."""
    cards = cards_of(moment, choice)
    rest = _rest_devices(moment, cards)
    return Parts(
        STYLE,
        _state(moment, _liveness(moment), choice, curves=bool(cards)),
        f"<div class='{GRID}'>{''.join(_numbers(card, choice) for card in cards)}</div>",
        tuple(_card(card, moment, choice) for card in cards),
        _rest_title(moment, rest),
        _rest(moment, rest),
    )


def page(moment: Moment, choice: Choice) -> str:
    """Return the whole monitor as one piece of HTML that stands still.

    It fetches nothing and has no scripts, so it shows the same anywhere.
    """
    cards = cards_of(moment, choice)
    rest = _rest_devices(moment, cards)
    shown = "".join(_card(card, moment, choice, _numbers(card, choice)) for card in cards)
    title = _rest_title(moment, rest)
    folded = (
        f"<details><summary>{_safe(title)}</summary>{_rest(moment, rest)}</details>"
        if title
        else ""
    )
    root = f"{ROOT} {COMPACT}" if choice.compact else ROOT
    when = f"At {moment.at:%H:%M:%S} on {moment.at:%Y-%m-%d}."
    state = _state(moment, when, choice, curves=bool(cards))
    return f"<div class='{root}'>{STYLE}{state}<div class='{GRID}'>{shown}</div>{folded}</div>"


def _liveness(moment: Moment) -> str:
    if moment.running:
        return "Live while a cell runs."
    return f"Still since {moment.at:%H:%M:%S}; look again, or run a cell."


def _safe(text: str) -> str:
    """Return what somebody else may have written as text of HTML, on one line."""
    return html.escape(clean(text), quote=True)


def _state(moment: Moment, when: str, choice: Choice, *, curves: bool) -> str:
    about = f" Curves: the last {SPAN_WORDS}." if curves and not choice.compact else ""
    machine = machine_words(moment.overview.inventory)
    told = () if choice.compact else state_lines(moment)
    lines = (f"<p>{_safe(line)}</p>" for line in told)
    warnings = "".join(f"<li>{_safe(warning)}</li>" for warning in warnings_of(moment))
    listed = f"<ul aria-label='Notes'>{warnings}</ul>" if warnings else ""
    return (
        f"<div class='gs'><p><b>{_safe(title_of(moment))}</b> <span>{_safe(machine)}</span></p>"
        f"{''.join(lines)}{listed}<p class='gt'>{_safe(when)}{about}</p></div>"
    )


def _numbers(card: Card, choice: Choice) -> str:
    """Return the fast numbers of one device; they stand in the room that its card leaves."""
    group = f"<div class='gi' role='group' aria-label='{_safe(card.name)}'>"
    if choice.compact and card.problem is not None:
        return f"{group}<p class='gx'>{_safe(card.problem)}</p></div>"
    mine, others = _percents(card)
    heat = amount_words(card.temperature_celsius, "°C")
    power = amount_words(card.power_watts, "W")
    return (
        f"{group}<b class='gb' style='--m:{mine};--o:{others}'></b>"
        f"<p>{memory_split(card)}</p>"
        f"<p class='gn'><i>Load {load_words(card)}</i> <i>{heat}</i> <i>{power}</i>"
        f"</p></div>"
    )


def _percents(card: Card) -> tuple[int, int]:
    """Return how much of the bar is this kernel's, and how much is used by whoever else."""
    total, used = card.memory_total_bytes, card.memory_used_bytes
    if not total or used is None or total < 0:
        return 0, 0
    mine = _percent(card.memory_mine_bytes or 0, total)
    return mine, max(_percent(used, total) - mine, 0)


def _percent(part_bytes: int, total_bytes: int) -> int:
    return min(max(100 * part_bytes // total_bytes, 0), 100)


def _card(card: Card, moment: Moment, choice: Choice, numbers: str = "") -> str:
    total = card.memory_total_bytes
    memory = "" if total is None else f", {in_gib(total)} GiB"
    before, name, after = map(_safe, card.heading)
    what = "" if card.model is None else f" <span>{_safe(card.model)}{memory}</span>"
    heading = f"<p class='gh'>{before}<b>{name}</b>{after}{what}</p>"
    below = "" if choice.compact else f"<div class='gf'>{_curves(card, moment)}{_foot(card)}</div>"
    return f"<div class='gk'>{heading}{numbers}{below}</div>"


def _curves(card: Card, moment: Moment) -> str:
    slots = in_slots(card.points, moment.at.timestamp())
    load, memory = slots.load_highest, slots.memory_highest
    load_told = "Load not known" if load is None else f"Load up to {amount_words(load, '%')}"
    memory_told = "Memory not known" if memory is None else f"Up to {in_gib(memory)} GiB"
    return (
        f"<div class='gc'><div>{load_curve(slots)}{load_told}</div>"
        f"<div>{memory_curve(slots, card.memory_total_bytes)}{memory_told}</div></div>"
    )


def _foot(card: Card) -> str:
    """Return what stands at a card's foot: what is wrong, or else the processes."""
    if card.problem is not None:
        return f"<p class='gx'>{_safe(card.problem)}</p>"
    if not card.processes:
        return ""
    rows = "".join(map(_process, card.processes[:PROCESSES]))
    more = len(card.processes) - PROCESSES
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    return f"<ul>{rows}{rest}</ul>"


def _process(one: Holding) -> str:
    amount = "–" if one.memory_bytes is None else f"{in_gib(one.memory_bytes)} GiB"
    return f"<li><span>{one.pid} {_safe(one.words)}</span>{amount}</li>"


def _rest_devices(moment: Moment, cards: tuple[Card, ...]) -> tuple[Device, ...]:
    if moment.problem is not None:
        return ()  # what is known of it is old
    shown = {card.uuid for card in cards}
    listed = moment.overview.inventory.devices
    return tuple(one for one in listed if one.uuid not in shown and not one.mig_mode)


def _rest_title(moment: Moment, rest: tuple[Device, ...]) -> str:
    overview, words = moment.overview, []
    if rest:
        free = sum(standing_words(device, overview) == FREE for device in rest)
        told = f", {free} free" if overview.leasing.exclusive else ""
        words.append(f"The rest of this machine: {in_words(len(rest), 'device')}{told}")
    if moment.problem is not None:
        words.append("The rest of this machine cannot be read now")
    waiting = len(overview.holdings.waiters)
    if waiting:
        words.append(f"{waiting} in the queue")
    if not words and limit_lines(overview):
        words.append("Limits")
    return " · ".join(words)


def _rest(moment: Moment, rest: tuple[Device, ...]) -> str:
    overview = moment.overview
    rows = "".join(
        f"<tr><th scope='row'>{_safe(device_words(device, overview.inventory))}</th>"
        f"<td>{_safe(model_words(device))}</td><td>{memory_words(device)}</td>"
        f"<td>{device_load_words(device)}</td>"
        f"<td>{_safe(standing_words(device, overview, moment.at))}</td></tr>"
        for device in rest
    )
    headings = "".join(
        f"<th scope='col'>{word}</th>"
        for word in ("Physical", "Model", "Memory", "Load", "Held by")
    )
    table = (
        f"<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>" if rest else ""
    )
    lines = (*queue_lines(overview), *limit_lines(overview))
    told = "".join(f"<p>{_safe(line)}</p>" for line in lines)
    return f"<div class='gr'>{table}{told}</div>"
