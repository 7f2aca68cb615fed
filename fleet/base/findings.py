"""Findings of a check of this machine, as `fleet doctor` collects them from all packages."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of one check."""

    name: str
    state: State = State.OK
    seen: str
    advice: str = ""
    """Remedy."""
