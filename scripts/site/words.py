"""Words from the code as words in Markdown."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return text in which Markdown finds nothing but `code`."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backquote without its other half
        return _escaped("`".join(parts), "`")
    return "`".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"\\{letter}" if letter in f"\\*_[{more}" else letter for letter in text.replace("<", "&lt;"))
