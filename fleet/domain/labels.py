"""Limits on the labels of a device: every snapshot contains them, and every selector is matched against them."""

from __future__ import annotations

from collections.abc import Mapping

MAX_LABELS = 256
"""Labels per device, detected and configured ones together."""
MAX_GIVEN_LABELS = 64
"""Labels per device in agent.yaml."""
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 256
FIXED_LABELS = frozenset({"bitstream", "emulated", "kind", "missing", "name"})
"""Reserved keys that describe the device itself; agent.yaml cannot redefine them."""


def size_fault(labels: Mapping[str, str], *, most: int = MAX_LABELS) -> str:
    """Return a description of the exceeded limit; empty if the labels are within all limits."""
    if len(labels) > most:
        return f"{len(labels)} labels, at most {most}; keep the rest in facts"
    for key, value in labels.items():
        if len(key) > _MAX_KEY_CHARS:
            return f"{key[:_MAX_KEY_CHARS]!r}... is a key of {len(key)} characters, at most {_MAX_KEY_CHARS}"
        if len(value) > _MAX_VALUE_CHARS:
            return f"{key}: a value of {len(value)} characters, at most {_MAX_VALUE_CHARS}; keep long texts in facts"
    return ""
