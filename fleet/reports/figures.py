"""Computes the figures of a tuning run from its records in the library. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.domain.measuring import disturbances_in
from fleet.library import Job, JobSummary, ModelRun, Record, RecordKind, WorkloadSummary
from fleet.reports.run_summary import Ending, endings_of

_TIME_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best time so far of one workload, or of the whole model.

    Starts from the best time known before the job's first trial: from earlier records and the static schedule, else
    from the unscheduled program.
    """

    by_trial: tuple[float, ...]
    """Times after 0, 1, 2, ... trials of the job [s]; inf if no time is known."""

    by_time: tuple[float, ...]
    """At equal distances from the job's start to its last record [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """Figures of the job on one device model."""

    device_model: str
    devices: tuple[str, ...]
    workloads: tuple[WorkloadSummary, ...]
    curves: Mapping[str, Curve]
    """Curves by the workloads' readable names."""

    model_curve: Curve
    """Sum of the workloads, each as often as the model calls it."""

    static_sec: Mapping[str, float]
    """Times of static schedules, by structural hash."""

    device_sec: Mapping[str, float]
    """Device time by purpose [s]."""

    disturbances: Mapping[str, int]
    """Number of measurements affected by each kind of disturbance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """A whole run."""

    job: Job
    by_device: tuple[DeviceFigures, ...]
    model_runs: tuple[ModelRun, ...]
    endings: tuple[Ending, ...]
    """Summaries by device model; empty before its end, and for runs of earlier versions."""

    lasted_sec: float
    """From its start to its last record."""

    tvm_versions: tuple[str, ...]
    targets: tuple[str, ...]


def figures_of(summary: JobSummary, records: Sequence[Record]) -> JobFigures:
    """Return the figures of a run.

    Args:
        records: all of the job's, of every kind, oldest first.
    """
    job = summary.job
    last = max((record.created_at for record in records), default=job.touched_at)
    models = list(dict.fromkeys(entry.device_model for entry in summary.workloads if entry.device_model))
    return JobFigures(
        job=job,
        by_device=tuple(
            _on_device(
                model,
                [entry for entry in summary.workloads if entry.device_model == model],
                [record for record in records if record.scope.device_model == model],
                job.started_at,
                last,
            )
            for model in models
        ),
        model_runs=summary.model_runs,
        endings=endings_of(job),
        lasted_sec=max(0.0, (last - job.started_at).total_seconds()),
        tvm_versions=tuple(sorted({record.scope.tvm_version for record in records} - {""})),
        targets=tuple(sorted({record.scope.target_json for record in records} - {""})),
    )


def _on_device(
    model: str, entries: Sequence[WorkloadSummary], records: Sequence[Record], began: datetime, ended: datetime
) -> DeviceFigures:
    names = {entry.workload.shash: entry.workload.operator for entry in entries}
    weights = {entry.workload.shash: entry.weight for entry in entries}
    counted = [record for record in records if record.workload in names]
    moments = [began + (ended - began) * (at + 1) / _TIME_POINTS for at in range(_TIME_POINTS)]
    static_sec = _static_sec(counted)
    starts = {entry.workload.shash: _start_sec(entry, static_sec) for entry in entries}
    curves = {
        shash: _curve([r for r in counted if r.workload == shash], moments, start) for shash, start in starts.items()
    }
    return DeviceFigures(
        device_model=model,
        devices=tuple(sorted({record.device_name for record in counted} - {""})),
        workloads=tuple(entries),
        curves={_unique(names, shash): curve for shash, curve in curves.items()},
        model_curve=_model_curve(counted, weights, starts, [curve.by_time for curve in curves.values()]),
        static_sec=static_sec,
        device_sec=_device_sec(counted),
        disturbances=Counter(found.kind.value for record in counted for found in disturbances_in(record.provenance)),
    )


def _unique(names: Mapping[str, str], shash: str) -> str:
    same = [other for other, name in names.items() if name == names[shash]]
    return names[shash] if len(same) == 1 else f"{names[shash]} ({same.index(shash) + 1})"


def _first_times() -> Callable[[Record], bool]:
    """Return a predicate for a candidate's first record: repeated measurements are one trial."""
    seen: set[tuple[str, str]] = set()

    def is_first(record: Record) -> bool:
        key = (record.workload, record.trace_digest)
        if record.kind is not RecordKind.CANDIDATE or key in seen:
            return False
        seen.add(key)
        return True

    return is_first


def _start_sec(entry: WorkloadSummary, static_sec: Mapping[str, float]) -> float:
    """Return the best time of a workload before the job's first trial [s]; inf if unknown."""
    known = [sec for sec in (entry.known_sec, static_sec.get(entry.workload.shash)) if sec is not None]
    if not known and entry.untuned_sec is not None:
        return entry.untuned_sec
    return min(known, default=math.inf)


def _curve(records: Sequence[Record], moments: Sequence[datetime], start: float) -> Curve:
    best, by_trial = start, [start]
    seen: list[tuple[datetime, float]] = []
    is_new = _first_times()
    for record in records:
        best = min(best, record.median_sec)
        seen.append((record.created_at, best))
        if is_new(record):
            by_trial.append(best)
    return Curve(by_trial=tuple(by_trial), by_time=tuple(_at(seen, moment, start) for moment in moments))


def _at(seen: Sequence[tuple[datetime, float]], moment: datetime, start: float) -> float:
    return min((best for when, best in seen if when <= moment), default=start)


def _model_curve(
    records: Sequence[Record],
    weights: Mapping[str, float],
    starts: Mapping[str, float],
    by_time: Sequence[Sequence[float]],
) -> Curve:
    best = dict(starts)
    by_trial = [_together(weights, best)]
    is_new = _first_times()
    for record in records:
        best[record.workload] = min(best[record.workload], record.median_sec)
        if is_new(record):
            by_trial.append(_together(weights, best))
    shares = list(weights.values())
    over_time = [
        sum(w * value for w, value in zip(shares, column, strict=True)) for column in zip(*by_time, strict=True)
    ]
    return Curve(by_trial=tuple(by_trial), by_time=tuple(over_time))


def _together(weights: Mapping[str, float], secs: Mapping[str, float]) -> float:
    return sum(weight * secs[shash] for shash, weight in weights.items())


def _static_sec(records: Sequence[Record]) -> dict[str, float]:
    """Return the newest undisturbed time of each static schedule, or the newest one if all were disturbed."""
    found = [record for record in records if record.is_static and record.error is None]
    found.sort(key=lambda record: not disturbances_in(record.provenance))  # stable: the newest of each kind stays last
    return {record.workload: record.median_sec for record in found}


_SPENT_ON = {
    RecordKind.CANDIDATE: "trials",
    RecordKind.STATIC: "static schedules",
    RecordKind.BASELINE: "unscheduled programs",
    RecordKind.IN_PLACE: "schedules in the model",
}


def _device_sec(records: Sequence[Record]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for record in records:
        sec = record.provenance.get("device_sec")
        if isinstance(sec, int | float):
            what = "trials that failed" if record.error else _SPENT_ON.get(record.kind, "trials")
            spent[what] = spent.get(what, 0.0) + sec
    return spent
