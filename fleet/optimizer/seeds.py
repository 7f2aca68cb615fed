"""Selects schedules of the library and of packs to try on a workload without records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from cross.targets.target import parse_target
from fleet.domain.freshness import BEST
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Observation
from fleet.domain.operators import operators_of
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import ConfigError
from fleet.library import Library, WorkloadOutline
from fleet.packs.lookup import Packs

_Outline = TypeVar("_Outline", bound=WorkloadOutline)

_NEIGHBOURS = 3
_OF_EACH = 2
"""Best schedules of each neighbour, and of the workload itself on each kind of device."""

_OF_PACK = 3
"""Schedules of each pack for the workload itself."""

_CLOSE = 1.1
"""Schedules of a neighbour that are slower than its best by more than this factor are ignored. Where its
static schedule is the best, the next one, of TVM's rules, takes twice the time on both workloads."""


def seeds_for(
    library: Library, workload: Workload, scope: RecordScope, others: Sequence[WorkloadOutline]
) -> tuple[Observation, ...]:
    """Return the best schedules of the workload on other devices, then those of its nearest neighbours.

    Neighbours are of the same operators and kinds of arguments, with other shapes, nearest by the ratios of these.
    """
    found = [
        replace(record.observation(), mod_json=workload.mod_json)
        for other in library.scopes([workload.shash])
        if other != scope and _is_alike(other.target_json, scope.target_json)
        for record in library.best(workload.shash, other, k=_OF_EACH)
    ]
    for neighbour in nearest(workload, others):
        best = library.best(neighbour.shash, scope, k=_OF_EACH)
        close = [record for record in best if record.median_sec <= _CLOSE * best[0].median_sec]
        mod_json = library.workload(neighbour.shash).mod_json if close else ""
        found += [replace(record.observation(), mod_json=mod_json) for record in close]
    return tuple({(one.mod_json, one.trace_json): one for one in found}.values())


def own_seeds(library: Library, workload: Workload, scope: RecordScope) -> tuple[Observation, ...]:
    """Return the best schedules of the workload in this scope, whatever their age."""
    best = library.best(workload.shash, scope, k=BEST)
    return tuple(replace(record.observation(), mod_json=workload.mod_json) for record in best)


def exact_seeds(packs: Packs, workloads: Sequence[Workload], scope: RecordScope) -> dict[str, list[Observation]]:
    """Return the schedules that packs have for workloads in this scope. Their times count for nothing."""
    mod_jsons = {workload.shash: workload.mod_json for workload in workloads}
    found: dict[str, list[Observation]] = {}
    for library in packs.libraries:
        for shash, records in library.best_of(mod_jsons, scope, k=_OF_PACK).items():
            of_pack = (replace(record.observation(), mod_json=mod_jsons[shash]) for record in records)
            found.setdefault(shash, []).extend(of_pack)
    return found


def nearest(workload: Workload, others: Sequence[_Outline]) -> list[_Outline]:
    """Return the workloads of the same operators with the most similar shapes, the nearest first."""
    kind = _kind(workload.name, workload.args)
    alike = [other for other in others if other.shash != workload.shash and _kind(other.name, other.args) == kind]
    return sorted(alike, key=lambda other: (*_distance(workload.args, other.args), other.shash))[:_NEIGHBOURS]


def _kind(name: str, args: Sequence[TensorSpec]) -> tuple[object, ...]:
    operators = tuple(operators_of(name)) or (name,)
    return operators, tuple((len(spec.shape), spec.dtype, spec.is_output) for spec in args)


def _distance(args: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> tuple[int, float]:
    """Return the distance of shapes: the number of dimensions that only one of them has, and the sum of the
    logarithms of their ratios. A depthwise convolution is nearer to another one than to a 1x1 convolution of its
    own size.
    """
    sizes = [
        (max(1, size), max(1, other_size))
        for spec, other in zip(args, others, strict=True)
        for size, other_size in zip(spec.shape, other.shape, strict=True)
    ]
    unlike = sum((size == 1) != (other_size == 1) for size, other_size in sizes)
    return unlike, sum(abs(math.log(size / other_size)) for size, other_size in sizes)


def _is_alike(target_json: str, other_json: str) -> bool:
    """Tell whether schedules for one target can suit another: same kind, and on processors the same instruction set."""
    try:
        target, other = parse_target(target_json), parse_target(other_json)
        return target.kind == other.kind and (not target.is_processor or target.arch == other.arch)
    except ConfigError:  # an imported record, without a target or with one that is refused
        return False
