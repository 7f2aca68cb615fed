"""The shared options of `fleet tune` and `fleet jobs submit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fleet.building.cluster.address import ClusterAddress
from fleet.cli import completion_values
from fleet.cli.options import (
    DEFAULT_CACHE_GB,
    BatchSizeOption,
    BuildCacheGbOption,
    BuildCacheOption,
    ConnectTimeoutOption,
    DaskCertsOption,
    DaskOption,
    JsonOption,
    LibraryOption,
    PrivateOption,
    ShapeOption,
    WorkersOption,
    running_fleet,
    seconds,
    selector_or_default,
    tag_word,
)
from fleet.cli.options import build_cache as cache_of
from fleet.cli.record_filters import age
from fleet.cli.shapes import parse_shapes
from fleet.cli.tables import WideOption
from fleet.domain.jobs import DEFAULT_STRATEGY, parse_priority
from fleet.errors import InvalidRequest
from fleet.export.targets import target_of
from fleet.fragments.workload_reading import read_workloads
from fleet.jobs.options import UNTIL_GAIN, TuneOptions, trial_evaluator
from fleet.models.importers import importer_of
from fleet.models.importing.workloads_file import WORKLOADS
from fleet.models.model import check_exists
from fleet.optimizer.submit import check_options

_HERE_ONLY = ("snapshots", "workers", "dask", "build_cache")
"""Options about where this process searches and builds: a job that an optimizer runs does not take them along."""

OF_A_RUN_HERE = frozenset({*_HERE_ONLY, "dask_certs", "build_cache_gb", "private", "wide"})
"""Parameters without meaning for a submitted job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of a user in addition to the job's."""

    as_json: bool
    is_wide: bool
    here_only: tuple[str, ...]
    """Flags of the command line, not variables of the environment, that only count for a job that this process runs."""


Act = Callable[[TuneOptions, Asked], None]


