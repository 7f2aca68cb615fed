"""Origin of a candidate: the search that made it, and its choice of knobs."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


class Source(enum.StrEnum):
    """Kinds of searches."""

    SPACE = "space"
    """The workload's own space."""

    RULES = "rules"
    """MetaSchedule's rules: the trace has decisions, which can be mutated."""

    STEPS = "steps"
    """Steps of another schedule, as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of one candidate. It is kept in the provenance of its record."""

    source: Source
    knobs: str = ""
    """Choice of the space's knobs, as `choice_text` writes it; empty if there are none, or they are not known."""

    is_adapted: bool = False
    """It was best for another workload or on another device, and was adapted to this one."""

    @classmethod
    def of_trace(cls, trace_json: str) -> Self:
        """Infer the origin of a schedule from its steps, if nothing else is known."""
        return cls(source=Source.RULES if has_decisions(trace_json) else Source.SPACE)

    @classmethod
    def of_record(cls, provenance: Mapping[str, object], trace_json: str) -> Self:
        """Read the origin in a record's provenance; older and imported records have none."""
        kept = provenance.get("origin")
        if not isinstance(kept, Mapping) or kept.get("source") not in set(Source):
            return cls.of_trace(trace_json)
        return cls(
            source=Source(kept["source"]),
            knobs=str(kept.get("knobs", "")),
            is_adapted=bool(kept.get("is_adapted")),
        )

    @property
    def is_of_rules(self) -> bool:
        """True if MetaSchedule's rules made it, so that its decisions can be mutated."""
        return self.source is Source.RULES

    @property
    def provenance(self) -> dict[str, object]:
        """Entries for the provenance of a record."""
        return {"origin": {"source": self.source.value, "knobs": self.knobs, "is_adapted": self.is_adapted}}


def has_decisions(trace_json: str) -> bool:
    """Tell whether a trace has sampled decisions, which can be mutated. Malformed ones do not."""
    try:
        return bool(json.loads(trace_json)[1])
    except (ValueError, LookupError, TypeError):
        return False
