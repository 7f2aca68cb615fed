"""Gains of trials over static schedules by kind of operator, from the records of a library.

A search of a kind whose static schedules are the best known ones gains nothing: its first batch is small or left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cross.targets.target import parse_target
from fleet.domain.operators import workload_kind
from fleet.errors import ConfigError
from fleet.library import Library
from fleet.library.static_times import StaticTimes
from fleet.optimizer.prioritizer.values import UNKNOWN_GAIN

_IMPROVED = 0.02
"""Share of a workload's time that trials must gain to count as an improvement; less is noise."""

_LEAST_TRIALS = 8
"""A workload with fewer trials has not been searched."""

_LEAST_SEARCHED = 5
"""Minimum number of searched workloads for a statement about their kind."""

_UNKNOWN_WEIGHT = 1.0
"""Weight of the usual gain of an unknown workload, in searched workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticQuality:
    """Static schedules of one kind of operator."""

    kind: str
    searched: int
    """Workloads that had trials, in all scopes."""

    improved: int
    """Those of them for which a trial was clearly faster."""

    mean_gain: float
    """Share of its time that a searched workload gained, on average; 0 for one that was not improved."""

    @property
    def expected_gain(self) -> float:
        """Share of its time that the next workload of this kind should gain, shrunk towards an unknown one's."""
        known = self.searched * self.mean_gain + _UNKNOWN_WEIGHT * UNKNOWN_GAIN
        return known / (self.searched + _UNKNOWN_WEIGHT)

    @property
    def is_enough(self) -> bool:
        """True if trials hardly ever gained anything."""
        return self.searched >= _LEAST_SEARCHED and self.mean_gain < _IMPROVED


def static_qualities(library: Library, target_json: str) -> Mapping[str, StaticQuality]:
    """Return the quality of static schedules on targets of the same instruction set, by kind of operator."""
    wanted = _instructions(target_json)
    known = {scope.target_json for scope in library.scopes()}
    return qualities_of(library.memory.static_times([each for each in sorted(known) if _instructions(each) == wanted]))


def qualities_of(times: Iterable[StaticTimes]) -> Mapping[str, StaticQuality]:
    """Summarize searched workloads by kind."""
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for each in times:
        kind = workload_kind(each.name, each.args)
        if kind and each.trials >= _LEAST_TRIALS:
            gain = 1 - each.best_sec / each.static_sec
            gains[kind].append(gain if gain > _IMPROVED else 0.0)
    return {kind: _quality(kind, found) for kind, found in sorted(gains.items())}


def _quality(kind: str, gains: Sequence[float]) -> StaticQuality:
    return StaticQuality(
        kind=kind,
        searched=len(gains),
        improved=sum(gain > 0 for gain in gains),
        mean_gain=sum(gains) / len(gains),
    )


def _instructions(target_json: str) -> tuple[object, ...]:
    """Return the parts of a target that decide about schedules, without its number of cores."""
    try:
        target = parse_target(target_json)
    except ConfigError:  # an imported record of a target that this version does not know
        return (target_json,)
    return target.kind, *(target.options.get(name) for name in ("mcpu", "arch", "mtriple"))