def with_tune_options(act: Act) -> Callable[..., None]:
    """Return a command that calls `act` with the user's options; its help is the docstring of `act`."""

    def run(
        ctx: typer.Context,
        model: Annotated[
            str,
            typer.Argument(
                help="The model: *.onnx, *.pt2, *.keras, *.tflite or hf:FOLDER. Or one program: module.json (TIR), "
                "MODULE:NAME or file.py:NAME (TIR in Python), matmul-SIZE[-DTYPE]. Or *.yaml of 'fleet workloads'."
            ),
        ],
        on: Annotated[
            list[str] | None,
            typer.Option(
                metavar="SELECTOR",
                autocompletion=completion_values.selectors,
                help="Which device: 'cpu', 'kind=cpu,arch=aarch64', 'name=pi4-03'. Default: that of "
                "'fleet config show', else cpu. May be repeated where an optimizer runs, once for each kind of board.",
            ),
        ] = None,
        devices: Annotated[
            int,
            typer.Option(
                min=1, metavar="N", help="Boards of a kind that measure at the same time, where an optimizer runs."
            ),
        ] = 1,
        trials: Annotated[
            int | None, typer.Option(min=0, help="Candidates to measure in this run. Default: 32 per chosen workload.")
        ] = None,
        minutes: Annotated[
            float | None,
            typer.Option(
                metavar="M",
                help="Search for so long, with as many trials as fit; the comparison of the whole model follows.",
            ),
        ] = None,
        tasks: Annotated[
            list[str] | None,
            typer.Option(
                metavar="PATTERN", help="Only workloads whose name matches, like 'conv2d 3x3*'; may be repeated."
            ),
        ] = None,
        top: Annotated[int | None, typer.Option(min=1, help="Only the K costliest workloads.", metavar="K")] = None,
        tracker: Annotated[
            str | None,
            typer.Option(
                metavar="HOST:PORT",
                help="Tracker of a running fleet. Default: see 'fleet config show'; if none runs, 'fleet tune' starts "
                "one for its run.",
            ),
        ] = None,
        private: PrivateOption = False,
        library: LibraryOption = None,
        snapshots: Annotated[
            str | None,
            typer.Option(
                metavar="HOST:PORT",
                help="An optimizer that serves the shared cost model ('fleet optimizer serve --port'), for clients "
                "that cannot reach its library. Default: the library's own.",
            ),
        ] = None,
        strategy: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help="How candidates are found: evolutionary, random, replay (of the library's schedules), "
                "AutoTVM's xgb, ga, random, gridsearch, or one of an installed package.",
            ),
        ] = DEFAULT_STRATEGY,
        seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same proposals.")] = 0,
        shape: ShapeOption = None,
        batch_size: BatchSizeOption = None,
        random_weights: Annotated[
            bool, typer.Option("--random-weights", help="Replace constant weights, so that wrong kernels show.")
        ] = False,
        target: Annotated[
            str | None,
            typer.Option(
                metavar="TARGET",
                autocompletion=completion_values.boards,
                help="A board ('fleet targets') or TVM target as JSON, instead of the device's own.",
            ),
        ] = None,
        batch: Annotated[int, typer.Option(min=1, help="Candidates per round.")] = 8,
        enough: Annotated[int, typer.Option(min=1, help="Leave a workload alone after this many trials, ever.")] = 512,
        max_age: Annotated[
            float | None,
            typer.Option(
                parser=age,
                metavar="TIME",
                help="Of older records only the schedules count, to be tried first: 12h, 90d.",
            ),
        ] = None,
        wait_timeout: Annotated[
            float | None,
            typer.Option(
                parser=seconds,
                metavar="SEC",
                help="Give up if no device becomes free for this long. Default: wait for ever.",
            ),
        ] = None,
        connect_timeout: ConnectTimeoutOption = 10.0,
        priority: Annotated[
            str, typer.Option(metavar="CLASS", help="urgent, normal, background, or a number: larger goes first.")
        ] = "normal",
        tag: Annotated[
            list[str] | None,
            typer.Option("--tag", metavar="WORD", parser=tag_word, help="A word to find the job by; may be repeated."),
        ] = None,
        deadline: Annotated[
            datetime | None,
            typer.Option(
                parser=moment,
                metavar="TIME",
                help="Stop searching at this local time: 2026-12-31, '2026-12-31 18:00', or with a zone: "
                "2026-12-31T18:00:00Z.",
            ),
        ] = None,
        target_ms: Annotated[
            float | None,
            typer.Option(
                metavar="MS", help="Stop once the tuned workloads, as the model calls them, take this together."
            ),
        ] = None,
        until_gain: Annotated[
            float,
            typer.Option(
                metavar="PERCENT",
                help="Stop once the next tenth of the trials or minutes should gain less of the model's latency.",
            ),
        ] = 100 * UNTIL_GAIN,
        exhaust: Annotated[
            bool, typer.Option("--exhaust", help="Use all trials or minutes, however little they should gain.")
        ] = False,
        workers: WorkersOption = None,
        dask: DaskOption = None,
        dask_certs: DaskCertsOption = None,
        build_cache: BuildCacheOption = None,
        build_cache_gb: BuildCacheGbOption = DEFAULT_CACHE_GB,
        cooldown_ms: Annotated[
            int,
            typer.Option(min=0, metavar="MS", help="Rest between the repeats of a candidate; it multiplies the time."),
        ] = 0,
        cool_below_c: Annotated[
            float | None,
            typer.Option(
                metavar="C",
                help="Wait before each candidate until the device is at most this warm, half a minute at most.",
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
        selectors = tuple(on or [selector_or_default(None)])
        found = _model_path(model, is_changed=bool(shape or batch_size or random_weights))
        options = TuneOptions(
            model=found,
            program="" if found == Path(model) else model,
            selector=selectors[0],
            also_on=selectors[1:],
            devices=devices,
            tracker=running_fleet(ctx, tracker, private),
            library=library,
            snapshots=snapshots,
            trials=trials,
            minutes=minutes,
            tasks=tuple(tasks or ()),
            top=top,
            strategy=strategy,
            seed=seed,
            shapes=parse_shapes(shape or ()),
            input_batch_size=batch_size,
            random_weights=random_weights,
            target_json=target_of(target).json if target else None,
            batch_size=batch,
            enough=enough,
            max_age_sec=max_age,
            wait_timeout_sec=wait_timeout,
            connect_timeout_sec=connect_timeout,
            priority=parse_priority(priority),
            tags=tuple(sorted(set(tag or ()))),
            deadline=deadline,
            target_ms=target_ms,
            until_gain=0.0 if exhaust else until_gain / 100,
            workers=workers,
            build_cache=cache_of(build_cache, build_cache_gb),
            cluster=ClusterAddress(address=dask, certs=dask_certs) if dask else None,
            evaluator=trial_evaluator(cooldown_ms=cooldown_ms, cool_below_c=cool_below_c, flush_cache=flush_cache),
            compares_model=compare_model,
        )
        check_options(options, datetime.now(UTC))
        check_exists(options.model, takes_programs=True)
        typed = [name for name in _HERE_ONLY if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
        flags = tuple(f"--{name.replace('_', '-')}" for name in typed)
        act(options, Asked(as_json=json_output, is_wide=wide, here_only=flags))

    run.__name__ = act.__name__.strip("_")
    run.__doc__ = act.__doc__
    return run


def moment(text: str | datetime) -> datetime:
    """Parse an ISO 8601 time, in this machine's zone if it has none. The usage error lists the accepted forms.

    Raises:
        InvalidRequest: the time is too close to year 1 or 9999 to be converted to this zone.
    """
    if isinstance(text, datetime):
        return text
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-12-31, '2026-12-31 18:00' or 2026-12-31T18:00:00Z"
        ) from None
    try:
        return read.astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"a deadline in the year {read.year} cannot be kept: {error}") from error


def _model_path(source: str, *, is_changed: bool) -> Path:
    """Return the path of a model, a program or a file of workloads.

    Args:
        is_changed: shapes or weights are asked for, other than its own.

    Raises:
        ConfigError, InvalidRequest: a program or workloads that cannot be found or read, or have no shapes to be
            chosen.
    """
    from fleet.workloads.sources import is_program, program_file

    has_workloads = importer_of(source) is WORKLOADS
    if not (has_workloads or is_program(source)):
        return Path(source)
    if is_changed:
        raise InvalidRequest(f"{source} is no model: its shapes are in it, and it has no weights")
    if has_workloads:
        read_workloads(Path(source))  # a mistake is reported before anything starts
        return Path(source)
    return program_file(source)
