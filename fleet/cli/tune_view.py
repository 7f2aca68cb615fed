"""Renders a tuning run, during the run and at its end. Pure functions of its progress and report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import time_text
from fleet.cli.explain_view import loop_nests_line
from fleet.cli.stored import naming
from fleet.cli.tables import WorkloadRow, failure_notes, workload_table
from fleet.dashboard.formatting import engine_name
from fleet.domain.jobs import trials_text
from fleet.domain.measuring import RepeatCount
from fleet.export.targets import target_of
from fleet.jobs.options import TuneOptions
from fleet.jobs.report import ModelReport, ProgressReport, RatioReport, TuneReport, WorkloadReport
from fleet.models.importers import title_of
from fleet.optimizer.core.progress import JobProgress, Phase

_SHOWN = 12
"""Number of workloads shown while tuning, costliest first; a screen has few lines."""


def render_progress(progress: ProgressReport, spinner: Spinner, *, width: int = 80) -> RenderableType:
    """Show a running job: activity, progress, and the workloads found so far."""
    spinner.update(text=Text(progress.activity))
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=progress.share, width=40)
    line.add_row(
        bar,
        f"{trials_text(progress.trials_done, progress.trials_total)} trials",
        f"{progress.trials_failed} failed" if progress.trials_failed else "",
        _repeats(progress.repeats),
        _seconds(progress),
        Text(progress.device.removeprefix("devices/"), style="dim"),
    )
    prospects = prospect_texts(progress)
    parts: list[RenderableType] = [line, *([Text("; ".join(prospects), style="dim")] if prospects else []), spinner]
    if progress.workloads:
        shown = progress.workloads[:_SHOWN]
        parts.insert(0, workload_table(list(map(_row, shown)), width))
        if len(progress.workloads) > len(shown):
            parts.insert(1, Text(f"and {len(progress.workloads) - len(shown)} cheaper workloads", style="dim"))
    return Group(*parts)


def state_text(report: ProgressReport, progress: JobProgress) -> str:
    """Return a short summary of a job: trials, time of all operators tuned and untuned, time left."""
    parts = []
    if progress.trials_total and progress.phase is Phase.SEARCH:
        parts.append(f"{trials_text(report.trials_done, progress.trials_asked)} trials")
    if untuned_sec := progress.total_sec(tuned=False):
        best = time_text(progress.total_sec(tuned=True))
        parts.append(f"all operators {best}, untuned {time_text(untuned_sec)}")
    parts += prospect_texts(report)
    return "".join(f"; {part}" for part in parts)


def prospect_texts(report: ProgressReport) -> list[str]:
    """Return the remaining time of a search and the gain of its rest, as far as they are known."""
    return [
        *([str(report.left)] if report.left is not None else []),
        *([f"its next tenth should gain {report.rest_share:.1%}"] if report.rest_share is not None else []),
    ]


def render_report(report: TuneReport, *, width: int = 80) -> RenderableType:
    """Show a finished job's gains."""
    rows = list(map(_row, report.workloads))
    parts: list[RenderableType] = [workload_table(rows, width)]
    notes = [f"{item.operator}: {note}" for item in report.workloads for note in _notes(item)] + failure_notes(rows)
    parts += [Text(note, style="dim") for note in notes]
    if report.model is not None:
        parts += ["", _model_table(report.model), _check_line(report.model)]
        if report.model.untuned_problem:
            parts.append(Text(f"the untuned model was not timed: {report.model.untuned_problem}", style="yellow"))
        if report.model.in_place:
            parts.append(Text(_in_place_line(report.model), style="dim"))
        if report.model.keeps_static:
            parts.append(Text(_static_line(report.model), style="yellow"))
        if report.model.loop_nests:
            parts.append(Text(loop_nests_line(report.model.loop_nests), style="yellow"))
        if report.model.is_slower:
            parts.append(
                Text(
                    "SLOWER: the tuned model takes longer than with static schedules; export it with: "
                    "fleet export --untuned",
                    style="bold red",
                )
            )
    has_first = report.trials and report.first_trial_sec is not None
    first = f", the first after {report.first_trial_sec:.1f} s" if has_first else ""
    if report.repeats.count:
        parts.append(Text(_repeats_line(report.repeats), style="yellow"))
    if report.ended is not None:
        trials = trials_text(report.trials, report.ended.trials_asked)
        parts.append(Text(f"ended after {trials} trials: {report.ended.sentence}"))
    charged = f", {time_text(report.charged_sec)} of its time" if report.charged_sec else ""
    parts.append(Text(f"{report.trials} trials in {report.wall_sec:.1f} s{first}, on {report.device_model}{charged}"))
    return Group(*parts)


