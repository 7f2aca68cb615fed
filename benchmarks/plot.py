"""Curves as text for a terminal, and as SVG for a page. Pure: strings in, strings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 72, 14
_COLORS = ("#888888", "#c06000", "#0060c0", "#008040")
_SVG_WIDTH, _SVG_HEIGHT, _MARGIN = 640, 360, 50


def text_plot(curves: Mapping[str, Sequence[float]], lines: Mapping[str, float]) -> str:
    """Draw curves over 1, 2, ... with the first letter of their names, and level lines with a dash."""
    top = _top(curves, lines)
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for height in lines.values():
        rows[_row(height, top)] = ["-"] * _WIDTH
    for name, values in curves.items():
        for column in range(_WIDTH):
            value = values[column * len(values) // _WIDTH] if values else 0.0
            if value > 0:
                rows[_row(value, top)][column] = name[0]
    shown = [f"{top * (_HEIGHT - number) / _HEIGHT:5.2f} |{''.join(row)}" for number, row in enumerate(rows)]
    count = max((len(values) for values in curves.values()), default=0)
    legend = [f"{name[0]} {name}" for name in curves] + [f"- {name}" for name in lines]
    return "\n".join(
        [*shown, f"      +{'-' * _WIDTH}", f"       1{f'{count} trials':>{_WIDTH - 1}}", "  ".join(legend)]
    )


def svg_plot(curves: Mapping[str, Sequence[float]], lines: Mapping[str, float], *, title: str) -> str:
    """Draw the same as a picture."""
    top = _top(curves, lines)
    count = max((len(values) for values in curves.values()), default=1)

    def x(number: int) -> float:
        return _MARGIN + (_SVG_WIDTH - 2 * _MARGIN) * number / max(count - 1, 1)

    def y(value: float) -> float:
        return _SVG_HEIGHT - _MARGIN - (_SVG_HEIGHT - 2 * _MARGIN) * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SVG_WIDTH} {_SVG_HEIGHT}" font-family="sans-serif">',
        f'<text x="{_MARGIN}" y="20" font-size="14">{escape(title)}</text>',
        f'<path d="M{_MARGIN} {_MARGIN}V{y(0):.0f}H{_SVG_WIDTH - _MARGIN}" fill="none" stroke="black"/>',
        *(_label(5, y(top * part), f"{top * part:.2f}") for part in (0.0, 0.5, 1.0)),
        _label(_SVG_WIDTH - _MARGIN - 50, y(0) + 18, f"{count} trials"),
    ]
    for index, (name, height) in enumerate(lines.items()):
        parts.append(
            f'<path d="M{_MARGIN} {y(height):.1f}H{_SVG_WIDTH - _MARGIN}" stroke="black" stroke-dasharray="4"/>'
        )
        parts.append(_label(_MARGIN + 5, y(height) - 4 - 14 * index, name))
    for index, (name, values) in enumerate(curves.items()):
        color = _COLORS[index % len(_COLORS)]
        points = " ".join(f"{x(number):.1f},{y(value):.1f}" for number, value in enumerate(values) if value > 0)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(_label(_SVG_WIDTH - 150, y(0) - 14 * (index + 1), name, color))
    return "\n".join([*parts, "</svg>\n"])


def _label(x: float, y: float, text: str, color: str = "black") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" fill="{color}">{escape(text)}</text>'


def _top(curves: Mapping[str, Sequence[float]], lines: Mapping[str, float]) -> float:
    return max([*(value for values in curves.values() for value in values), *lines.values()], default=1.0) or 1.0


def _row(value: float, top: float) -> int:
    return min(_HEIGHT - 1, max(0, round(_HEIGHT * (1 - value / top))))
