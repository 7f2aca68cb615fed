"""How a tuning run looks: while it goes on, and at its end. Pure functions of its progress and report."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fleet.optimizer.job import ModelReport, TuneReport, WorkloadReport, report_workload
from fleet.optimizer.progress import JobProgress

_SHOWN = 12
"""Workloads shown while tuning: the costliest; a screen has few lines."""


def render_progress(progress: JobProgress, spinner: Spinner, *, elapsed_sec: float) -> RenderableType:
    """Show a running job: what it does, how far it is, and the workloads found so far."""
    spinner.update(text=Text(progress.activity))
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, progress.trials_total), completed=progress.trials_done, width=40)
    line.add_row(
        bar,
        f"{progress.trials_done}/{progress.trials_total} trials",
        f"{progress.trials_failed} failed" if progress.trials_failed else "",
        f"{progress.repeated} again" if progress.repeated else "",
        f"{elapsed_sec:.0f} s",
        Text(progress.device_name.removeprefix("devices/"), style="dim"),
    )
    parts: list[RenderableType] = [line, spinner]
    if progress.workloads:
        shown = progress.workloads[:_SHOWN]
        parts.insert(0, workload_table([report_workload(item) for item in shown]))
        if len(progress.workloads) > len(shown):
            parts.insert(1, Text(f"and {len(progress.workloads) - len(shown)} cheaper ones", style="dim"))
    return Group(*parts)


def render_report(report: TuneReport) -> RenderableType:
    """Show what a finished job gained."""
    parts: list[RenderableType] = [workload_table(report.workloads)]
    notes = [f"{item.name}: {item.note}" for item in report.workloads if item.note]
    parts += [Text(note, style="dim") for note in notes]
    if report.model is not None:
        parts += ["", _model_table(report.model), _check_line(report.model)]
    first = f", the first after {report.first_trial_sec:.1f} s" if report.first_trial_sec is not None else ""
    if report.repeated:
        again = (
            f"{report.repeated} measurement{'s' if report.repeated > 1 else ''} made again: the device was disturbed"
        )
        parts.append(Text(again, style="yellow"))
    parts.append(Text(f"{report.trials} trials in {report.wall_sec:.1f} s{first}, on {report.device_model}"))
    return Group(*parts)


def records_line(report: TuneReport) -> str:
    """Say where the records are; printed unwrapped, so that the path can be copied."""
    return f"records: {report.library} ({report.job}); see them with: fleet library best"


def stopped_line(progress: JobProgress) -> str:
    """Say what an interrupted run leaves behind, and how to resume."""
    if not progress.trials_done:
        return "stopped before the first trial; the same command starts again"
    done = f"{progress.trials_done} of {progress.trials_total} trials are in the library"
    return f"stopped: {done}; the same command goes on from there"


def workload_table(workloads: Sequence[WorkloadReport]) -> Table:
    """One row per workload, costliest first."""
    # One blank between columns: names are whole on 80.
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column("workload", overflow="fold", max_width=44)
    for name in ("weight", "trials", "untuned", "best", "GFLOP/s", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    shows_failed = any(item.errors for item in workloads)
    if shows_failed:
        table.add_column("failed", overflow="fold")
    for item in workloads:
        known = f" +{item.trials_before}" if item.trials_before else ""
        table.add_row(
            item.name,
            str(item.weight),
            f"{item.trials}{known}",
            _time(item.untuned_us),
            _time(item.best_us),
            f"{item.gflops:.1f}" if item.gflops else "-",
            f"{item.speedup:.1f}x" if item.speedup else "-",
            *([", ".join(f"{count} {kind}" for kind, count in item.errors.items())] if shows_failed else []),
        )
    return table


def _model_table(model: ModelReport) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("whole model", "latency", "against untuned"):
        table.add_column(name, justify="left" if name == "whole model" else "right")
    rows = (("untuned", model.untuned_ms), ("tuned", model.tuned_ms), ("ONNX Runtime", model.onnxruntime_ms))
    for name, latency_ms in rows:
        ratio = f"{model.untuned_ms / latency_ms:.1f}x" if latency_ms and model.untuned_ms else "-"
        table.add_row(name, _time(latency_ms * 1e3 if latency_ms else None), ratio)
    return table


def _check_line(model: ModelReport) -> Text:
    if not model.is_right:
        return Text(f"WRONG: {model.message}", style="bold red")
    return Text(f"output agrees with {model.reference}: largest difference {model.max_abs_error:.2g}", style="green")


def _time(time_us: float | None) -> str:
    if time_us is None:
        return "-"
    return f"{time_us / 1e3:.2f} ms" if time_us >= 1000 else f"{time_us:.1f} us"
