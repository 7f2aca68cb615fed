"""Readings over time as lines of braille, for terminals. Pure: the same samples and width give the same picture.

Each character holds two columns and four rows of dots. Unknown values stay blank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from fleet.base.quantities import time_text
from fleet.domain.devices import Telemetry

SPAN_SEC = 3600.0
_HEIGHT = 4
"""Lines of a chart."""

_LABEL_WIDTH = 9
_LEAST_WIDTH = 20
_GAP_SEC = 35.0
"""Samples further apart than this are not connected: the device was away between them."""

_BLANK = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column (Unicode block U+2800)."""

Point = tuple[float, float]
"""Seconds before now, as a negative number, and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One kind of reading to plot."""

    title: str
    reading: Callable[[Telemetry], float | None]

    format: Callable[[float], str]
    least_span: float
    """The chart spans at least this share of the value, so that noise does not look like a mountain."""


SERIES = (
    Series(
        title="temperature",
        reading=lambda sample: sample.temp_c,
        format=lambda value: f"{value:.0f} °C",
        least_span=0.1,
    ),
    Series(
        title="clock",
        reading=lambda sample: sample.freq_hz,
        format=lambda value: f"{value / 1e9:.2f} GHz",
        least_span=0.1,
    ),
    Series(
        title="reference kernel",
        reading=lambda sample: sample.reference_sec,
        format=lambda value: time_text(value, digits=3),
        least_span=0.2,
    ),
)


def render_history(samples: Sequence[Telemetry], now_sec: float, *, width: int) -> RenderableType:
    """Return one chart for each reading that the device reports, one below the other."""
    parts: list[RenderableType] = []
    for series in SERIES:
        points = [
            (sample.read_at_sec - now_sec, value) for sample in samples if (value := series.reading(sample)) is not None
        ]
        if points:
            parts += [*_chart(series, points, width=max(_LEAST_WIDTH, width)), Text()]
    if not parts and samples:
        return Text("nothing to plot: it has no sensors, and nothing was measured in the last hour", style="dim")
    if not parts:
        return Text("no readings yet: an agent reports every few seconds", style="dim")
    return Group(*parts[:-1], _time_axis(max(_LEAST_WIDTH, width)))


def draw(points: Sequence[Point], low: float, high: float, *, columns: int, rows: int) -> list[str]:
    """Return lines of braille with a line through the points of the last hour, newest right."""
    cells = [[0] * columns for _ in range(rows)]
    dots_wide, dots_high = 2 * columns, 4 * rows
    former: tuple[float, int] | None = None
    for ago_sec, value in points:
        column = round((dots_wide - 1) * (1 + ago_sec / SPAN_SEC))
        if not 0 <= column < dots_wide:
            continue
        row = round((dots_high - 1) * (high - value) / (high - low))
        connects = former is not None and ago_sec - former[0] <= _GAP_SEC
        first, last = sorted((row, former[1])) if former is not None and connects else (row, row)
        for dot in range(max(0, first), min(dots_high - 1, last) + 1):
            cells[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
        former = (ago_sec, row)
    return ["".join(chr(_BLANK + cell) if cell else " " for cell in line) for line in cells]


def _chart(series: Series, points: Sequence[Point], *, width: int) -> list[RenderableType]:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    title = Text.assemble(
        (series.title, "bold"), f"  {series.format(values[-1])}", (f"  {_range(series, low, high)}", "dim")
    )
    missing = series.least_span * max(abs(high), 1e-12) - (high - low)
    if missing > 0:
        low, high = low - missing / 2, high + missing / 2
    lines = draw(points, low, high, columns=width - _LABEL_WIDTH - 1, rows=_HEIGHT)
    labels = [series.format(high), *[""] * (_HEIGHT - 2), series.format(low)]
    rows = [
        Text.assemble((f"{label:>{_LABEL_WIDTH}} ", "dim"), (line, "cyan"))
        for label, line in zip(labels, lines, strict=True)
    ]
    return [title, *rows]


def _range(series: Series, low: float, high: float) -> str:
    return f"{series.format(low)} to {series.format(high)} in the last hour" if low < high else ""


def _time_axis(width: int) -> Text:
    columns = width - _LABEL_WIDTH - 1
    left, middle, right = "60 min ago", "30", "now"
    before = columns // 2 - len(left) - 1
    axis = f"{left}{' ' * before}{middle}" if before > 0 else ""
    return Text(" " * (_LABEL_WIDTH + 1) + axis + right.rjust(columns - len(axis)), style="dim")
