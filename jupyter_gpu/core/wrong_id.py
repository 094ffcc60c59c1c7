"""The hint on a device id that this kernel does not have: ids count its visible devices. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jupyter_gpu.core.asked_ids import Asked
from jupyter_gpu.core.failure_case import Case
from jupyter_gpu.core.history import Frozen, cause_words
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.late import in_vain, is_late, map_words, stale_words, ways_to_change
from jupyter_gpu.core.no_gpu import no_gpu_view
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.render_text import WIDTH, columns
from jupyter_gpu.core.standing import standing, standing_words
from jupyter_gpu.core.view import View

_PLACES = re.compile(
    r"on device (\S+) \(device_ids\[0\]\) but found one of them on device: ([\w:]+)"
)
_LONGEST = 40


def wrong_id_view(case: Case, asked: Iterable[Asked]) -> View:
    """Return the hint: what was asked, what the ids are here, and the call that works.

    Parameters
    ----------
    case
        The error in its kernel.
    asked
        What may have been asked for, the surest first. What cannot be wrong is passed over.
    """
    rows, asked = case.rows, tuple(asked)
    wrong = next((one for one in asked if _missing(one, rows)), None)
    if not rows:
        return no_gpu_view(case, "" if wrong is None else _short(wrong))
    if wrong is None and _refused_by_the_variable(asked, case):
        return _late_view(case)
    said = "That device id is not here" if wrong is None else _short(wrong)
    seen = f"this kernel sees {in_words(len(rows), 'device')}, so {_ids_words(len(rows))}."
    lines = [] if wrong is None else [*_physical_lines(wrong, case)]
    lines.extend(_map_lines(wrong, case))
    return View(
        f"{said}: {seen}",
        machine=case.machine,
        lines=(*lines, *case.caveat, *case.raised_inside),
    )


def elsewhere_view(case: Case) -> View | None:
    """Return the hint where a model is not on the first of its ``device_ids``."""
    found = _PLACES.search(case.failure.message)
    if found is None:
        return None
    wanted, actual = (_place(text, case) for text in found.groups())
    lines = [f'Move all of it there before the call:  model.to("{found[1]}")']
    device = re.fullmatch(r"cuda:([0-9]{1,4})", found[2])
    if device is not None:
        others = [row.ordinal for row in case.rows if row.ordinal != int(device[1])]
        lines.append(f"or begin with where it is:  device_ids={[int(device[1]), *others]}")
    title = f"Part of the model is on {actual}; device_ids begins with {wanted}."
    return View(
        title,
        machine=case.machine,
        lines=(*lines, *case.caveat, *case.raised_inside),
    )


def _refused_by_the_variable(asked: Iterable[Asked], case: Case) -> bool:
    """Return whether an id that CUDA has is beyond what a late change of the variable means."""
    counted = len(case.overview.visible.devices)
    beyond = any(number >= counted for one in asked for number in one.ids)
    return beyond and is_late(case.overview, case.process)


def _late_view(case: Case) -> View:
    """Return the hint where the id is right, and the framework counts by a value that is not."""
    overview, process = case.overview, case.process
    cause = cause_words(process.history.frozen or Frozen(None, "before"))
    since = f"{cause} initialised CUDA, and since then {map_words(process.in_force or ())}."
    stale = stale_words(overview, process)
    lines = (since, *(() if stale is None else (stale,)), ways_to_change(overview))
    return View(f"{in_vain(process)}:", lines=lines)


def _missing(asked: Asked, rows: tuple[InForce, ...]) -> tuple[int, ...]:
    return tuple(one for one in asked.ids if one >= len(rows))


def _short(asked: Asked) -> str:
    words = asked.words()
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _ids_words(count: int) -> str:
    if count == 1:
        return "the only id is 0"
    return "ids are 0 and 1" if count == 2 else f"ids are 0 to {count - 1}"  # noqa: PLR2004 - "0 and 1"


def _by_index(case: Case) -> dict[int, int]:
    """Return the ordinals of whole GPUs by their physical index."""
    return {
        row.index: row.ordinal
        for row in reversed(case.rows)
        if row.index is not None and not case.is_part(row)
    }


def _physical_lines(asked: Asked, case: Case) -> Iterable[str]:
    """Yield what the ids are that fit the machine's numbering instead of the kernel's."""
    by_index = _by_index(case)
    missing = tuple(dict.fromkeys(_missing(asked, case.rows)))
    here = [f"physical {one} is cuda:{by_index[one]}" for one in missing if one in by_index]
    if here:
        words = ", ".join(here)
        yield f"{words[0].upper()}{words[1:]} here."
    gpus = {device.index: device for device in case.overview.inventory.gpus}
    for one in missing:
        if one in by_index or one not in gpus:
            continue
        device, words = gpus[one], standing_words(gpus[one], case.overview)
        held = f"held by {words}" if standing(device, case.overview).leases else words
        yield f"Physical {one} is not visible in this kernel ({held})."


def _map_lines(asked: Asked | None, case: Case) -> tuple[str, ...]:
    """Return the map and the call that works, on one line where there is room."""
    line, call = f"  {case.map_line}", _call(asked, case)
    if not call:
        return (line,)
    arrow = f"→  {call}"
    whole = f"{line}      {arrow}"
    return (whole,) if columns(whole) <= WIDTH else (line, f"  {arrow}")


def _call(asked: Asked | None, case: Case) -> str:
    """Return the call with ids that exist: those meant where that can be told, else the first."""
    if asked is None:
        return ""
    by_index = _by_index(case)
    meant = tuple(by_index[one] for one in asked.ids if one in by_index)
    if len(meant) == len(asked.ids) and len(set(meant)) == len(meant):
        return asked.mended(meant)
    if asked.listed or len(case.rows) == 1:
        return asked.mended(tuple(range(len(case.rows)))[: len(asked.ids)])
    return ""


def _place(text: str, case: Case) -> str:
    device = re.fullmatch(r"cuda:([0-9]{1,4})", text)
    if device is None:
        return "the CPU" if text == "cpu" else text
    return case.named(int(device[1]))
