"""Sanitizes untrusted text: removes control characters, invisible characters, and changes of the writing direction.

And texts of one's own, made fit to be sent: names of files may hold bytes that are no text.
"""

from __future__ import annotations

import re

_SPACES = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: control characters of terminals
    "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # invisible, or changing the writing direction
    "\ud800-\udfff\ufff9-\uffff\U000e0000-\U000e0fff"  # no characters, or tags
    "]"
)

_UNPRINTABLE = re.compile(rf"(?![\t\n\ud800-\udfff]){_HIDDEN.pattern}")


def sanitize(text: str, limit: int | None = None) -> str:
    """Sanitize a text for display: one line, without control characters, at most `limit` characters long."""
    if not (text.isascii() and text.isprintable()):
        text = _HIDDEN.sub("", _SPACES.sub(" ", text))
    return text if limit is None else text[:limit]


def sanitize_lines(text: str) -> str:
    """Sanitize a text of several lines: remove control characters and keep line breaks."""
    if "\n" not in text:
        return sanitize(text)
    return "\n".join(map(sanitize, text.split("\n")))


def printable(text: str) -> str:
    """Remove terminal control characters and invisible ones. Keeps line breaks, tabs and undecodable file names."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub("", text)


def sendable(text: str) -> str:
    """Return a text that UTF-8 can encode: undecodable bytes of file names become question marks."""
    return text.encode(errors="replace").decode()
