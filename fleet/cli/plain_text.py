"""Output where only ASCII can be written: signs of ours get a form of their own, instead of an error."""

from __future__ import annotations

import codecs
import sys

_FORMS = {
    "°": "deg ",
    "·": "-",
    "…": "...",
    "→": "->",
    "µ": "u",
    "█": "#",
    "▓": "=",
    "░": "-",
    **dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True)),
    **dict.fromkeys("─━╌╍", "-"),
    **dict.fromkeys("│┃╎╏", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛┡┩╇╈┳┻╋╞╡╪", "+"),
}
_HANDLER = "plain-signs"
_BRAILLE = range(0x2800, 0x2900)


def allow_plain_text() -> None:
    """Have stdout and stderr write what their encoding lacks in plain forms."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's stream may have none
        if reconfigure is not None and stream.errors != "surrogateescape":
            reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_FORMS.get(sign) or _other(sign) for sign in signs), error.end


def _other(sign: str) -> str:
    if ord(sign) in _BRAILLE:
        return " " if ord(sign) == _BRAILLE.start else "*"
    return "?"
