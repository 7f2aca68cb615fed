"""Result of a build task."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.artifacts.artifact import Artifact
from fleet.domain.observation import Features
from fleet.spaces.packing import Packing


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCandidate:
    """A built candidate."""

    artifact: Artifact
    """Its arguments are in the candidate's layout: packed if it expects that."""

    features: Features | None = field(compare=False)
    """None for the unscheduled program, or if the search had them already."""

    packings: tuple[Packing, ...] = ()
    """Conversion of the workload's arguments to its own."""

    program: int | None = None
    """Hash of the scheduled program."""
