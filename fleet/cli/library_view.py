"""What `fleet library` shows: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from rich.console import Console
from rich.text import Text

from fleet.cli.tables import (
    ROOMY_COLUMNS,
    WIDE_COLUMNS,
    WorkloadRow,
    duration,
    failure_notes,
    gflops,
    line,
    make_table,
    rate,
    speed_up,
    workload_table,
)
from fleet.domain.keys import canonical_target
from fleet.domain.measuring import disturbances_in
from fleet.domain.scope import RecordScope
from fleet.library import Job, JobSummary, Record, StoredWorkload

_NAMED = 3
"""How many workloads a note names; a longer list would say no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRow:
    """One of the fastest candidates of a workload."""

    workload: StoredWorkload
    record: Record
    scope: RecordScope
    untuned_sec: float | None

    @property
    def disturbances(self) -> list[str]:
        return [found.text for found in disturbances_in(self.record.provenance)]


def best_data(row: BestRow) -> dict[str, object]:
    """Return everything needed to use a record."""
    workload, record, scope = row.workload, row.record, row.record.scope
    return {
        "workload": workload.name,
        "operator": workload.operator,
        "shash": workload.shash,
        "target": scope.target_json,
        "device_model": scope.device_model,
        "tvm_version": scope.tvm_version,
        "best_us": record.median_sec * 1e6,
        "untuned_us": _us(row.untuned_sec),
        "gflops": gflops(workload.flop, record.median_sec),
        "run_secs": list(record.run_secs),
        "checked": record.checked,
        "record": record.id,
        "job": record.job_name,
        "measured_at": record.created_at.isoformat(),
        "trace": record.trace_json,
        "disturbances": row.disturbances,
    }


def print_best(rows: Sequence[BestRow], console: Console) -> None:
    """Print a table for each scope, since times from different scopes do not compare."""
    has_room, is_wide = console.width >= ROOMY_COLUMNS, console.width >= WIDE_COLUMNS
    columns = ["workload", "best", "speed-up", "GFLOP/s", "output"]
    columns += ["untuned", "measured"] if has_room else []
    columns += ["TVM's name"] if is_wide else []
    for number, (scope, group) in enumerate(groupby(rows, key=lambda row: row.scope)):
        if number:
            console.print()
        console.print(_scope_line(scope, is_wide=is_wide), no_wrap=True, overflow="ellipsis")
        table = make_table(*columns, left=frozenset({"workload", "output", "TVM's name"}))
        for row in group:
            best_sec = row.record.median_sec
            table.add_row(
                line(row.workload.operator),
                duration(best_sec),
                speed_up(row.untuned_sec, best_sec),
                rate(gflops(row.workload.flop, best_sec)),
                "checked" if row.record.checked else "",
                *([duration(row.untuned_sec), _time(row.record.created_at)] if has_room else []),
                *([line(row.workload.name)] if is_wide else []),
            )
        console.print(table)
    disturbed = [row.workload.operator for row in rows if row.disturbances]
    if disturbed:
        names = ", ".join(disturbed[:_NAMED]) + (", ..." if len(disturbed) > _NAMED else "")
        console.print(Text(f"measured while something disturbed the device, see --json: {names}", style="yellow"))


def job_data(job: Job) -> dict[str, object]:
    """Return what is known of a tuning run."""
    return {
        "name": job.name,
        "title": job.title,
        "state": job.state.value,
        "message": job.message,
        "trials_done": job.trials_done,
        "trials_failed": job.trials_failed,
        "trials_total": job.trials_total,
        "holder": job.holder,
        "host": job.host,
        "model_digest": job.model_digest,
        "tuner": job.tuner,
        "conditions": dict(job.conditions),
        "started_at": job.started_at.isoformat(),
        "ended_at": job.ended_at.isoformat() if job.ended_at else None,
    }


def print_jobs(jobs: Sequence[Job], console: Console) -> None:
    """Print a row for each tuning run."""
    has_room = console.width >= ROOMY_COLUMNS
    columns = ["job", "model", "state", "trials", "failed", "lasted"]
    columns += ["started", "holder"] if has_room else []
    table = make_table(*columns, left=frozenset({"model", "holder"}))
    for column in ("job", "state"):  # never cut: people copy them and search for them
        table.columns[columns.index(column)].justify = "left"
    for job in jobs:
        total = f"/{job.trials_total}" if job.trials_total else ""
        table.add_row(
            job.name,
            line(job.title),
            job.state.value,
            f"{job.trials_done}{total}",
            str(job.trials_failed),
            str((job.ended_at or job.touched_at) - job.started_at).split(".")[0],
            *((_time(job.started_at), line(job.holder)) if has_room else ()),
        )
    console.print(table)


def summary_data(summary: JobSummary) -> dict[str, object]:
    """Return what a tuning run did for each workload and for the model."""
    workloads = [
        {
            "name": entry.workload.name,
            "operator": entry.workload.operator,
            "shash": entry.workload.shash,
            "weight": entry.weight,
            "trials": entry.trials,
            "untuned_us": _us(entry.untuned_sec),
            "best_us": _us(entry.best_sec),
            "errors": {kind.value: count for kind, count in entry.errors.items()},
        }
        for entry in summary.workloads
    ]
    names = ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error")
    runs = [{name: getattr(run, name) for name in names} for run in summary.model_runs]
    return {**job_data(summary.job), "workloads": workloads, "model_runs": runs}


def print_summary(summary: JobSummary, console: Console) -> None:
    """Print what a tuning run did."""
    job = summary.job
    why = f": {job.message}" if job.message else ""
    console.print(f"{job.name}  {job.title}  {job.state.value}{why}, {job.trials_done} trials", markup=False)
    rows = [
        WorkloadRow(
            operator=entry.workload.operator,
            name=entry.workload.name,
            weight=entry.weight,
            trials=entry.trials,
            untuned_sec=entry.untuned_sec,
            best_sec=entry.best_sec,
            gflops=gflops(entry.workload.flop, entry.best_sec),
            errors={kind.value: count for kind, count in entry.errors.items()},
        )
        for entry in summary.workloads
    ]
    console.print(workload_table(rows, console.width))
    for note in failure_notes(rows):
        console.print(note, style="dim", markup=False)
    for run in summary.model_runs:
        parts = [("untuned", run.untuned_ms), ("tuned", run.tuned_ms), ("ONNX Runtime", run.onnxruntime_ms)]
        console.print("model: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in parts if ms is not None))


def _scope_line(scope: RecordScope, *, is_wide: bool) -> Text:
    version = f"TVM {scope.tvm_version}" if scope.tvm_version else "unknown TVM"
    target = scope.target_json if is_wide else canonical_target(scope.target_json)
    return Text(f"{scope.device_model}, {version}, {target or 'unknown target'}", style="bold")


def _us(sec: float | None) -> float | None:
    return None if sec is None else sec * 1e6


def _time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M")
