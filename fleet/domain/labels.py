"""Bounds on the labels of a device: every snapshot carries them, and every selector is compared with them."""

from __future__ import annotations

from collections.abc import Mapping

MAX_LABELS = 256
"""Of one device, found and given ones together."""
MAX_GIVEN_LABELS = 64
"""Of one device in agent.yaml."""
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 256
FIXED_LABELS = frozenset({"bitstream", "emulated", "kind", "missing", "name"})
"""Keys that say what a device is: no label of another meaning may stand there."""


def size_fault(labels: Mapping[str, str], *, most: int = MAX_LABELS) -> str:
    """Say in a sentence what is too large about labels; empty if nothing is."""
    if len(labels) > most:
        return f"{len(labels)} labels, at most {most}; keep the rest in facts"
    for key, value in labels.items():
        if len(key) > _MAX_KEY_CHARS:
            return f"{key[:_MAX_KEY_CHARS]!r}... is a key of {len(key)} characters, at most {_MAX_KEY_CHARS}"
        if len(value) > _MAX_VALUE_CHARS:
            return f"{key}: a value of {len(value)} characters, at most {_MAX_VALUE_CHARS}; keep long texts in facts"
    return ""
