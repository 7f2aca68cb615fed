"""Output to terminals that accept only ASCII: replaces our special characters instead of failing."""

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
_HANDLER, _KEEPS_BYTES = "plain-signs", "plain-signs-and-bytes"
"""The second is for streams that write bytes of odd file names as they are, as those of the locale C do."""

_ODD_BYTES = range(0xDC80, 0xDD00)
"""Replacement of a byte that is no text."""

_BRAILLE = range(0x2800, 0x2900)


def allow_plain_text() -> None:
    """Have stdout and stderr replace characters that their encoding lacks."""
    codecs.register_error(_HANDLER, _plain)
    codecs.register_error(_KEEPS_BYTES, _plain_but_bytes)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's stream may lack the method
        if reconfigure is not None:
            reconfigure(errors=_KEEPS_BYTES if stream.errors in ("surrogateescape", _KEEPS_BYTES) else _HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_FORMS.get(sign) or _other(sign) for sign in signs), error.end


def _plain_but_bytes(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    kept = (
        bytes([ord(sign) - 0xDC00]) if ord(sign) in _ODD_BYTES else (_FORMS.get(sign) or _other(sign)).encode()
        for sign in signs
    )
    return b"".join(kept), error.end


def _other(sign: str) -> str:
    if ord(sign) in _BRAILLE:
        return " " if ord(sign) == _BRAILLE.start else "*"
    return "?"
