"""Curves as text for a terminal, and as SVG for a page. Pure: strings in, strings out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 72, 14
_MARKS = "-="
"""Marks of level lines, in a terminal."""

_COLORS = ("#888888", "#c06000", "#0060c0", "#008040")
_DASHES = ("6 4", "2 3")
_PANEL_WIDTH, _PANEL_HEIGHT, _LEFT, _TOP = 300, 190, 34, 24
_COLUMNS = 4
_TITLE_HEIGHT, _LEGEND_HEIGHT = 30, 28
_LEGEND_STEP = 150
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_TICKS = 6
_SIZE = re.compile(r'^<svg ([^>]*?)viewBox="0 0 (\d+) (\d+)"')


class Svg(str):
    """A picture as text, which notebooks show as a picture."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Svg of {len(self)} characters>"

    def _repr_html_(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a picture."""

    title: str
    curves: Mapping[str, Sequence[float]]
    """Values after 1, 2, ... trials, by name."""

    lines: Mapping[str, float]
    """Level lines, by name."""

    first: str = "1"
    last: str = ""
    """Labels below the ends of the axis; empty: the number of trials."""

    has_steps: bool = True
    """Draw steps: each value holds until the next, and 0 means that there is none yet. False: join the points."""


def text_plot(curves: Mapping[str, Sequence[float]], lines: Mapping[str, float], *, first: int = 1) -> str:
    """Draw curves with the first letter of their names, and level lines with separate marks.

    Args:
        first: number of trials at the first value of the curves.
    """
    top = _top(curves, lines)
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    marks = {name: _MARKS[number % len(_MARKS)] for number, name in enumerate(lines)}
    for name, height in lines.items():
        rows[_row(height, top)] = [marks[name]] * _WIDTH
    for name, values in curves.items():
        for column in range(_WIDTH):
            value = values[column * len(values) // _WIDTH] if values else 0.0
            if 0 < value < math.inf:
                rows[_row(value, top)][column] = name[0]
    shown = [f"{top * (_HEIGHT - number) / _HEIGHT:5.2f} |{''.join(row)}" for number, row in enumerate(rows)]
    last = max((len(values) for values in curves.values()), default=0) + first - 1
    legend = [f"{name[0]} {name}" for name in curves] + [f"{mark} {name}" for name, mark in marks.items()]
    return "\n".join(
        [*shown, f"      +{'-' * _WIDTH}", f"       {first}{f'{last} trials':>{_WIDTH - 1}}", "  ".join(legend)]
    )


def svg_plots(panels: Sequence[Panel], *, title: str) -> Svg:
    """Draw panels side by side, each from 0 to its own top, under one title and over one legend."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    legend_y = _TITLE_HEIGHT + rows * _PANEL_HEIGHT
    curves = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    width = max(columns * _PANEL_WIDTH, (len(curves) + len(lines)) * _LEGEND_STEP)
    styles = {name: f'stroke="{_COLORS[at % len(_COLORS)]}" stroke-width="2"' for at, name in enumerate(curves)}
    styles |= {name: f'stroke="black" stroke-dasharray="{_DASHES[at % len(_DASHES)]}"' for at, name in enumerate(lines)}
    size = f'width="{width}" viewBox="0 0 {width} {legend_y + _LEGEND_HEIGHT}"'
    return Svg(
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="none">',
                f'<rect width="{width}" height="{legend_y + _LEGEND_HEIGHT}" fill="white"/>',
                _label(_LEFT, 20, title, size=14),
                *(
                    _moved(
                        at % columns * _PANEL_WIDTH,
                        _TITLE_HEIGHT + at // columns * _PANEL_HEIGHT,
                        _panel(panel, styles),
                    )
                    for at, panel in enumerate(panels)
                ),
                *(
                    _legend(_LEFT + at * _LEGEND_STEP, legend_y + 12, name, styles[name])
                    for at, name in enumerate(styles)
                ),
                "</svg>\n",
            ]
        )
    )


