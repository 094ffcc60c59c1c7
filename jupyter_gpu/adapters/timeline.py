"""The timeline as a picture: what each device did over time, and which cell ran meanwhile.

The only module that imports matplotlib, and only inside a function: few ever save a picture. It
draws with objects of its own and matplotlib's defaults, so the person's backend, style and open
figures stay as they are.
"""

from __future__ import annotations

import contextlib
import html
import io
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import EXIT_USAGE, GPUError
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.timeline_lines import (
    Line,
    Span,
    highest,
    label_rows,
    lines_of,
    numbers,
    spans_of,
    spoken,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf", "eps", "ps", "jpg", "jpeg", "tif", "tiff", "webp")
_DAY = 86400.0
# Blue and vermilion of the palette of Okabe and Ito: told apart by colour-blind readers, and by
# their brightness in a grey print. The kinds of memory differ by hatching besides.
_MINE, _WHOLE, _LOAD, _INK, _FAINT = "#0072b2", "#56606b", "#b84700", "#1f2328", "#c9ced6"
_LOAD_AREA, _EMPTY = "#f4e3d9", "#eceff2"
_BOUNDARY, _ONE_OF_MANY = "#6e7781", "#9aa1a9"
_WIDTH_INCHES, _LEFT_INCHES, _RIGHT_INCHES = 10.0, 0.65, 0.2
_TOP_INCHES, _BOTTOM_INCHES, _TITLE_INCHES, _ROW_INCHES = 0.34, 0.45, 0.3, 0.15
_LEAST_SECONDS = 10.0
_MINUTES_SECONDS = 1200.0  # from here on the seconds are left out of the times
_MOST_ENDS = 40  # cells whose ends are drawn too: with more, the beginnings are enough
# What belongs to the person's program and not to a picture.
_LEAVE = re.compile(
    r"backend|interactive|toolbar|webagg|tk\.|date\.epoch|timezone|.*directory|.*max_"
)


class TimelineError(GPUError, ValueError):
    """A picture of the timeline that cannot be made: a wrong name, or nothing to draw."""

    exit_code = EXIT_USAGE


class TimelineFileError(GPUError, OSError):
    """The picture's file cannot be written."""


class PlotMissingError(GPUError, ImportError):
    """There is no matplotlib in this Python."""


def save_timeline(
    rows: Sequence[Mapping[str, object]], cells: Sequence[Mapping[str, object]], path: str | Path
) -> Path:
    """Write the timeline of ``Monitor.history`` as a picture, and return where it is.

    Parameters
    ----------
    rows
        ``Monitor.history``: one a device and point, times in ISO 8601.
    cells
        ``Monitor.cells``: what ran, with ``began`` and ``ended``; None where it still runs.
    path
        The file; its suffix says the kind, ``.svg`` or ``.png`` say.

    Raises
    ------
    TimelineError
        When the suffix is none of ``KINDS``, or nothing has been watched yet.
    TimelineFileError
        When the file cannot be written. What was there before stays as it was.
    PlotMissingError
        Without matplotlib.
    """
    target = Path(path).expanduser()
    kind = target.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise TimelineError(
            f"{target.name!r} names no kind of picture: end it with .svg, .png or .pdf."
        )
    lines = lines_of(rows)
    if not lines:
        raise TimelineError("There is nothing to draw yet: run a cell while the monitor is open.")
    began = min(line.times[0] for line in lines)
    ended = max(line.times[-1] for line in lines)
    picture = _picture(lines, spans_of(cells, began, ended), kind)
    _write(target, picture)
    return target


def _picture(lines: Sequence[Line], spans: Sequence[Span], kind: str) -> bytes:
    """Return the picture's bytes, drawn with matplotlib's defaults whatever the person has set."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - few save a picture
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError as missing:
        raise PlotMissingError(
            "Pictures need matplotlib, which is not installed in this Python:\n"
            '  pip install "jupyter-gpu[plot]"'
        ) from missing
    defaults = {
        name: value for name, value in mpl.rcParamsDefault.items() if not _LEAVE.match(name)
    }
    ours = {
        "svg.fonttype": "none",
        "svg.hashsalt": "jupyter-gpu",
        "font.family": ["DejaVu Sans", "sans-serif"],
        "font.size": 8.0,
        "hatch.linewidth": 0.5,
        "text.color": _INK,
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context({**defaults, **ours}):
        figure = Figure(facecolor="white")
        _draw(figure, lines, spans)
        buffer = io.BytesIO()
        if kind == "svg":
            about = {"Title": "GPU timeline", "Date": None}
            figure.savefig(buffer, format=kind, metadata=about)
        else:
            figure.savefig(buffer, format=kind, dpi=150)
    picture = buffer.getvalue()
    return _accessible(picture, spoken(lines, spans)) if kind == "svg" else picture


def _draw(figure: Figure, lines: Sequence[Line], spans: Sequence[Span]) -> None:
    """Draw a strip of cells, below it a panel a device, and the legend."""
    began, ended = _extent(lines)
    room = _WIDTH_INCHES - _LEFT_INCHES - _RIGHT_INCHES
    labels = label_rows(spans, (ended - began) / room)
    rows = 1 + max(labels.values(), default=0)
    lower = max(1.0, 2.2 - 0.25 * len(lines))  # a panel's height: lower where there are many
    heights = [0.06 + _ROW_INCHES * rows]
    heights += [_TITLE_INCHES, 0.62 * lower, 0.38 * lower] * len(lines)
    height = sum(heights) + _TOP_INCHES + _BOTTOM_INCHES
    figure.set_size_inches(_WIDTH_INCHES, height)
    grid = figure.add_gridspec(
        len(heights),
        1,
        height_ratios=heights,
        hspace=0,
        left=_LEFT_INCHES / _WIDTH_INCHES,
        right=1 - _RIGHT_INCHES / _WIDTH_INCHES,
        top=1 - _TOP_INCHES / height,
        bottom=_BOTTOM_INCHES / height,
    )
    strip = figure.add_subplot(grid[0])
    strip.set_xlim(_days(began), _days(ended))
    panels = [strip]
    for position, line in enumerate(lines):
        memory = figure.add_subplot(grid[3 * position + 2], sharex=strip)
        load = figure.add_subplot(grid[3 * position + 3], sharex=strip)
        _draw_memory(memory, line)
        _draw_load(load, line)
        panels += [memory, load]
    for panel in panels:
        panel.tick_params(axis="x", bottom=panel is panels[-1], labelbottom=panel is panels[-1])
    _draw_cells(strip, spans, labels)
    for panel in panels[1:]:
        _draw_boundaries(panel, spans)
    left_out = len(spans) - len(labels)
    note = f" · {in_words(left_out, 'short cell')} without a label" if left_out else ""
    _draw_times(panels[-1], began, ended, note)
    _draw_legend(figure, height)


def _extent(lines: Sequence[Line]) -> tuple[float, float]:
    """Return from when to when the picture goes: a little more than what was seen."""
    began = min(line.times[0] for line in lines)
    ended = max(line.times[-1] for line in lines)
    spare = max(0.005 * (ended - began), (_LEAST_SECONDS - ended + began) / 2)
    return began - spare, ended + spare


def _draw_times(panel: Axes, began: float, ended: float, note: str) -> None:
    """Write the times below the last panel, in the reader's time zone."""
    from matplotlib.dates import AutoDateLocator, DateFormatter  # noqa: PLC0415 - as _picture

    first = datetime.fromtimestamp(began).astimezone()
    last = datetime.fromtimestamp(ended).astimezone()
    form = "%H:%M" if ended - began >= _MINUTES_SECONDS else "%H:%M:%S"
    days = f"{last:%Y-%m-%d}"
    if first.date() != last.date():
        form, days = "%m-%d %H:%M", f"{first:%Y-%m-%d} to {days}"
    panel.xaxis.set_major_locator(AutoDateLocator(tz=last.tzinfo, minticks=3, maxticks=8))
    panel.xaxis.set_major_formatter(DateFormatter(form, tz=last.tzinfo))
    zone = f"{last:%z}"
    panel.set_xlabel(f"{days}, local time (UTC{zone[:3]}:{zone[3:5]}){note}", labelpad=2)


def _days(seconds: float) -> float:
    """Return a time as matplotlib's dates count it: days of the Unix epoch."""
    return seconds / _DAY


def _draw_memory(panel: Axes, line: Line) -> None:
    """Draw memory: this kernel's part filled from zero, what others have hatched on top."""
    times = [_days(at) for at in line.times]
    below = [0.0 if math.isnan(here) else here for here in line.here_gib]
    panel.fill_between(times, line.here_gib, color=_MINE, linewidth=0)
    panel.fill_between(
        times, below, line.used_gib, facecolor=_EMPTY, edgecolor=_WHOLE, hatch="////", linewidth=0
    )
    panel.plot(times, line.used_gib, color=_WHOLE, linewidth=1)
    _draw_single_points(panel, times, line.used_gib, _WHOLE)
    panel.set_ylim(0, 1.15 * (highest(line.used_gib) or 0) or 1)
    panel.locator_params(axis="y", nbins=4, prune="lower")  # zero would run into the load's 100
    panel.set_ylabel("GiB")
    panel.yaxis.set_label_coords(-0.045, 0.5)
    panel.set_title(line.title, loc="left", fontsize=8.5, fontweight="bold", pad=3)
    panel.set_title(numbers(line), loc="right", fontsize=8, pad=3)


def _draw_load(panel: Axes, line: Line) -> None:
    """Draw the load from 0 to 100 %, as a line over a light area."""
    times = [_days(at) for at in line.times]
    panel.fill_between(times, line.load_percent, color=_LOAD_AREA, linewidth=0)
    panel.plot(times, line.load_percent, color=_LOAD, linewidth=1)
    _draw_single_points(panel, times, line.load_percent, _LOAD)
    panel.set_ylim(0, 118)
    panel.set_yticks([0, 100])
    panel.set_ylabel("%")
    panel.yaxis.set_label_coords(-0.045, 0.5)


def _draw_single_points(
    panel: Axes, times: Sequence[float], values: Sequence[float], color: str
) -> None:
    """Mark the points without a neighbour, which a line would leave out."""
    around = [math.nan, *values, math.nan]
    alone = [
        position
        for position, value in enumerate(values)
        if not math.isnan(value)
        and math.isnan(around[position])
        and math.isnan(around[position + 2])
    ]
    where = [times[position] for position in alone]
    panel.plot(where, [values[position] for position in alone], ".", color=color, markersize=4)


def _draw_cells(strip: Axes, spans: Sequence[Span], labels: Mapping[int, int]) -> None:
    """Draw when each cell ran, with the labels that have room."""
    rows = 1 + max(labels.values(), default=0)
    strip.set_ylim(rows, 0)
    strip.set_yticks([rows / 2], ["cell"])
    strip.tick_params(axis="y", length=0)
    for position, span in enumerate(spans):
        began, ended = _days(span.began), _days(span.ended)
        shade = ("#dfe5ec", "#f4f6f8")[position % 2]
        strip.axvspan(began, ended, facecolor=shade, edgecolor="#8c959f", linewidth=0.3)
        if position in labels:
            where = ((began + ended) / 2, labels[position] + 0.55)
            strip.text(*where, span.label, ha="center", va="center", fontsize=7.5, clip_on=True)


def _draw_boundaries(panel: Axes, spans: Sequence[Span]) -> None:
    """Draw where cells begin, and with dots where they end."""
    few = len(spans) <= _MOST_ENDS
    color, width = (_BOUNDARY, 0.6) if few else (_ONE_OF_MANY, 0.3)
    whole_height = panel.get_xaxis_transform()
    begins = panel.vlines([_days(span.began) for span in spans], 0, 1, transform=whole_height)
    begins.set(color=color, linewidth=width, zorder=3)
    if few:
        ends = panel.vlines([_days(span.ended) for span in spans], 0, 1, transform=whole_height)
        ends.set(color=_BOUNDARY, linewidth=width, linestyle=":", zorder=3)


def _draw_legend(figure: Figure, height: float) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as _picture
    from matplotlib.patches import Patch  # noqa: PLC0415 - as _picture

    whole = Patch(facecolor=_EMPTY, edgecolor=_WHOLE, hatch="////", label="memory of others")
    mine = Patch(facecolor=_MINE, label="memory of this kernel")
    load = Line2D([], [], color=_LOAD, label="load")
    begins = Line2D([], [], color=_BOUNDARY, linewidth=0.8, label="a cell begins")
    figure.legend(
        handles=[mine, whole, load, begins],
        loc="upper left",
        bbox_to_anchor=(_LEFT_INCHES / _WIDTH_INCHES, 1 - 0.06 / height),
        bbox_transform=figure.transFigure,
        ncols=4,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
    )


def _accessible(svg: bytes, words: str) -> bytes:
    """Give the picture the role of one, and its content in words."""
    label = html.escape(words, quote=True).encode()
    return svg.replace(b"<svg ", b'<svg role="img" aria-label="' + label + b'" ', 1)


def _write(target: Path, picture: bytes) -> None:
    """Put the file in its place in one step: a reader finds the old one or the new one."""
    final = Path(os.path.realpath(target))
    part = final.with_name(f".{final.stem[:100]}-{secrets.token_hex(4)}.part")
    try:
        try:
            part.write_bytes(picture)
            part.replace(final)
        finally:
            with contextlib.suppress(OSError):  # it is in its place, or never was there
                part.unlink()
    except OSError as error:
        raise TimelineFileError(
            f"{target} cannot be written: {error.strerror or error}."
        ) from error
