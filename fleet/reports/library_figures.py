"""Computes the figures of a library's report: times over the best known ones by build, and regressions. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.domain.freshness import Freshness
from fleet.library.build_times import BuildTime

_NOISE = 0.02
"""Share of a workload's time; a smaller slowdown is noise."""

MOST_REGRESSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPoint:
    """All workloads of a device model with times of one build."""

    tvm_version: str
    version: str
    """Of this package; empty: not known."""

    environment: str
    """Digest; empty: not known."""

    workloads: int
    candidates: int
    ratio: float
    """Geometric mean of their best times over the best known ones; at least 1."""

    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A workload that the newest build runs slower than an earlier one."""

    workload: str
    """Its structural hash."""

    operator: str
    before: BuildTime
    now: BuildTime
    command: str = ""
    """Searches it again, or shows its records."""

    @property
    def ratio(self) -> float:
        """Its time now over that before."""
        return self.now.best_sec / self.before.best_sec if self.before.best_sec else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCoverage:
    """Workloads of one kind of operator on one device model, by the reason to expect a good schedule."""

    device_model: str
    kind: str
    """Empty: not known."""

    exact: int
    static: int
    neighbour: int
    """A record of its kind."""

    nothing: int

    @property
    def workloads(self) -> int:
        """Their number."""
        return self.exact + self.static + self.neighbour + self.nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFigures:
    """A whole library."""

    made_at: datetime
    tvm_version: str | None
    """Freshness and coverage count its records; None: all records."""

    max_age: timedelta
    freshness: Freshness
    candidates: int
    """Schedules with a time, of all builds."""

    workloads: int
    coverage: Sequence[KindCoverage]
    points: Mapping[str, Sequence[BuildPoint]]
    """By device model; builds in order of their first record."""

    regressions: Sequence[Regression]


def points_of(times: Iterable[BuildTime]) -> dict[str, list[BuildPoint]]:
    """Return the times of each build over the best known ones, by device model."""
    found = trusted(times)
    best: dict[tuple[str, ...], float] = {}
    for time in found:
        best[_program(time)] = min(time.best_sec, best.get(_program(time), math.inf))
    builds: defaultdict[str, dict[tuple[str, ...], list[BuildTime]]] = defaultdict(dict)
    for time in found:
        builds[time.device_model].setdefault(_build(time), []).append(time)
    return {model: [_point(those, best) for those in by_build.values()] for model, by_build in builds.items()}


def regressions_of(times: Iterable[BuildTime], operators: Mapping[str, str]) -> list[Regression]:
    """Return the workloads that became slower with the newest build of their scope, the worst first.

    Args:
        operators: readable names by structural hash.
    """
    by_program: defaultdict[tuple[str, ...], list[BuildTime]] = defaultdict(list)
    for time in trusted(times):
        by_program[_program(time)].append(time)
    found = [
        Regression(
            workload=now.workload,
            operator=operators.get(now.workload, now.workload),
            before=min(earlier, key=lambda time: time.best_sec),
            now=now,
        )
        for *earlier, now in by_program.values()
        if earlier
    ]
    slower = [one for one in found if one.ratio > 1 + _NOISE]
    return sorted(slower, key=lambda one: (-one.ratio, one.workload, one.now.device_model))[:MOST_REGRESSIONS]


def trusted(times: Iterable[BuildTime]) -> list[BuildTime]:
    """Return times in order of their builds, without unchecked ones of workloads with a checked schedule."""
    found = sorted(times, key=lambda time: time.first_id)
    checked = {_program(time) for time in found if time.is_checked}
    return [time for time in found if time.is_checked or _program(time) not in checked]


def _program(time: BuildTime) -> tuple[str, ...]:
    return time.device_model, time.target_key, time.workload


def _build(time: BuildTime) -> tuple[str, ...]:
    return time.tvm_version, time.version, time.environment


def _point(times: Sequence[BuildTime], best: Mapping[tuple[str, ...], float]) -> BuildPoint:
    ratios = [time.best_sec / best[_program(time)] for time in times if best[_program(time)] > 0]
    return BuildPoint(
        tvm_version=times[0].tvm_version,
        version=times[0].version,
        environment=times[0].environment,
        workloads=len({time.workload for time in times}),
        candidates=sum(time.candidates for time in times),
        ratio=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0,
        last_at=max(time.last_at for time in times),
    )
