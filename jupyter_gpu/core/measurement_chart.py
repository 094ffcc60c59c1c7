"""The chart of a measured cell: each device's memory and utilisation over its time, as SVG. Pure.

Memory is a filled area and utilisation a line, each with its name and its numbers beside it, so
that nothing is said by colour. It shrinks with the page and uses the notebook's own colours.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from jupyter_gpu.core.measurement import DeviceMeasurement, Measurement, Sample
from jupyter_gpu.core.measurement_words import load_words, memory_words, seconds_words

MOST_DEVICES = 8
WIDTH, ROW = 360, 84
_PLOT_TOP, _PLOT_HEIGHT, _PLOT_WIDTH = 34, 34, 168
_LEFT, _RIGHT = 2, WIDTH - 2 - _PLOT_WIDTH
_INK = "var(--jp-ui-font-color1,currentColor)"
_FAINT = "var(--jp-border-color2,currentColor)"
_AREA = "var(--jp-brand-color1,currentColor)"

Point = tuple[float, float]


def chart(measured: Measurement) -> str:
    """Return the chart as one ``svg`` element, or an empty text where there is nothing to draw."""
    shown = measured.devices[:MOST_DEVICES]
    if len(measured.samples) < 2 or not shown:  # noqa: PLR2004 - a line needs two points
        return ""
    label = f"Over {seconds_words(measured.seconds)}: " + "; ".join(map(_spoken, shown))
    rows = "".join(
        _row(device, place, measured.samples, measured.seconds)
        for place, device in enumerate(shown)
    )
    return (
        f'<svg role="img" aria-label="{html.escape(label, quote=True)}" '
        f'viewBox="0 0 {WIDTH} {ROW * len(shown)}" width="{WIDTH}" '
        'style="display:block;max-width:100%;height:auto;margin:4px 0" '
        f'font-size="11" font-family="inherit" fill="{_INK}">'
        f"<title>{html.escape(label)}</title>{rows}</svg>"
    )


def _spoken(device: DeviceMeasurement) -> str:
    parts = [f"cuda:{device.ordinal}"]
    if device.memory_peak_bytes is not None:
        parts.append(f"memory up to {memory_words(device.memory_peak_bytes)}")
    if device.utilization_mean_percent is not None:
        parts.append(f"load {load_words(device)}")
    return ", ".join(parts)


def _row(device: DeviceMeasurement, place: int, samples: Sequence[Sample], seconds: float) -> str:
    end = max(seconds, samples[-1].seconds)
    memory = [(one.seconds, one.readings[place].memory_used_bytes) for one in samples]
    load = [
        (one.seconds, one.readings[place].utilization_percent)
        for one in samples
        if one.span_seconds > 0
    ]
    physical = "unknown" if device.index is None else device.index
    parts = [
        f'<text x="{_LEFT}" y="12">cuda:{device.ordinal} = physical {physical}</text>',
        _panel(_LEFT, f"Memory, peak {memory_words(device.memory_peak_bytes)}", end),
        _panel(_RIGHT, f"Load, mean {load_words(device)}", end),
        _area(_points(memory, end, max(device.memory_peak_bytes or 0, 1), _LEFT)),
        _line(_points(load, end, 100, _RIGHT)),
    ]
    return f'<g transform="translate(0 {place * ROW})">{"".join(parts)}</g>'


def _panel(left: int, name: str, end: float) -> str:
    """Draw a panel's name above it and its axis below it, which begins at 0."""
    bottom, right = _PLOT_TOP + _PLOT_HEIGHT, left + _PLOT_WIDTH
    return (
        f'<text x="{left}" y="{_PLOT_TOP - 6}">{html.escape(name)}</text>'
        f'<path d="M{left} {_PLOT_TOP}H{right}M{left} {bottom}H{right}" '
        f'stroke="{_FAINT}" fill="none"/>'
        f'<text x="{left}" y="{bottom + 12}" font-size="9">0</text>'
        f'<text x="{right}" y="{bottom + 12}" font-size="9" text-anchor="end">'
        f"{html.escape(seconds_words(end))}</text>"
    )


def _points(
    values: Iterable[tuple[float, float | None]], end: float, top: float, left: int
) -> list[Point]:
    """Place what is known in a panel that begins at 0 and ends at the top value."""
    across = _PLOT_WIDTH / end if end > 0 else 0.0
    return [
        (
            left + min(max(seconds, 0.0) * across, _PLOT_WIDTH),
            _PLOT_TOP + _PLOT_HEIGHT * (1 - min(max(value / top, 0.0), 1.0)),
        )
        for seconds, value in values
        if value is not None
    ]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _area(points: Sequence[Point]) -> str:
    if not points:
        return ""
    bottom = _PLOT_TOP + _PLOT_HEIGHT
    path = f"{_path(points)}L{points[-1][0]:.1f} {bottom}L{points[0][0]:.1f} {bottom}Z"
    return f'<path d="{path}" fill="{_AREA}" fill-opacity="0.35" stroke="{_AREA}"/>'


def _line(points: Sequence[Point]) -> str:
    """Draw a line; its first value stands for the time before it too."""
    if not points:
        return ""
    (_, first), *_ = points
    path = _path([(_RIGHT, first), *points])
    return f'<path d="{path}" fill="none" stroke="{_INK}" stroke-width="1.5"/>'
