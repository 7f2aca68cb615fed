"""Formats numbers and names for display."""

from __future__ import annotations

import re

NaturalKey = tuple[tuple[str, int], ...]

_ENGINES = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "ai_edge_litert": "LiteRT", "onnx": "the package onnx"}


def engine_name(reference: str) -> str:
    """Return the name of a reference: an engine by its package, or the untuned program."""
    return _ENGINES.get(reference, f"the {reference} program" if reference else "")


def short_name(name: str) -> str:
    """Return a resource name without its collection: "devices/pi4-03" -> "pi4-03"."""
    return name.partition("/")[2] or name


def natural_key(name: str) -> NaturalKey:
    """Return a key that sorts numbers in names as numbers: "pi-2" before "pi-10"."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))
