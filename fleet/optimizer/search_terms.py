"""Terms of a search: the kind of search, and schedules that it begins with."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fleet.domain.origin import Origin


class Search(enum.StrEnum):
    """Ways to find candidates."""

    EVOLUTIONARY = "evolutionary"
    RANDOM = "random"
    GRID = "grid"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A schedule that was good for another workload, or for this one on another device."""

    mod_json: str
    """Program that it was made for."""

    trace_json: str
    origin: Origin
