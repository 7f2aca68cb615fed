"""Renders a page of blocks as a self-contained HTML file, or as Markdown. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fleet.reports.plot import Svg

_STYLE = """
.fleet-report { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: white; }
.fleet-report { padding: .1rem 1rem 1rem; color-scheme: light; }
.fleet-report h1 { font-size: 1.6rem; margin-bottom: 0; } .fleet-report h2 { font-size: 1.2rem; margin-top: 2rem; }
.fleet-report table { border-collapse: collapse; margin: .6rem 0; font-size: inherit; }
.fleet-report th { text-align: left; font-weight: 600; }
.fleet-report th, .fleet-report td {
  padding: .15rem .9rem .15rem 0; border: 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; text-align: left; }
.fleet-report td.number, .fleet-report th.number { text-align: right; font-variant-numeric: tabular-nums; }
.fleet-report pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; }
.fleet-report svg { max-width: 100%; height: auto; }
.fleet-report .wide { overflow-x: auto; } .fleet-report .wide th { white-space: nowrap; }
.fleet-report .wide td:not(.number) { min-width: 8rem; }
"""
"""Style sheet that affects the report only: a notebook shows it beside other content."""

_MARKUP = re.compile(r"[<\[\\]")

_PAGE_STYLE = "body { max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }"


@dataclass(frozen=True, slots=True)
class Heading:
    """Level 1 is the page's own."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A command to copy."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing as SVG."""

    svg: Svg
    title: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; all columns but the first are numbers unless named in `words`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()


Block = Heading | Paragraph | Code | Picture | Table


def to_html(blocks: Sequence[Block], *, title: str) -> str:
    """Return a whole page, with embedded style and pictures."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n{to_fragment(blocks)}\n</main>\n</body>\n</html>\n"
    )


def to_fragment(blocks: Sequence[Block]) -> str:
    """Return a fragment of HTML for notebooks, which does not affect its surroundings."""
    body = "\n".join(map(_html, blocks))
    return f'<div class="fleet-report">\n<style>{_STYLE}</style>\n{body}\n</div>'


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return Markdown; pictures are data URLs, which most viewers support."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Code(text):
            return f'<pre tabindex="0">{escape(text)}</pre>'
        case Picture(svg, _):
            return svg
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    kinds = [' class="number"' if _is_number(table, at) else "" for at in range(len(table.header))]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, table.header, strict=True))
    rows = [
        "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in table.rows
    ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0">\n<table>\n<tr>{head}</tr>\n{body}\n</table>\n</div>'


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Code(text):
            return f"```console\n{text}\n```"
        case Picture(svg, title):
            return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
        case Table():
            marks = [" ---: " if _is_number(block, at) else " --- " for at in range(len(block.header))]
            return "\n".join([_row(block.header), f"|{'|'.join(marks)}|", *map(_row, block.rows)])


def _row(cells: Sequence[str]) -> str:
    escaped = (_plain(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _plain(text: str) -> str:
    """Return a text in which Markdown sees no tag, link or picture."""
    return _MARKUP.sub(r"\\\g<0>", text)


def _is_number(table: Table, column: int) -> bool:
    return column > 0 and table.header[column] not in table.words
