"""`fleet build`: builds one workload as a shared library for a board, with the best schedule on record."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cross.compile.gpu_code import check_tools
from cross.compile.toolchains import find_linker
from cross.targets.target import Target
from fleet.artifacts.artifact import Artifact
from fleet.base.config import did_you_mean
from fleet.base.outputs import check_output, put_file
from fleet.base.quantities import count_text
from fleet.base.scratch import scratch_dir
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.explain_view import loop_nests_line
from fleet.cli.one_worker import one_worker
from fleet.cli.record_filters import MaxAgeOption, WhereOption, older_line, record_filter
from fleet.cli.shapes import parse_shapes
from fleet.domain.scope import ANY_SCOPE, ScopeFilter
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import BuildError, ConfigError
from fleet.export.targets import target_of
from fleet.models.importing.program_file import PROGRAM_SUFFIX
from fleet.models.importing.shapes import Shapes

if TYPE_CHECKING:
    from fleet.domain.workload import Workload

_ENDING = re.compile(r"\.(json|keras|onnx|pt2|tflite)(?=:|$)")
_SHOWN_OPERATORS = 12

Narrate = Callable[[str], None]
Schedule = Literal["library", "pack", "default", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """Program, target and path of a build."""

    workload: str
    target: Target
    output: Path
    linker: str | None = None
    library: str | None = None
    within: ScopeFilter = ANY_SCOPE
    """Records to choose from, see `ScopeFilter.for_build`."""

    is_untuned: bool = False
    is_checked: bool = False
    """Leave out schedules with unchecked output."""

    shapes: Sequence[Shapes]
    input_batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltArtifact:
    """Result of a build."""

    artifact: Artifact
    workload: str
    schedule: Schedule
    """Source of the schedule: the library, a pack, TVM's default rules (on GPUs), or our choice without a trial."""

    unchecked: int = 0
    """Number of schedules with unchecked output."""


