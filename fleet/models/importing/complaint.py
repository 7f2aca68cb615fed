"""TVM's error about a model that it cannot import, reworded without TVM's notation."""

from __future__ import annotations

import re

from cross.compile.library import last_lines

_CONSTANT = re.compile(r'metadata\["[^"]*"\]\[\d+\]\s*(?:# Metadata omitted\.[^.]*\(\) method to show it\.)?')
_OPERATOR = re.compile(r"In ir\.Op\(span=.*?support_level=\d+\),? ?")
_NUMBER = re.compile(r"T\.u?int\d+\((-?\d+)\)")
_SHAPE = re.compile(r"R\.shape\((\[[^\]]*\])\)")


def complaint(error: BaseException) -> str:
    """Return the end of an error's text with readable constants, numbers and shapes."""
    said = _SHAPE.sub(r"\1", _NUMBER.sub(r"\1", _CONSTANT.sub("a constant", _OPERATOR.sub("", last_lines(error)))))
    return " ".join(said.split())