def svg_plot(panel: Panel) -> Svg:
    """Draw one panel with one curve, without title line and legend."""
    style = f'stroke="{_COLORS[2]}" stroke-width="2"'
    size = f'width="{_PANEL_WIDTH}" viewBox="0 0 {_PANEL_WIDTH} {_PANEL_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="none">'
    return Svg(f"{head}{_panel(panel, dict.fromkeys(panel.curves, style))}</svg>")


def stacked(pictures: Sequence[Svg]) -> Svg:
    """Return one picture with these below each other; empty for none."""
    sizes = [(int(found[2]), int(found[3])) for found in map(_SIZE.match, pictures) if found]
    if len(pictures) < 2:
        return Svg("".join(pictures))
    width, height = max(width for width, _ in sizes), sum(height for _, height in sizes)
    tops = [sum(high for _, high in sizes[:at]) for at in range(len(sizes))]
    placed = (
        picture.replace("<svg ", f'<svg y="{top}" height="{high}" ', 1).rstrip()
        for picture, top, (_, high) in zip(pictures, tops, sizes, strict=True)
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {height}">'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return Svg("\n".join([head, ground, *placed, "</svg>\n"]))


def _panel(panel: Panel, styles: Mapping[str, str]) -> str:
    top = _top(panel.curves, panel.lines)
    count = max((len(values) for values in panel.curves.values()), default=1)
    right, bottom = _PANEL_WIDTH - 14, _PANEL_HEIGHT - 26

    def x(number: int) -> float:
        return _LEFT + (right - _LEFT) * number / max(count - 1, 1)

    def y(value: float) -> float:
        return bottom - (bottom - _TOP) * value / top

    step = _tick_step(top)
    ticks = [step * number for number in range(int(top / step + 0.01) + 1)]
    parts = [_label(_LEFT, _TOP - 9, panel.title)]
    parts += [f'<path d="M{_LEFT} {y(tick):.1f}H{right}" stroke="#e4e4e4"/>' for tick in ticks]
    parts += [_label(2, y(tick) + 4, f"{tick:.3g}", size=10) for tick in ticks]
    last = panel.last or f"{count} trials"
    parts += [
        _label(_LEFT, bottom + 14, panel.first, size=10),
        _label(right - 6 * len(last), bottom + 14, last, size=10),
    ]
    parts += [f'<path d="M{_LEFT} {y(height):.1f}H{right}" {styles[name]}/>' for name, height in panel.lines.items()]
    for name, values in panel.curves.items():
        points = [(x(number), y(value)) for number, value in enumerate(values) if _is_shown(value, panel)]
        corners = _steps(points) if panel.has_steps else [f"{at:.1f},{height:.1f}" for at, height in points]
        parts.append(f'<polyline points="{" ".join(corners)}" {styles[name]}/>')
    return "".join(parts)


def _is_shown(value: float, panel: Panel) -> bool:
    return math.isfinite(value) and (value > 0 or not panel.has_steps)


def _tick_step(top: float) -> float:
    """Return a round step that makes a few ticks."""
    scale = 10.0 ** math.floor(math.log10(top / _MOST_TICKS))
    return next(step * scale for step in _TICK_STEPS if top <= step * scale * _MOST_TICKS)


def _moved(x: int, y: int, content: str) -> str:
    return f'<g transform="translate({x} {y})">{content}</g>'


def _steps(points: Sequence[tuple[float, float]]) -> list[str]:
    """Return the corners of steps: the best time holds until the next trial."""
    found = []
    for at, (x, y) in enumerate(points):
        if at:
            found.append(f"{x:.1f},{points[at - 1][1]:.1f}")
        found.append(f"{x:.1f},{y:.1f}")
    return found


def _legend(x: float, y: float, name: str, style: str) -> str:
    return f'<path d="M{x} {y}h24" {style}/>{_label(x + 30, y + 4, name)}'


def _label(x: float, y: float, text: str, *, size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="black">{escape(text)}</text>'


def _top(curves: Mapping[str, Sequence[float]], lines: Mapping[str, float]) -> float:
    heights = [*(value for values in curves.values() for value in values), *lines.values()]
    return max((height for height in heights if math.isfinite(height)), default=1.0) or 1.0


def _row(value: float, top: float) -> int:
    return min(_HEIGHT - 1, max(0, round(_HEIGHT * (1 - value / top))))