def build(
    workload: Annotated[
        str,
        typer.Argument(
            help="model.onnx:OPERATOR (a name or pattern), model.onnx for all of it, module.json (a TIR module), "
            "MODULE:NAME or file.py:NAME (TIR in Python), or matmul-SIZE[-DTYPE]."
        ),
    ],
    target: options.TargetOption = "host",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.so", help="Default: <workload>.so here.")
    ] = None,
    linker: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Link with this instead of the linker found.")
    ] = None,
    library: options.LibraryOption = None,
    device_model: options.DeviceModelOption = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    untuned: options.UntunedOption = False,
    checked: Annotated[
        bool,
        typer.Option(
            "--checked", help="Only use your own schedules, with output checked against the unscheduled program."
        ),
    ] = False,
    shape: options.ShapeOption = None,
    batch_size: options.BatchSizeOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Build one workload for a target, with the best schedule that the library has for it.

    A workload without a record gets its static schedule, and operators without a schedule are listed. FILE.so.json has
    the facts that fleet run and fleet time need: target, linker, TVM version and arguments, with packed weights if the
    schedule packs them. No device is needed.

    Example: fleet build matmul-256 --target rpi4-64 -o matmul.so && fleet time matmul.so --on name=pi4-03
    """
    order = BuildOrder(
        workload=workload,
        target=target_of(target),
        output=output or Path(f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', _ENDING.sub('', Path(workload).name))}.so"),
        linker=linker,
        library=library,
        within=record_filter(device_model=device_model, max_age=max_age, where=where),
        is_untuned=untuned,
        is_checked=checked,
        shapes=parse_shapes(shape or ()),
        input_batch_size=batch_size,
    )
    with working(f"building {workload}") as narrate:
        built = run_build(order, narrate)
    if json_output:
        options.print_json(built_data(built))
    else:
        _print_built(built)


def run_build(order: BuildOrder, narrate: Narrate = lambda _: None) -> BuiltArtifact:
    """Build a workload, and write it with its facts beside it to the path in the order.

    Args:
        narrate: called with the name of each step.

    Raises:
        ConfigError: no such workload, or no tools to build for the target.
        ImportFailed: no such model; nothing is started.
        BuildError: it does not compile or link, or cannot be written.
    """
    check_output(order.output)
    _check_model(order.workload)
    check_tools(order.target)
    find_linker(order.target, order.linker)
    with scratch_dir("build") as scratch:
        built = _built(order, scratch, narrate)
        artifact = replace(built.artifact, path=order.output.absolute())
        try:
            artifact.save_facts()
            put_file(built.artifact.path, artifact.path)
        except OSError as error:
            raise BuildError(f"cannot write {order.output}: {error.strerror}") from error
    return replace(built, artifact=artifact)


def _check_model(workload: str) -> None:
    from fleet.models.model import check_exists, is_model

    for path in (workload, workload.rpartition(":")[0]):
        if is_model(path):
            check_exists(Path(path))


def built_data(built: BuiltArtifact) -> dict[str, object]:
    """Return the result of a build as JSON data."""
    facts = {key: value for key, value in asdict(built.artifact).items() if key != "path"}
    facts["module_kind"] = built.artifact.module_kind.value
    size_bytes = built.artifact.path.stat().st_size
    return {
        "file": str(built.artifact.path),
        "workload": built.workload,
        "schedule": built.schedule,
        "unchecked_schedules": built.unchecked,
        "size_bytes": size_bytes,
        **facts,
    }


def _built(order: BuildOrder, out_dir: Path, narrate: Narrate) -> BuiltArtifact:
    from fleet.models.model import is_model

    if is_model(order.workload):
        return _built_model(order, out_dir, narrate)
    from cross.compile.library import build as build_module
    from cross.targets.intrinsics import load_intrinsics
    from fleet.workloads.workload import module_of

    narrate(f"reading {order.workload}")
    load_intrinsics(order.target)
    workload = _find_workload(order)
    best = None if order.is_untuned else _best_trace(order, workload, warns=True) or _best_of_packs(order, workload)
    trace = best.trace_json if best else None
    narrate(f"compiling {workload.operator}")
    from fleet.workloads.scheduled_operator import schedule_operator  # imports TVM

    scheduled = schedule_operator(module_of(workload.mod_json), order.target, trace)
    artifact = build_module(scheduled.mod, order.target, out_dir, args=scheduled.args, linker=order.linker)
    return BuiltArtifact(
        artifact=replace(artifact, loop_nests=scheduled.loop_nests),
        workload=workload.name,
        schedule=_source(order, [best] if best is not None else []),
        unchecked=int(best is not None and best.is_unchecked),
    )


def _built_model(order: BuildOrder, out_dir: Path, narrate: Narrate) -> BuiltArtifact:
    from fleet.models.confined import having, reading
    from fleet.models.model import load_model
    from fleet.workloads.extract import compile_model, extract

    if order.linker:
        raise ConfigError("--linker is for single operators; name one for all builds in $FLEET_LINKER_<ARCH>")
    path, target = Path(order.workload), order.target
    with scratch_dir("model") as folder, one_worker(target) as worker:
        narrate(f"reading {path.name}")
        loading = reading(load_model, path)
        model = worker.run(loading, path, shapes=order.shapes, batch_size=order.input_batch_size).stored_in(folder)
        narrate("finding the operators")
        found = {} if order.is_untuned else _traces(order, worker.run(having(extract, model), model, target))
        traces = {shash: best.trace_json for shash, best in found.items()}
        narrate(f"compiling {model.title} with {count_text(len(traces), 'schedule')} of the library and packs")
        compiling = having(compile_model, model, writable=out_dir)
        artifact = worker.run(compiling, model, target, traces, out_dir)
    return BuiltArtifact(
        artifact=artifact,
        workload=model.title,
        schedule=_source(order, found.values()),
        unchecked=sum(best.is_unchecked for best in found.values()),
    )


@dataclass(frozen=True, slots=True)
class _Best:
    """Best schedule that the library or a pack has for a workload."""

    trace_json: str
    is_unchecked: bool = False
    is_of_pack: bool = False


def _source(order: BuildOrder, found: Collection[_Best]) -> Schedule:
    from fleet.workloads.default_schedule import needs_schedule

    if found:
        return "pack" if all(best.is_of_pack for best in found) else "library"
    return "default" if needs_schedule(order.target) else "static"


def _find_workload(order: BuildOrder) -> Workload:
    from fleet.models.model import is_model

    path, colon, pattern = order.workload.rpartition(":")
    if colon and is_model(path):
        return _operator(Path(path), pattern, order)
    from fleet.workloads.sources import KNOWN, find_program, is_program

    if not is_program(order.workload):
        raise ConfigError(f"unknown workload {order.workload!r}; write model.onnx:OPERATOR, model.onnx, {KNOWN}")
    if not order.workload.endswith(PROGRAM_SUFFIX):
        return find_program(order.workload)
    from fleet.models.confined import reading

    with one_worker(order.target) as worker:
        return worker.run(reading(find_program, order.workload), order.workload)


def _operator(path: Path, pattern: str, order: BuildOrder) -> Workload:
    from fleet.cli.model_workloads import workloads_of_model

    workloads = workloads_of_model(path, order.target, shapes=order.shapes, batch_size=order.input_batch_size)
    found = {item.name: item for item in workloads}
    return found[choose_operator(list(found), pattern, path.name)]


def choose_operator(names: list[str], pattern: str, model: str) -> str:
    """Return the one name that matches a shell pattern.

    Raises:
        ConfigError: none matches, or several do.
    """
    fitting = fnmatch.filter(names, pattern)
    if not fitting:
        raise ConfigError(f"{model} has no operator {pattern!r}{did_you_mean(pattern, names)}")
    if len(fitting) > 1:
        shown = ", ".join(fitting[:_SHOWN_OPERATORS]) + (", ..." if len(fitting) > _SHOWN_OPERATORS else "")
        raise ConfigError(f"{pattern!r} is {len(fitting)} operators of {model}: {shown}; name one")
    return fitting[0]


def _traces(order: BuildOrder, workloads: Sequence[Workload]) -> dict[str, _Best]:
    """Return the schedules of a model by workload hash. Workloads without a checked schedule get an unchecked one."""
    from fleet.export.choice import choose
    from fleet.library import Library
    from fleet.packs.lookup import NO_PACKS, open_packs

    within = order.within.for_build(order.target.json, tvm_version())
    with Library.open_to_read(order.library) as library, open_packs() as packs:
        choice = choose(library, workloads, within, NO_PACKS if order.is_checked else packs)
    _warn(choice.unproven)
    _warn(choice.packs)
    _warn(older_line(choice.older))
    chosen = choice.traces
    of_packs = {record.shash for record in choice.records if record.pack}
    others = {item.shash: _best_trace(order, item) for item in workloads if item.shash not in chosen}
    found = {shash: _Best(trace, is_of_pack=shash in of_packs) for shash, trace in chosen.items()}
    return {**found, **{shash: best for shash, best in others.items() if best is not None}}


def _best_trace(order: BuildOrder, workload: Workload, *, warns: bool = False) -> _Best | None:
    """Return the fastest schedule for the target, or NO_TRACE if the unscheduled program is the fastest.

    Proven schedules come first, then checked ones. Times from different scopes are never compared: the oldest scope
    with a checked schedule is used.

    Args:
        warns: print the number of records that are too old.
    """
    from fleet.domain.keys import NO_TRACE
    from fleet.library import Library
    from fleet.library.proof_words import line_of
    from fleet.model_schedules import fastest

    within = order.within.for_build(order.target.json, tvm_version())
    with Library.open_to_read(order.library) as library:
        scopes = [within.of(scope) for scope in library.scopes([workload.shash], within)]
        if warns:
            _warn(older_line(library.count_older([workload.shash], within)))
        checked = next(filter(None, ([*fastest(library, [workload.shash], one).values()] for one in scopes)), [])
        unchecked = next(filter(None, (library.best(workload.shash, one) for one in scopes)), [])
        found = checked if order.is_checked else checked or unchecked
        if not found:
            return None
        best = found[0]
        baseline = library.baseline(workload.shash, within.of(best.scope))
        if baseline is not None and baseline.median_sec <= best.median_sec:
            return _Best(NO_TRACE)
    _warn(line_of([best]))
    return _Best(best.trace_json, is_unchecked=not checked)


def _best_of_packs(order: BuildOrder, workload: Workload) -> _Best | None:
    """Return the schedule that a pack has for a workload. With --checked there is none: others checked it."""
    from fleet.packs.lookup import open_packs, sources_line

    if order.is_checked:
        return None
    with open_packs() as packs:
        found = packs.best([workload.shash], order.within.for_build(order.target.json, tvm_version()))
    _warn(sources_line(found))
    return next((_Best(one.record.trace_json, is_of_pack=True) for one in found.values()), None)


def _warn(text: str) -> None:
    if text:
        options.stderr().print(text, style="yellow", highlight=False)


def _print_built(built: BuiltArtifact) -> None:
    words: dict[Schedule, str] = {
        "library": "the best schedules of the library",
        "pack": "the best schedules of packs, since the library has none for it",
        "default": "TVM's default schedules, since the library has none for it",
        "static": "static schedules, since the library has none for it: fleet tune finds better ones",
    }
    print(built.artifact.path)
    console = options.stderr()
    console.print(f"{built.workload} with {words[built.schedule]}, linked by {built.artifact.linker}")
    if built.unchecked:
        console.print(unchecked_line(built.unchecked), style="yellow")
    if built.artifact.loop_nests:
        console.print(loop_nests_line(built.artifact.loop_nests), style="yellow")


def unchecked_line(count: int) -> str:
    """Return a warning about unchecked schedules."""
    schedules, were = ("schedule", "was") if count == 1 else ("schedules", "were")
    return f"{count} {schedules} {were} never checked against the unscheduled program; --checked leaves such out"
