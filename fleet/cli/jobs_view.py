"""Output of `fleet jobs`: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from fleet.base.quantities import time_text
from fleet.cli.tables import (
    ROOMY_COLUMNS,
    WorkloadRow,
    clock_time,
    failure_notes,
    gflops,
    line,
    make_table,
    workload_table,
)
from fleet.cli.watching import progress_of, readable_progress, reports_of
from fleet.domain.jobs import trials_text
from fleet.library import Job, JobState, JobSummary, WorkloadSummary

_UNDER_WAY = (JobState.RUNNING, JobState.INTERRUPTED)


def job_data(job: Job) -> dict[str, object]:
    """Return the facts about a tuning run."""
    return {
        "name": job.name,
        "title": job.title,
        "state": job.state,
        "message": job.message,
        "trials_done": job.trials_done,
        "trials_failed": job.trials_failed,
        "trials_total": job.trials_asked,
        "holder": job.holder,
        "owner": job.owner,
        "tags": list(job.tags),
        "host": job.host,
        "optimizer": job.optimizer,
        "priority": job.priority,
        "is_queued": job.is_queued,
        "reverted_at": job.reverted_at,
        "model_digest": job.model_digest,
        "tuner": job.tuner,
        "conditions": dict(job.conditions),
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }


def print_jobs(jobs: Sequence[Job], console: Console) -> None:
    """Print a row for each tuning run."""
    has_room = console.width >= ROOMY_COLUMNS
    columns = ["job", "model", "state", "trials", "failed", "lasted"]
    columns += ["started", "holder"] if has_room else []
    table = make_table(*columns, left=frozenset({"model", "holder"}))
    for column in ("job", "state"):  # never truncated: people copy and search them
        table.columns[columns.index(column)].justify = "left"
    for job in jobs:
        table.add_row(
            job.name,
            line(" ".join([job.title, *(f"#{tag}" for tag in job.tags)])),
            _state(job),
            trials_text(job.trials_done, job.trials_asked),
            str(job.trials_failed),
            lasted(job),
            *((clock_time(job.started_at), line(job.holder)) if has_room else ()),
        )
    console.print(table)
    for job in jobs:
        for kind in readable_progress(job) if job.state is JobState.RUNNING else ():
            for decision in kind.decisions[-1:]:
                console.print(Text(f"{job.name}, {kind.selector}: {decision}", style="dim"))


def summary_data(summary: JobSummary) -> dict[str, object]:
    """Return a tuning run's results for each workload and for the model."""
    workloads = [
        {
            "name": entry.workload.name,
            "operator": entry.workload.operator,
            "shash": entry.workload.shash,
            "device_model": entry.device_model,
            "weight": entry.weight,
            "trials": entry.trials,
            "untuned_sec": entry.untuned_sec,
            "best_sec": entry.best_sec,
            "errors": {kind.value: count for kind, count in entry.errors.items()},
        }
        for entry in summary.workloads
    ]
    names = ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error")
    runs = [{name: getattr(run, name) for name in names} for run in summary.model_runs]
    job = summary.job
    ordered = {"spec": job.spec, "progress": job.progress, "report": job.report}
    return {**job_data(job), "workloads": workloads, "model_runs": runs, **ordered}


def print_summary(summary: JobSummary, console: Console) -> None:
    """Print a tuning run's results."""
    for part in summary_view(summary, console.width):
        console.print(part)


def summary_view(summary: JobSummary, width: int) -> Iterator[RenderableType]:
    """Return a tuning run's results, from top to bottom, for a terminal of a width."""
    job = summary.job
    why = f": {job.message}" if job.message else ""
    yield Text(f"{job.name}  {job.title}  {_state(job)}{why}, {job.trials_done} trials")
    models = list(dict.fromkeys(entry.device_model for entry in summary.workloads))
    for model in models:
        rows = [_row(entry) for entry in summary.workloads if entry.device_model == model]
        if len(models) > 1:
            yield Text(f"\non {model}:")
        yield workload_table(rows, width)
        yield from (Text(note, style="dim") for note in failure_notes(rows))
    for line_of_text in (*_why_it_ended(job), *(_what_it_does(job) if job.state in _UNDER_WAY else ())):
        yield Text(line_of_text, style="dim")
    for run in summary.model_runs:
        parts = [("untuned", run.untuned_ms), ("tuned", run.tuned_ms), ("ONNX Runtime", run.onnxruntime_ms)]
        yield Text("model: " + ", ".join(f"{name} {time_text(ms / 1e3)}" for name, ms in parts if ms is not None))


def _why_it_ended(job: Job) -> Iterator[str]:
    reports = reports_of(job)
    for report in reports:
        on = f"{report.device_model}, " if len(reports) > 1 else ""
        yield from (f"{on}{item.operator}: {item.note}" for item in report.workloads if item.note)
        if report.charged_sec:
            yield f"charged {time_text(report.charged_sec)} of {report.device_model}"


def _what_it_does(job: Job) -> Iterator[str]:
    for kind in progress_of(job):
        on = f", on {kind.device.removeprefix('devices/')}" if kind.device else ""
        yield f"{kind.selector}: {kind.activity}, {trials_text(kind.trials_done, kind.trials_total)} trials{on}"
        if kind.charged_sec:
            yield f"{kind.selector}: charged {time_text(kind.charged_sec)} of device time"
        yield from map(str, kind.decisions)


def _row(entry: WorkloadSummary) -> WorkloadRow:
    return WorkloadRow(
        operator=entry.workload.operator,
        name=entry.workload.name,
        weight=entry.weight,
        trials=entry.trials,
        untuned_sec=entry.untuned_sec,
        best_sec=entry.best_sec,
        gflops=gflops(entry.workload.flop, entry.best_sec),
        errors={kind.value: count for kind, count in entry.errors.items()},
    )


def lasted(job: Job) -> str:
    """Return the age of a job."""
    return str((job.ended_at or job.touched_at) - job.started_at).split(".")[0]


def _state(job: Job) -> str:
    return f"{job.state.value}, reverted" if job.reverted_at is not None else job.state.value
