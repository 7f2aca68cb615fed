"""Gains of trials over static schedules by kind of operator, from the records of a library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cross.targets.target import parse_target
from fleet.domain.operators import workload_kind
from fleet.errors import ConfigError
from fleet.library import Library
from fleet.library.static_times import StaticTimes
from fleet.optimizer.prioritizer.values import StaticQuality, searched_gain


def static_qualities(library: Library, target_json: str) -> Mapping[str, StaticQuality]:
    """Return the quality of static schedules on targets of the same instruction set, by kind of operator."""
    wanted = instructions(target_json)
    known = {scope.target_json for scope in library.scopes()}
    return qualities_of(library.memory.static_times([each for each in sorted(known) if instructions(each) == wanted]))


def qualities_of(times: Iterable[StaticTimes]) -> Mapping[str, StaticQuality]:
    """Summarize searched workloads by kind."""
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for each in times:
        kind = workload_kind(each.name, each.args)
        gain = searched_gain(each.static_sec, each.best_sec, each.trials)
        if kind and gain is not None:
            gains[kind].append(gain)
    return {kind: StaticQuality(kind=kind).with_gains(found) for kind, found in sorted(gains.items())}


def instructions(target_json: str) -> tuple[object, ...]:
    """Return the parts of a target that decide about schedules, without its number of cores; equal for equal ones."""
    try:
        target = parse_target(target_json)
    except ConfigError:  # an imported record of a target that this version does not know
        return (target_json,)
    return target.kind, *(target.options.get(name) for name in ("mcpu", "arch", "mtriple"))
