"""Coverage of a model by a library: the records, or the experience with its kind, behind each operator's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cross.targets.target import Target
from fleet.domain.operators import workload_kind
from fleet.domain.scope import ScopeFilter
from fleet.domain.workload import Workload
from fleet.library import Library, Record, WorkloadOutline
from fleet.model_schedules import fastest
from fleet.optimizer.prioritizer.values import StaticQuality
from fleet.optimizer.seeds import nearest
from fleet.optimizer.static_quality import static_qualities


class Coverage(StrEnum):
    """Reasons to expect a good schedule without trials, the best first."""

    EXACT = "exact"
    """A checked record of this program."""

    STATIC = "static"
    """Trials hardly ever improved on the static schedules of its kind."""

    NEIGHBOUR = "neighbour"
    """A checked record of the same operators with other shapes, which a search tries first."""

    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredOperator:
    """A workload of a model, and the facts that cover it."""

    workload: Workload
    record: Record | None = None
    quality: StaticQuality | None = None
    """Set if the static schedules of its kind are enough."""

    neighbour: WorkloadOutline | None = None

    @property
    def coverage(self) -> Coverage:
        """The best of its reasons."""
        if self.record is not None:
            return Coverage.EXACT
        if self.quality is not None:
            return Coverage.STATIC
        return Coverage.NOTHING if self.neighbour is None else Coverage.NEIGHBOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Part of a model with one coverage."""

    coverage: Coverage
    operators: int
    """Distinct programs."""

    operations: float
    """Share of the model's operations, from 0 to 1."""


def cover(
    library: Library, workloads: Sequence[Workload], target: Target, within: ScopeFilter
) -> list[CoveredOperator]:
    """Return the coverage of each workload of a model.

    Args:
        target: static schedules are judged by the records of targets with its instruction set.
        within: scopes of the records that count.
    """
    records = fastest(library, [one.shash for one in workloads], within)
    qualities = static_qualities(library, target.json)
    outlines = library.outlines()
    near = {one.shash: nearest(one, outlines) for one in workloads if one.shash not in records}
    known = fastest(library, sorted({other.shash for others in near.values() for other in others}), within)
    found = []
    for workload in workloads:
        quality = qualities.get(workload_kind(workload.name, workload.args, workload.mod_json))
        found.append(
            CoveredOperator(
                workload=workload,
                record=records.get(workload.shash),
                quality=quality if quality is not None and quality.is_enough else None,
                neighbour=next((other for other in near.get(workload.shash, ()) if other.shash in known), None),
            )
        )
    return found


def shares(operators: Sequence[CoveredOperator]) -> list[Share]:
    """Return the share of each coverage, in the order of `Coverage`."""
    total = sum(map(_operations, operators))
    found = []
    for coverage in Coverage:
        those = [one for one in operators if one.coverage is coverage]
        operations = sum(map(_operations, those)) / total if total else 0.0
        found.append(Share(coverage=coverage, operators=len(those), operations=operations))
    return found


def _operations(operator: CoveredOperator) -> float:
    return operator.workload.flop * operator.workload.weight
