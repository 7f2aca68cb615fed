"""`fleet serve-check MODEL.fleet --on SELECTOR`: runs an exported model on a device and compares its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fleet.base.quantities import time_text
from fleet.cli import options, stepping
from fleet.cli.activity import working
from fleet.cli.answers_view import answers_line
from fleet.cli.tables import facts_table, make_console
from fleet.dashboard.formatting import engine_name
from fleet.domain.measuring import MOST_RUNS, Evaluator, disturbances_in, spread
from fleet.errors import ErrorKind, MeasurementError
from fleet.export.serving import ServedShapes, ServeReport
from fleet.export.serving import serve_check as run_check
from fleet.runtime.package import open_package, read_manifest


def serve_check(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.fleet", help="What fleet export made.")],
    on: stepping.OnOption = None,
    prefer: options.PreferOption = "",
    repeat: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Repeats to time.")] = 5,
    min_repeat_ms: Annotated[int, typer.Option(min=0, help="Let each repeat last this many milliseconds.")] = 100,
    timeout: stepping.TimeoutOption = 60.0,
    wait_timeout: stepping.WaitOption = None,
    tracker: stepping.FleetOption = None,
    private: options.PrivateOption = False,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: options.JsonOption = False,
) -> None:
    """Run an exported model on a device and compare its answers with those stored in it.

    Checks the file's hashes, uploads its library, then runs and times the stored inputs of each set of shapes. Exit
    code 1 if an answer is wrong. Without a running tracker, it starts a tracker and an agent for this machine and stops
    them at the end.

    Example: fleet serve-check model.fleet --on name=pi4-03
    """
    read_manifest(open_package(model))
    holding = stepping.leased_device(
        on,
        tracker=options.running_fleet(ctx, tracker, private),
        connect_timeout_sec=connect_timeout,
        wait_timeout_sec=wait_timeout,
        purpose=f"check {model.name}",
        prefer=prefer,
    )
    evaluator = Evaluator(repeat=repeat, min_repeat_ms=min_repeat_ms)

    async def work() -> tuple[str, ServeReport]:
        async with holding as device:
            return stepping.describe(device), await run_check(model, device, evaluator=evaluator, timeout_sec=timeout)

    with working(f"checking {model.name}"):
        where, report = options.run(work())
    if json_output:
        options.print_json(result(model, where, report))
    else:
        make_console(is_wide=False).print(table(model, where, report))
    if not report.agreement.is_right:
        raise MeasurementError(
            f"{model.name} answers wrongly on {where}: {report.agreement.problem}", ErrorKind.WRONG_OUTPUT
        )


def result(model: Path, where: str, report: ServeReport) -> dict[str, object]:
    """Return the check, JSON-ready: summarised over all shapes with the times of the first, and for each."""
    shapes = [_shapes_result(each) for each in report.shapes]
    agreement = report.agreement
    return {
        **shapes[0],
        "file": str(model),
        "device": where,
        "is_right": agreement.is_right,
        "problem": agreement.problem,
        "max_abs_error": agreement.max_abs_error,
        "reference": report.manifest.check.reference,
        "weakness": report.manifest.check.weakness,
        "shapes": shapes,
    }


def _shapes_result(served: ServedShapes) -> dict[str, object]:
    measurement = served.measurement
    return {
        "inputs": {spec.name: list(spec.shape) for spec in served.inputs},
        "is_right": served.agreement.is_right,
        "problem": served.agreement.problem,
        "max_abs_error": served.agreement.max_abs_error,
        "median_sec": measurement.median_sec,
        "run_secs": list(measurement.run_secs),
        "spread": spread(measurement.run_secs),
        "disturbances": [found.text for found in disturbances_in(measurement.provenance)],
    }


def table(model: Path, where: str, report: ServeReport) -> Table:
    """Return the check as a table for people."""
    check, agreement = report.manifest.check, report.agreement
    rows = [
        ("device", where),
        ("answers", answers_line(engine_name(check.reference), agreement)),
        ("proves little", check.weakness),
        *(row for served in report.shapes for row in _times(served, names_shapes=len(report.shapes) > 1)),
    ]
    return facts_table(rows, title=f"{report.manifest.title} ({model.name})")


def _times(served: ServedShapes, *, names_shapes: bool) -> list[tuple[str, str]]:
    measurement = served.measurement
    return [
        ("for", ", ".join(f"{spec.name}: {spec}" for spec in served.inputs) if names_shapes else ""),
        ("median", f"{time_text(measurement.median_sec)} of {len(measurement.run_secs)} repeats"),
        ("spread", f"{spread(measurement.run_secs):.1%}"),
        ("disturbed by", "; ".join(found.text for found in disturbances_in(measurement.provenance))),
    ]
