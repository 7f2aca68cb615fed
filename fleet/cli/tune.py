"""`fleet tune`: a model file in, faster operators out."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from fleet.cli.options import (
    BatchSizeOption,
    ConnectTimeoutOption,
    JsonOption,
    ShapeOption,
    tracker_address,
    wants_json,
)
from fleet.cli.tables import WideOption, make_console
from fleet.cli.tune_view import records_line, render_progress, render_report, stopped_line
from fleet.errors import ConfigError, FleetError
from fleet.export.targets import target_of
from fleet.models.importing.shapes import Shapes
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.job import TuneOptions, TuneReport, trial_evaluator
from fleet.optimizer.service import tune as run_tune

_REFRESH_PER_SEC = 2
"""Slow on purpose: on one machine the display shares its cores with the measurements."""


def tune(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(help="The model: *.onnx, *.pt2, *.keras, *.tflite or hf:FOLDER.")],
    on: Annotated[
        str, typer.Option(metavar="SELECTOR", help="Which device: 'cpu', 'kind=cpu,arch=aarch64', 'name=pi4-03'.")
    ] = "cpu",
    trials: Annotated[
        int | None, typer.Option(min=0, help="Candidates to measure in this run. Default: 32 per chosen workload.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only workloads whose name matches, like 'conv2d 3x3*'; may be repeated."),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only the K costliest workloads.", metavar="K")] = None,
    tracker: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A running fleet. Default: start one on this machine for this run."),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="FLEET_LIBRARY",
            help="Where records go: a SQLite file, or postgresql://host/database. Default: yours, in the data "
            "directory.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same proposals.")] = 0,
    shape: ShapeOption = None,
    batch_size: BatchSizeOption = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Replace constant weights, so that wrong kernels show.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="A board ('fleet targets') or TVM target as JSON, instead of the device's own."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Candidates per round.")] = 8,
    enough: Annotated[int, typer.Option(min=1, help="Leave a workload alone after this many trials, ever.")] = 512,
    wait_timeout: Annotated[
        float | None,
        typer.Option(metavar="SEC", help="Give up if no device becomes free for this long. Default: wait forever."),
    ] = None,
    connect_timeout: ConnectTimeoutOption = 10.0,
    priority: Annotated[int, typer.Option(help="Larger goes first in the queue for a device.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Build processes. Default: one per core.")] = None,
    cooldown_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="Rest between the repeats of a candidate; it multiplies the time.")
    ] = 0,
    cool_below_c: Annotated[
        float | None,
        typer.Option(
            metavar="C", help="Wait before each candidate until the device is at most this warm, half a minute at most."
        ),
    ] = None,
    flush_cache: Annotated[
        bool,
        typer.Option(
            "--flush-cache", help="Empty the caches before each run: times of a first run, not of a warm one."
        ),
    ] = False,
    compare_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Build, time and check the whole model at the end.")
    ] = True,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """Tune the operators of a model on a device.

    Finds the model's operators, proposes schedules, builds them, measures them on a leased device, checks their
    numbers, and keeps every result in the library. Stop it at any time; the next run goes on from there.

    Example: fleet tune model.onnx --top 5 --trials 128
    """
    options = TuneOptions(
        model=model,
        selector=on,
        tracker=tracker_address(ctx, tracker),
        library=library,
        trials=trials,
        tasks=tuple(tasks or ()),
        top=top,
        seed=seed,
        shapes=parse_shapes(shape or ()),
        input_batch_size=batch_size,
        random_weights=random_weights,
        target_json=target_of(target) if target else None,
        batch_size=batch,
        enough=enough,
        wait_timeout_sec=wait_timeout,
        connect_timeout_sec=connect_timeout,
        priority=priority,
        workers=workers,
        evaluator=trial_evaluator(cooldown_ms=cooldown_ms, cool_below_c=cool_below_c, flush_cache=flush_cache),
        compares_model=compare_model,
    )
    report = _run(options)
    if wants_json(ctx, json_output):
        print(json.dumps(report.to_json()))
    else:
        console = make_console(is_wide=wide)
        console.print(render_report(report, width=console.width))
        console.print(records_line(report), soft_wrap=True, highlight=False)
    if report.model is not None and not report.model.is_right:
        if not report.model.reference:
            raise FleetError(report.model.message)
        raise FleetError(
            f"the tuned model computes something else than {report.model.reference}: {report.model.message}"
        )


def parse_shapes(texts: Sequence[str]) -> tuple[Shapes, ...]:
    """Read all --shape options: the n-th shapes of all inputs belong together; an input with one has it in all sets.

    Raises:
        ConfigError: one is something else, or inputs have different numbers of shapes.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in map(parse_shape, texts):
        found.setdefault(name, []).append(shape)
    counts = {name: len(shapes) for name, shapes in found.items() if len(shapes) > 1}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ConfigError(f"--shape: {told}; give each input as many shapes as there are sets of them, or one for all")
    sets = max(counts.values(), default=1)
    return tuple({name: shapes[index % len(shapes)] for name, shapes in found.items()} for index in range(sets))


def parse_one_shape(texts: Sequence[str]) -> Shapes:
    """Read all --shape options of a command that looks at one set of shapes.

    Raises:
        ConfigError: one is something else, or there are several sets.
    """
    shapes = parse_shapes(texts)
    if len(shapes) > 1:
        raise ConfigError(f"--shape gives {len(shapes)} sets of shapes; this command looks at one")
    return shapes[0]


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read "name=1,3,224,224".

    Raises:
        ConfigError: `text` is something else.
    """
    name, _, numbers = text.rpartition("=")
    try:
        shape = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 1:
        raise ConfigError(f"--shape {text!r}: write it like --shape data=1,3,224,224")
    return name, shape


def _run(options: TuneOptions) -> TuneReport:
    started_at = time.monotonic() - (time.time() - psutil.Process().create_time())
    console = Console(stderr=True)
    progress = JobProgress()
    try:
        with _display(console, progress, started_at):
            return asyncio.run(_until_stopped(options, progress, started_at))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(stopped_line(progress), highlight=False, markup=False)
        raise KeyboardInterrupt from None


async def _until_stopped(options: TuneOptions, progress: JobProgress, started_at: float) -> TuneReport:
    """Run the job; SIGTERM stops it as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_tune(options, progress, started_at=started_at)


def _display(console: Console, progress: JobProgress, started_at: float) -> Live:
    """Show the job live on a terminal; elsewhere print a line whenever it does something new."""
    spinner = Spinner("dots")

    def view() -> object:
        return render_progress(progress, spinner, elapsed_sec=time.monotonic() - started_at, width=console.width)

    progress.notice = lambda text: console.print(text, style="yellow", highlight=False, markup=False)
    if not console.is_terminal:
        progress.listener = _line_printer(console, progress, started_at)
    return Live(
        get_renderable=view if console.is_terminal else lambda: "",  # type: ignore[arg-type]
        console=console,
        refresh_per_second=_REFRESH_PER_SEC,
        auto_refresh=console.is_terminal,
        transient=True,
    )


def _line_printer(console: Console, progress: JobProgress, started_at: float) -> Callable[[], None]:
    last = ""

    def on_change() -> None:
        nonlocal last
        if progress.activity == last:
            return
        last = progress.activity
        done = f" ({progress.trials_done}/{progress.trials_total} trials)" if progress.trials_total else ""
        console.print(f"{time.monotonic() - started_at:6.1f} s  {last}{done}", highlight=False, markup=False)

    return on_change
