"""`fleet tune`: tunes the operators of a model file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import typer

from fleet.base.machine import process_age_sec
from fleet.cli.json_out import print_document
from fleet.cli.options import run_until_signal, stderr
from fleet.cli.tables import make_console
from fleet.cli.terminal import CleanConsole
from fleet.cli.tune_display import display
from fleet.cli.tune_options import Asked, with_tune_options
from fleet.cli.tune_view import next_lines, print_reports, stopped_line
from fleet.cli.watching import submit_and_watch
from fleet.dashboard.formatting import engine_name
from fleet.errors import FleetError, InvalidRequest
from fleet.jobs.fleets import fleet_behind, serving
from fleet.jobs.options import TuneOptions
from fleet.jobs.report import TuneReport
from fleet.jobs.spec import is_data
from fleet.library import Library, OptimizerRecord
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.tune import tune as run_tune


def _tune(options: TuneOptions, asked: Asked) -> None:
    """Tune the operators of a model on a device.

    Finds the model's operators, proposes schedules, builds them, measures them on a leased device, checks their
    numbers, and keeps every result in the library. Stop it at any time; the next run goes on from there.

    Where an optimizer runs for the same tracker and library, it does the work, and this command watches.

    Example: fleet tune model.onnx --top 5 --trials 128
    """
    if _has_optimizer(options):
        if asked.here_only:
            stderr().print(
                f"an optimizer runs this job: {', '.join(asked.here_only)} of this command counts for nothing",
                style="yellow",
            )
        reports = submit_and_watch(options)
    else:
        reports = [_run(options)]
    if asked.as_json:
        one_or_all = reports[0].to_json() if len(reports) == 1 else {"reports": [each.to_json() for each in reports]}
        print_document(one_or_all, indent=None)
    else:
        print_reports(reports, make_console(is_wide=asked.is_wide))
        for line in next_lines(options, reports[0]):
            stderr().print(line)
    for report in reports:
        check_model(report)


tune = with_tune_options(_tune)


def check_model(report: TuneReport) -> None:
    """Raise FleetError if the tuned model computes wrong results."""
    if report.model is not None and not report.model.is_right:
        if not report.model.reference:
            raise FleetError(report.model.message)
        reference = engine_name(report.model.reference)
        raise FleetError(f"the tuned model computes something else than {reference}: {report.model.message}")


def _has_optimizer(options: TuneOptions) -> bool:
    """Tell whether an optimizer runs the jobs of this library on this fleet.

    Raises:
        InvalidRequest: nobody does, and the job is for several boards.
    """
    if options.tracker is not None and is_data(options.model):
        with Library.open(options.library) as library:
            optimizers = library.queue.optimizers()
        if optimizers and asyncio.run(_serving(optimizers, options.tracker)):
            return True
    if options.also_on or options.devices > 1:
        raise InvalidRequest(
            "several boards at once need an optimizer: fleet optimizer serve --tracker ..., then the same "
            "with --tracker"
        )
    return False


async def _serving(optimizers: Sequence[OptimizerRecord], tracker: str) -> list[OptimizerRecord]:
    return await serving(optimizers, tracker, await fleet_behind(tracker))


def _run(options: TuneOptions) -> TuneReport:
    started_at = time.monotonic() - process_age_sec()
    console = CleanConsole(stderr=True, markup=False, highlight=False)
    progress = JobProgress()
    try:
        with display(console, progress, started_at):
            return run_until_signal(run_tune(options, progress, started_at=started_at))
    except (KeyboardInterrupt, typer.Exit):
        console.print(stopped_line(progress))
        raise
