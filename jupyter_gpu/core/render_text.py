"""A view as text for a terminal: at most 80 columns, and nothing said by colour.

A word that is longer than a line, such as a path, stays in one piece, so that it can be copied.
"""

from __future__ import annotations

import re
import unicodedata

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.view import Table, View

WIDTH = 80
_GAP = "  "
_UNDER = " " * 6
_LEAST_NAME = 6
_LEAST_LAST = 16
# What is longer than this is no path that anybody wrote, and is broken.
_LONGEST_WORD = 256
_BESIDE = 32  # a last cell that would wrap in less room than this stands under its row
_BREAK = re.compile(r"(?<!\b\d,)(?<!\b\d\d,) ")  # indices stay together: "1, 2 bob"


def as_text(view: View) -> str:
    """Return the view as lines of at most 80 columns, without a newline at the end."""
    lines: list[str] = []
    for notice in view.notices:
        lines.extend(wrapped(notice, indent=""))
    lines.extend(_heading(view.title, view.machine))
    lines.extend(f"  {line}" for line in view.code)
    for number, table in enumerate(view.tables):
        if number:
            lines.append(f"{table.caption}:")
        lines.extend(_table(table))
    for check in view.checks:
        lines.extend(_check(check))
    for line in view.lines:
        lines.extend(wrapped(line))
    for note in view.notes:
        lines.extend(wrapped(f"Note: {note}"))
    return "\n".join(lines)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: CJK letters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def wrapped(text: str, *, width: int = WIDTH, indent: str = "  ") -> list[str]:
    """Break a line at blanks into lines of a width, all but the first indented."""
    lines: list[str] = []
    words = text.lstrip(" ")
    current = " " * (len(text) - len(words))
    for word in _BREAK.split(words):
        longer = f"{current} {word}" if current.strip() else f"{current}{word}"
        if columns(longer) <= width:
            current = longer
            continue
        if current.strip():
            lines.append(current.rstrip(" "))
        current = f"{indent}{word}" if lines else word
        while columns(word) > _LONGEST_WORD and columns(current) > width:
            head = _fitting(current, width)
            lines.append(head)
            current = indent + current[len(head) :]
    return [*lines, current]


def wrapped_lines(text: str) -> str:
    """Wrap each line of a text, its further lines two columns further in than its first."""
    lines: list[str] = []
    for line in text.split("\n"):
        first = " " * (len(line) - len(line.lstrip(" ")))
        lines.extend(wrapped(line, indent=f"{first}  "))
    return "\n".join(lines)


def _fitting(text: str, width: int) -> str:
    """Return as much of the text's beginning as fits."""
    end = len(text)
    while end > 1 and columns(text[:end]) > width:
        end -= 1
    return text[:end]


def _heading(title: str, machine: str) -> list[str]:
    room = WIDTH - columns(title) - columns(machine)
    if not machine:
        return wrapped(title)
    if room >= len(_GAP):
        return [f"{title}{' ' * room}{machine}"]
    return [*wrapped(title), *wrapped(f"  {machine}")]


def _table(table: Table) -> list[str]:
    kept = [n for n, _ in enumerate(table.columns) if any(row[n] for row in table.rows)]
    headings = tuple(column.heading for column in table.columns)
    rows = (headings, *table.rows) if table.headed else table.rows
    widths = {n: max(columns(row[n]) for row in rows) for n in kept}
    last = kept[-1]
    for shrinking in (n for n in kept if table.columns[n].shrinks):
        least_last = min(widths[last], _LEAST_LAST) if last != shrinking else 0
        others = sum(widths[n] for n in kept if n not in (last, shrinking))
        room = WIDTH - others - least_last - len(_GAP) * len(kept)
        widths[shrinking] = min(widths[shrinking], max(room, _LEAST_NAME))
    before = sum(widths[n] for n in kept[:-1]) + len(_GAP) * len(kept)
    room = WIDTH - before
    longest = max(columns(word) for row in rows for word in row[last].split(" "))
    below = widths[last] > room and (room < _BESIDE or longest > room)
    lines: list[str] = []
    for row in rows:
        cells = [_padded(row[n], widths[n], right=table.columns[n].right) for n in kept[:-1]]
        if below:
            lines.append((_GAP + _GAP.join(cells)).rstrip())
            more = wrapped(row[last], width=WIDTH - len(_UNDER), indent="") if row[last] else []
            lines.extend(_UNDER + line for line in more)
            continue
        first, *more = wrapped(row[last], width=room, indent="")
        if table.columns[last].right:
            first = _padded(first, widths[last], right=True)
        lines.append((_GAP + _GAP.join([*cells, first])).rstrip())
        lines.extend(" " * before + line for line in more)
    return lines


def _check(check: Check) -> list[str]:
    """Return a finding with its status in words, and under it what mends it."""
    lines = wrapped(f"{check.status:<4}  {check.name}: {check.found}", indent=_UNDER)
    if check.fix is None:
        return lines
    fix = f"{_UNDER}→ {check.fix}"
    # A command stays in one piece, however long: it is there to be copied.
    return [*lines, *([fix] if check.fix_is_command else wrapped(fix, indent=f"{_UNDER}  "))]


def _padded(text: str, width: int, *, right: bool) -> str:
    if columns(text) > width:
        text = f"{_fitting(text, width - 1)}…"
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks
