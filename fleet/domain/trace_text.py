"""Divides a trace's JSON into its instructions without parsing it, to remember results for each.

Traces repeat few instructions: a lookup for each of 64 takes a tenth of the time of parsing them. Each piece is parsed
when it is seen first, and pieces that are valid JSON by themselves are valid in the whole.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_START = '[[["'
_BETWEEN = re.compile(r'\]\],\["(?=[A-Z])')
"""Between two instructions. Their kinds begin with a capital letter, and names of variables do not."""

_BEFORE_DECISIONS = "]]],["
"""End of the last instruction and of their list, and the start of the list of decisions."""

_INTEGER = r"(?:0|-?[1-9]\d{0,17})"
_DECISION = rf"\[{_INTEGER},(?:{_INTEGER}|\[{_INTEGER}(?:,{_INTEGER})*\])\]"
USUAL_DECISIONS = re.compile(rf"\[(?:{_DECISION}(?:,{_DECISION})*)?\]", re.ASCII)
"""Decisions as all samplers write them: integers below 10^18 and lists of these, without white space. They are checked
without parsing, and all programs spell them the same.
"""

_REMEMBERED = 1 << 14
_MOST_CHARS = 512
"""Of a piece; most have 60."""


def divide(text: str, start: int = 0) -> tuple[list[str], int] | None:
    """Return the pieces of the trace at a position and the position of its decisions; None for other forms.

    A piece is an instruction without `["` before it and `]]` after it, and not too long to be remembered.
    """
    middle = text.find(_BEFORE_DECISIONS, start)
    if middle < 0 or not text.startswith(_START, start):
        return None
    pieces = _BETWEEN.split(text[start + len(_START) : middle])
    return (pieces, middle + len(_BEFORE_DECISIONS) - 1) if max(map(len, pieces)) <= _MOST_CHARS else None


def remembered(function: Callable[[Any], T]) -> Callable[[str], T]:
    """Return a function of a piece that calls `function` with the parsed instruction if the piece is new.

    It raises ValueError if the piece is no JSON.
    """

    def of_piece(piece: str) -> T:
        return function(json.loads(f'["{piece}]]'))

    return functools.lru_cache(maxsize=_REMEMBERED)(of_piece)


class Spelling:
    """A way to write the JSON of traces.

    Args:
        write: returns the JSON of a value without white space. A list is written as its items between brackets,
            separated by commas.
    """

    def __init__(self, write: Callable[[Any], str]) -> None:
        self._write = write
        self._of_piece = remembered(write)

    def of(self, trace_json: str) -> str:
        """Return a trace in this spelling. Raises ValueError or RecursionError if it is no JSON."""
        divided = divide(trace_json)
        if divided is not None:
            pieces, middle = divided
            try:
                instructions = ",".join(map(self._of_piece, pieces))
                return f"[[{instructions}],{self._decisions(trace_json[middle:-1])}]"
            except ValueError:  # an unusual form, or no JSON
                pass
        return self._write(json.loads(trace_json))

    def _decisions(self, text: str) -> str:
        return text if USUAL_DECISIONS.fullmatch(text) else self._write(json.loads(text))


compact: Callable[[object], str] = json.JSONEncoder(separators=(",", ":")).encode
"""Returns JSON as Python writes it, without white space."""
