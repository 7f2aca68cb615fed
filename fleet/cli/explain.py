"""`fleet explain MODEL --target T`: the lowering of a model before it is tuned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from cross.targets.target import Target
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.explain_view import estimated_sec, render_explanation
from fleet.cli.shapes import parse_one_shape
from fleet.cli.stored import existing_library
from fleet.cli.tables import WideOption, make_console
from fleet.errors import ImportFailed, LibraryError
from fleet.export.targets import target_of
from fleet.models.importing.complaint import complaint
from fleet.models.importing.shapes import Shapes

if TYPE_CHECKING:
    from tvm.ir import IRModule

    from fleet.domain.roofline import MemoryRate, Roofline
    from fleet.graph.explaining import Explanation, Scheduled
    from fleet.optimizer.prioritizer.values import StaticQuality

_COPIED_BYTES = (256 * 1024, 4 * 1024**2, 128 * 1024**2)
"""Working sets in the caches of a core, in the last cache, and in memory."""

_ROUNDS = 5
_MOST = 1e9
"""Upper limit of GFLOP/s and GB/s: more than any machine does, and finite, as JSON requires."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def explain(
    model: options.ModelArgument,
    target: options.TargetOption = "host",
    peak_gflops: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=_MOST,
            callback=options.finite,
            metavar="GFLOP/S",
            help="Peak of float32 arithmetic. Default: from the target.",
        ),
    ] = None,
    bandwidth_gbs: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=_MOST,
            callback=options.finite,
            metavar="GB/S",
            help="Bandwidth of the memory. Default: measured here, else assumed.",
        ),
    ] = None,
    shape: options.ShapeOption = None,
    batch_size: options.BatchSizeOption = None,
    library: options.LibraryOption = None,
    wide: WideOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Show how a model is lowered before tuning, with an estimate of its latency.

    Lists the passes between import and tuning with the graph after each: operators, layouts, transposes, bytes moved.
    Lists the fused programs that are tuned, with their operations, bytes and estimated time. Also lists programs that
    no schedule fits, and the number of concats that copy nothing. No device is needed. A library with records of the
    same kinds of operators tells for which of them a search is worthwhile.

    Example: fleet explain model.onnx --target rpi4-64
    """
    parsed = target_of(target)
    shapes = parse_one_shape(shape or ())
    known = _known_qualities(library, parsed)
    with working(f"lowering {model.name}"):
        found = _lowered(model, parsed, shapes, batch_size)
        roofline = _roofline(target, parsed, peak_gflops, bandwidth_gbs)
        kinds = dict.fromkeys(program.kind for program in found.programs)
        qualities = [known[kind] for kind in kinds if kind in known]
    if json_output:
        options.print_json(explanation_data(found, roofline, parsed, qualities))
    else:
        console = make_console(is_wide=wide)
        title = f"{model.stem} for {target}"
        console.print(render_explanation(found, roofline, qualities, title=title, width=console.width))


def explanation_data(
    found: Explanation, roofline: Roofline, target: Target, qualities: Sequence[StaticQuality] = ()
) -> dict[str, object]:
    """Return an explanation as JSON data; times in seconds, null where no limit is known."""
    return {
        "target": dict(target.options),
        "roofline": _roofline_data(roofline),
        "passes": [asdict(stage) for stage in found.stages],
        "programs": [
            asdict(program) | {"estimated_sec": estimated_sec(program, roofline)} for program in found.programs
        ],
        "static_quality": [asdict(quality) for quality in qualities],
        "loop_nests": list(found.scheduled.loop_nests),
        "concats": {
            "in_place": found.scheduled.concats_in_place,
            "copied": Counter(found.scheduled.concats_copied),
        },
    }


def _known_qualities(library: str | None, target: Target) -> Mapping[str, StaticQuality]:
    """Return the quality of static schedules by kind of operator; none if the account's own library cannot be read.

    Raises:
        ConfigError, LibraryError: a library was named that cannot be read.
    """
    from fleet.optimizer.static_quality import static_qualities

    try:
        with existing_library(library) as opened:
            return static_qualities(opened, target.json)
    except LibraryError as error:
        if library is not None:
            raise
        options.stderr().print(f"without the records of the library: {error}", style="yellow", soft_wrap=True)
        return {}


def _roofline_data(roofline: Roofline) -> dict[str, object]:
    from fleet.spaces.limits import ALL_SIZES

    memory = [
        {"size_bytes": None if rate.size_bytes == ALL_SIZES else rate.size_bytes, "bytes_per_sec": rate.bytes_per_sec}
        for rate in roofline.memory
    ]
    return {**asdict(roofline), "memory": memory}


def _lowered(model: Path, target: Target, shapes: Shapes, batch_size: int | None) -> Explanation:
    from fleet.cli.one_worker import one_worker
    from fleet.models.confined import reading

    with one_worker(target) as worker:
        return worker.run(reading(explain_file, model), model, target, shapes, batch_size)


def explain_file(model: Path, target: Target, shapes: Shapes, batch_size: int | None) -> Explanation:
    """Read a model and describe its lowering. Runs in a confined worker.

    Raises:
        ImportFailed: TVM cannot import or lower it.
    """
    from fleet.graph.explaining import explain as explain_module
    from fleet.models.model import import_model, load_model
    from fleet.workloads.default_schedule import needs_schedule

    loaded = load_model(model, shapes=shapes, batch_size=batch_size)
    mod = import_model(loaded, unrolls=needs_schedule(target))
    try:
        return explain_module(mod, target, lambda lowered: _scheduled(lowered, target))
    except Exception as error:  # TVM's passes raise many classes
        raise ImportFailed(f"{model.name}: TVM cannot lower the model: {complaint(error)}") from error


def _scheduled(lowered: IRModule, target: Target) -> Scheduled:
    from fleet.graph.concats import CopyReason, is_fused_concat
    from fleet.graph.explaining import Scheduled
    from fleet.graph.marking import calls_of
    from fleet.workloads.applying import apply_schedules
    from fleet.workloads.concats import join_concats
    from fleet.workloads.slices import program_of

    applied = apply_schedules(lowered, target, {})
    joined = join_concats(applied.mod, target)
    fused = [call for callee, calls in calls_of(lowered).items() if is_fused_concat(lowered[callee]) for call in calls]
    called = {program_of(variable.name_hint) for variable in joined.mod.functions}
    return Scheduled(
        loop_nests=applied.loop_nests,
        concats_in_place=joined.in_place,
        concats_copied=(*joined.copied, *[CopyReason.FUSED] * len(fused)),
        left_out=frozenset(variable.name_hint for variable in lowered.functions if variable.name_hint not in called),
    )


def _roofline(name: str, target: Target, peak_gflops: float | None, bandwidth_gbs: float | None) -> Roofline:
    from fleet.spaces.limits import expected_roofline

    is_here = name.strip() == "host"
    return expected_roofline(
        target,
        peak_gflops=peak_gflops,
        clock_ghz=_clock_ghz() if is_here else None,
        bandwidth_gbs=bandwidth_gbs,
        measured=_copying_rates() if is_here and bandwidth_gbs is None else (),
    )


def _clock_ghz() -> float | None:
    """Return the clock that this machine reports, the highest one if known; None if it reports none."""
    found = psutil.cpu_freq()
    return (found.max or found.current) / 1e3 if found else None


def _copying_rates() -> tuple[MemoryRate, ...]:
    """Return the rates at which one core copies working sets of several sizes, counting reads and writes."""
    import numpy as np

    from fleet.domain.roofline import MemoryRate

    rates = []
    for size in _COPIED_BYTES:
        source = np.ones(size // 2, np.uint8)
        copy = np.empty_like(source)
        count = max(1, _COPIED_BYTES[1] // size)
        times = []
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            for _ in range(count):
                np.copyto(copy, source)
            times.append((time.perf_counter() - begin) / count)
        rates.append(MemoryRate(size_bytes=size, bytes_per_sec=2 * source.size / min(times)))
    return tuple(rates)