def print_reports(reports: Sequence[TuneReport], console: Console) -> None:
    """Print a finished job's gains on each of its kinds of boards."""
    for report in reports:
        if len(reports) > 1:
            console.print(f"on {report.device_model}:", style="bold")
        console.print(render_report(report, width=console.width))
        console.print(records_line(report), soft_wrap=True)
        if report is not reports[-1]:
            console.print()


def records_line(report: TuneReport) -> str:
    """Return the location of the records; printed unwrapped, so that the path can be copied."""
    return f"records: {report.library} ({report.job}); see them with: fleet library best{naming(report.library)}"


def next_lines(options: TuneOptions, report: TuneReport) -> list[str]:
    """Return the usual next commands: export the model and check it on the device. Empty for a single program."""
    if options.program or report.model is None:
        return []
    model, target = str(options.model), report.target_json
    file = f"{title_of(options.model)}.fleet"
    export = ["fleet", "export", model, "-o", file]
    if target and target != target_of("host").json:
        export += ["--target", target]
    for shapes in options.shapes:
        export += [
            word for name, shape in shapes.items() for word in ("--shape", f"{name}={','.join(map(str, shape))}")
        ]
    if options.input_batch_size is not None:
        export += ["--batch-size", str(options.input_batch_size)]
    if options.random_weights:
        export += ["--random-weights"]
    if report.model.is_slower:
        export += ["--untuned"]
    check = ["fleet", "serve-check", file, "--on", options.selector]
    if options.tracker is not None:
        check += ["--tracker", options.tracker]
    return ["next:", f"  {shlex.join(export)}{naming(report.library)}", f"  {shlex.join(check)}"]


def stopped_line(progress: JobProgress) -> str:
    """Print the state of an interrupted run, and the command to resume."""
    if not progress.trials_done:
        return "stopped before the first trial; the same command starts again"
    done = f"{trials_text(progress.trials_done, progress.trials_asked)} trials are in the library"
    return f"stopped: {done}; the same command goes on from there"


def _row(report: WorkloadReport) -> WorkloadRow:
    return WorkloadRow(
        operator=report.operator,
        name=report.name,
        weight=report.weight,
        trials=report.trials,
        trials_before=report.trials_before,
        untuned_sec=_sec(report.untuned_us),
        best_sec=_sec(report.best_us),
        gflops=report.gflops,
        errors=report.errors,
    )


def _notes(item: WorkloadReport) -> list[str]:
    kept = item.best_us is not None and not item.uses_schedule
    return [
        *([item.note] if item.note else []),
        *(["its unscheduled program takes longer than that, and was stopped"] if item.is_untuned_above else []),
        *(["no schedule is faster than the unscheduled program, which is kept"] if kept else []),
        *([f"the check of its output is weak: {item.weakness.text}"] if item.weakness else []),
    ]


def _seconds(progress: ProgressReport) -> str:
    is_limited = progress.search_sec is not None and progress.elapsed_sec < progress.search_sec
    limit = f" of {progress.search_sec:.0f}" if is_limited else ""
    return f"{progress.elapsed_sec:.0f}{limit} s"


def _repeats(repeats: RepeatCount) -> str:
    if not repeats.count:
        return ""
    return f"{repeats.count} repeated ({repeats.device_sec:.1f} of at most {repeats.budget_sec:.1f} s)"


