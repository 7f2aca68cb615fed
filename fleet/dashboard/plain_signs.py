"""ASCII replacements of equal width for terminals without Unicode."""

from __future__ import annotations

import codecs
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_FORMS = {
    "°": " ",
    "·": "-",
    "…": "~",
    "↑": "^",
    "↓": "v",
    "µ": "u",
    "━": "#",
    "╌": "-",
    **dict.fromkeys("─", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰", "+"),
    **dict.fromkeys("▁▂▃▄▅▆▇█▉▊▋▌▍▎▏▔▕▎", " "),
}
_BRAILLE = range(0x2801, 0x2900)


class PlainSigns(LineFilter):
    """Replaces characters that an encoding lacks."""

    def __init__(self, encoding: str) -> None:
        super().__init__(enabled=not can_write("·°━╌⣿─│", encoding))
        self._encoding = encoding

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with replacements that the encoding has, each of the same width."""
        return [Segment(_plain(text, self._encoding), style, control) for text, style, control in segments]


def can_write(text: str, encoding: str) -> bool:
    """Tell whether an encoding has these characters."""
    try:
        codecs.encode(text, encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@lru_cache(maxsize=4096)
def _plain(text: str, encoding: str) -> str:
    return text if text.isascii() else "".join(_form(sign, encoding) for sign in text)


def _form(sign: str, encoding: str) -> str:
    if can_write(sign, encoding):
        return sign
    if ord(sign) in _BRAILLE:
        return "*"
    return _FORMS.get(sign, "?" * cell_len(sign))