def _repeats_line(repeats: RepeatCount) -> str:
    many = "measurements were" if repeats.count > 1 else "measurement was"
    cost = f"{repeats.device_sec:.1f} s, with a limit of {repeats.budget_sec:.1f} s"
    more = "; other disturbed ones were kept, with a note" if repeats.is_spent else ""
    return f"{repeats.count} {many} repeated because the device was disturbed ({cost}){more}"


def _model_table(model: ModelReport) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("whole model", "latency", "against untuned", "tuned takes"):
        table.add_column(name, justify="right" if name in ("latency", "against untuned") else "left")
    engine_ms = model.reference_ms or model.onnxruntime_ms
    rows = (
        ("untuned", model.untuned_ms, SAME_PROGRAM if model.is_static and model.is_untuned_static else ""),
        *([("static", model.static_ms, _static_note(model))] if model.static_ms is not None else []),
        ("tuned", model.tuned_ms, ""),
        (_engine(model), engine_ms, _ratio(model, model.against_engine) if engine_ms else ""),
    )
    for name, latency_ms, note in rows:
        if name == "untuned" and latency_ms is None and model.untuned_above_ms:
            table.add_row(name, f"more than {time_text(model.untuned_above_ms / 1e3)}", "1.0x", note)
            continue
        table.add_row(
            name, time_text(latency_ms / 1e3 if latency_ms else None), _against_untuned(model, latency_ms), note
        )
    return table


def _against_untuned(model: ModelReport, latency_ms: float | None) -> str:
    if not latency_ms:
        return "-"
    if model.untuned_ms:
        return f"{model.untuned_ms / latency_ms:.1f}x"
    return f"more than {model.untuned_above_ms / latency_ms:.0f}x" if model.untuned_above_ms else "-"


SAME_PROGRAM = "the same program"


def _static_note(model: ModelReport) -> str:
    return SAME_PROGRAM if model.is_static else _ratio(model, model.against_static)


def _ratio(model: ModelReport, found: RatioReport | None) -> str:
    """Return the confidence interval of the ratio of the tuned model's time to another's, as text."""
    if found is None:
        return "too few turns to tell" if model.rounds else ""
    return f"{found.low:.2f} to {found.high:.2f} of it"


def _engine(model: ModelReport) -> str:
    """Return the reference engine with its time, for the line below ours; ONNX Runtime is missing if it is not
    installed.
    """
    return engine_name("onnxruntime" if model.reference in ("", "untuned") else model.reference)


def _check_line(model: ModelReport) -> Text:
    if model.unchecked:
        return Text(f"not checked: {model.unchecked}", style="bold yellow")
    if not model.is_right:
        return Text(f"WRONG: {model.message}", style="bold red")
    if model.weakness is not None:
        return Text(f"not checked: {model.weakness.text}", style="bold yellow")
    found = f"output agrees with {engine_name(model.reference)}: largest difference {model.max_abs_error:.2g}"
    if model.roundings and model.tolerance is not None:
        found += f", {model.tolerance:.2g} allowed: numbers are rounded to 8-bit codes {model.roundings} times"
    return Text(found, style="green")


def _static_line(model: ModelReport) -> str:
    """Explain why a tuned model has static schedules."""
    alone = f" ({time_text(model.alone_ms / 1e3)})" if model.alone_ms is not None else ""
    return f"the schedules that are fastest alone make the model slower{alone}, so it keeps its static schedules"


def _in_place_line(model: ModelReport) -> str:
    """Print the effect of comparing the best schedules in the model."""
    count = len(model.in_place)
    changed = sum(not item.options[0].is_chosen for item in model.in_place)
    slower = sum(item.is_slower_in_place for item in model.in_place)
    found = (
        f"{changed} {'use' if changed > 1 else 'uses'} another schedule than the fastest alone"
        if changed
        else "the fastest alone is the fastest there as well"
    )
    cold = f"; {slower} {'are' if slower > 1 else 'is'} clearly slower there than alone" if slower else ""
    many = f"{count} workloads" if count > 1 else "1 workload"
    return f"timed the best schedules of {many} inside the model: {found}{cold}"


def _sec(time_us: float | None) -> float | None:
    return None if time_us is None else time_us / 1e6
