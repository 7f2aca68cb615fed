"""`fleet library best|jobs|export|import`: what all tuning runs left behind."""

from __future__ import annotations

import importlib.metadata
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cross.boards import load_boards
from fleet.cli import options
from fleet.errors import LibraryError
from fleet.library import Job, JobSummary, Library, Record, Workload
from fleet.library.exchange import export_json, import_json

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


_WIDE = 110
"""Columns of a terminal from which on lists have room for all that is known; --json always has it."""
_NAMED = 3
"""Workloads named in a note; a long list says no more."""


@app.callback()
def library_group() -> None:
    """Look into the records of all tuning runs.

    Example: fleet library best 'fused_conv2d*'
    """


LibraryOption = Annotated[
    str | None,
    typer.Option(
        "--library",
        metavar="URL",
        envvar="FLEET_LIBRARY",
        help="A SQLite file, or postgresql://host/database. Default: yours, in the data directory.",
    ),
]


def _target_of_board(text: str | None) -> str | None:
    """Return a board's target for its name; all else as it is, since imported records have targets of any form."""
    boards = load_boards()
    return boards[text].target_json if text is not None and text in boards else text


TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Records of this TVM target (JSON), or of this board ('fleet targets'), only.",
        callback=_target_of_board,
    ),
]
DeviceModelOption = Annotated[
    str | None, typer.Option("--device-model", metavar="MODEL", help="Records of this device model only.")
]


@app.command()
def best(
    ctx: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Shell pattern of workload names, or a workload's hash.")] = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="Candidates per workload and device.")] = 1,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show the fastest candidates of each workload, per target and device model.

    Example: fleet library best 'fused_conv2d*' --top 3
    """
    with _existing(library) as opened:
        rows = [
            (workload, record, _untuned_sec(opened, record))
            for workload in opened.find_workloads(pattern)
            for record in _best_per_device(opened, workload, target, device_model, top)
        ]
    if options.wants_json(ctx, json_output):
        options.print_json([_best_data(workload, record, untuned) for workload, record, untuned in rows])
        return
    if not rows:
        options.stderr().print(f"No records of workloads {pattern!r} in {opened.url}.")
        return
    _print_best(rows)


@app.command()
def jobs(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Show this job with its workloads.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """List tuning runs, or show what one did.

    Example: fleet library jobs
    """
    as_json = options.wants_json(ctx, json_output)
    with _existing(library) as opened:
        if name is not None:
            summary = opened.job(name if name.startswith("jobs/") else f"jobs/{name}")
            options.print_json(_summary_data(summary)) if as_json else _print_summary(summary)
            return
        found = opened.jobs(limit)
    if as_json:
        options.print_json([_job_data(job) for job in found])
    elif found:
        _print_jobs(found)
    else:
        options.stderr().print(f"No jobs in {opened.url}.")


@app.command("export")
def export_(
    directory: Annotated[Path, typer.Argument(help="Where the two files go; made if missing.")],
    pattern: Annotated[str, typer.Argument(help="Shell pattern of workload names, or a workload's hash.")] = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of an earlier export.")] = False,
    library: LibraryOption = None,
) -> None:
    """Write records as MetaSchedule's database_workload.json and database_tuning_record.json.

    MetaSchedule looks records up by program only: give --target and --device-model if the library has several.

    Example: fleet library export tuned/ --device-model 'Cortex-A72 x4'
    """
    with _existing(library) as opened:
        done = export_json(
            opened, directory, pattern=pattern, target_json=target, device_model=device_model, overwrite=overwrite
        )
    options.stderr().print(f"Exported {done.records} records of {done.workloads} workloads to {directory}.")


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(help="Where MetaSchedule's two files are.")],
    device_model: Annotated[
        str, typer.Option("--device-model", metavar="MODEL", help="What was measured on; the files do not say.")
    ],
    tvm_version: Annotated[
        str | None, typer.Option("--tvm-version", help="What it was built with. Default: the installed TVM.")
    ] = None,
    target: Annotated[str, typer.Option("--target", metavar="JSON", help="For records that name no target.")] = "",
    library: LibraryOption = None,
) -> None:
    """Read the records of a MetaSchedule work directory. Importing twice adds nothing twice.

    Example: fleet library import work_dir/ --device-model 'Cortex-A72 x4'
    """
    with Library.open(library) as opened:
        done = import_json(
            opened,
            directory,
            device_model=device_model,
            tvm_version=_installed_tvm() if tvm_version is None else tvm_version,
            target_json=target,
        )
    known = f", {done.known_records} of them known" if done.known_records else ""
    options.stderr().print(f"Imported {done.records} records of {done.workloads} workloads{known}.")


def _best_per_device(
    library: Library, workload: Workload, target: str | None, device_model: str | None, top: int
) -> list[Record]:
    """The fastest of each target and device model, since times of different hardware do not compare."""
    places = library.places(workload.shash, target_json=target, device_model=device_model)
    return [
        record for target_json, model in places for record in _best_there(library, workload, target_json, model, top)
    ]


def _best_there(library: Library, workload: Workload, target_json: str, device_model: str, k: int) -> list[Record]:
    """A fast candidate may be wrong: only where none was checked, as after an import, do unchecked ones count."""
    found: list[Record] = []
    for checked_only in (True, False):
        found = found or library.best(
            workload.shash, target_json=target_json, device_model=device_model, k=k, checked_only=checked_only
        )
    return found


def _untuned_sec(library: Library, record: Record) -> float | None:
    untuned = library.baseline(record.workload, target_json=record.target_json, device_model=record.device_model)
    return untuned.median_sec if untuned else None


def _best_data(workload: Workload, record: Record, untuned_sec: float | None) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "shash": workload.shash,
        "target": record.target_json,
        "device_model": record.device_model,
        "tvm_version": record.tvm_version,
        "best_us": record.median_sec * 1e6,
        "untuned_us": None if untuned_sec is None else untuned_sec * 1e6,
        "gflops": workload.flop / record.median_sec / 1e9 if record.median_sec else None,
        "run_secs": list(record.run_secs),
        "checked": record.checked,
        "record": record.id,
        "job": record.job_name,
        "measured_at": record.created_at.isoformat(),
        "trace": record.trace_json,
        "disturbances": _disturbances(record),
    }


def _print_best(rows: list[tuple[Workload, Record, float | None]]) -> None:
    console = Console(highlight=False)
    is_wide = console.width >= _WIDE
    more = ("untuned [us]", "measured") if is_wide else ()
    table = _table("workload", "device model", "best [us]", "speed-up", "GFLOP/s", "output", *more)
    for workload, record, untuned_sec in rows:
        table.add_row(
            Text(workload.name),
            Text(record.device_model),
            _us(record.median_sec),
            "" if untuned_sec is None or not record.median_sec else f"{untuned_sec / record.median_sec:.1f}x",
            f"{workload.flop / record.median_sec / 1e9:.1f}" if workload.flop and record.median_sec else "",
            "checked" if record.checked else "",
            *((_us(untuned_sec), _time(record.created_at)) if is_wide else ()),
        )
    console.print(table)
    disturbed = [workload.name for workload, record, _ in rows if _disturbances(record)]
    if disturbed:
        names = ", ".join(disturbed[:_NAMED]) + (", ..." if len(disturbed) > _NAMED else "")
        note = f"measured while something disturbed the device, see --json: {names}"
        console.print(Text(note, style="yellow"))


def _disturbances(record: Record) -> list[str]:
    found = record.provenance.get("disturbances", ())
    return list(map(str, found)) if isinstance(found, list) else []


def _job_data(job: Job) -> dict[str, Any]:
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


def _print_jobs(found: list[Job]) -> None:
    console = Console(highlight=False)
    is_wide = console.width >= _WIDE
    table = _table("job", "model", "state", "trials", "failed", *(("holder", "started") if is_wide else ()), "lasted")
    for job in found:
        total = f"/{job.trials_total}" if job.trials_total else ""
        lasted = str((job.ended_at or job.touched_at) - job.started_at).split(".")[0]
        table.add_row(
            job.name,
            Text(job.title),
            job.state.value,
            f"{job.trials_done}{total}",
            str(job.trials_failed),
            *((Text(job.holder), _time(job.started_at)) if is_wide else ()),
            lasted,
        )
    console.print(table)


def _summary_data(summary: JobSummary) -> dict[str, Any]:
    workloads = [
        {
            "name": entry.workload.name,
            "shash": entry.workload.shash,
            "weight": entry.weight,
            "trials": entry.trials,
            "untuned_us": None if entry.untuned_sec is None else entry.untuned_sec * 1e6,
            "best_us": None if entry.best_sec is None else entry.best_sec * 1e6,
            "errors": {kind.value: count for kind, count in entry.errors.items()},
        }
        for entry in summary.workloads
    ]
    names = ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error")
    runs = [{name: getattr(run, name) for name in names} for run in summary.model_runs]
    return {**_job_data(summary.job), "workloads": workloads, "model_runs": runs}


def _print_summary(summary: JobSummary) -> None:
    console = Console(highlight=False)
    job = summary.job
    why = f": {job.message}" if job.message else ""
    console.print(f"{job.name}  {job.title}  {job.state.value}{why}, {job.trials_done} trials", markup=False)
    table = _table("workload", "weight", "trials", "best [us]", "untuned [us]", "speed-up", "errors")
    for entry in summary.workloads:
        gain = entry.untuned_sec / entry.best_sec if entry.untuned_sec and entry.best_sec else None
        table.add_row(
            Text(entry.workload.name),
            f"{entry.weight:g}",
            str(entry.trials),
            _us(entry.best_sec),
            _us(entry.untuned_sec),
            f"{gain:.1f}x" if gain else "",
            ", ".join(f"{count} {kind.value}" for kind, count in entry.errors.items()),
        )
    console.print(table)
    for run in summary.model_runs:
        parts = [("untuned", run.untuned_ms), ("tuned", run.tuned_ms), ("ONNX Runtime", run.onnxruntime_ms)]
        console.print("model: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in parts if ms is not None))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    right = {"weight", "trials", "failed", "best [us]", "untuned [us]", "speed-up", "GFLOP/s", "lasted"}
    for column in columns:
        # What is copied from the table, names of jobs, and what is compared in it, numbers, stays in one piece.
        is_whole = column in right or column == "job"
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(Text(column), justify=justify, no_wrap=is_whole, overflow="fold")
    return table


def _us(sec: float | None) -> str:
    return "" if sec is None else f"{sec * 1e6:.1f}"


def _time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M")


def _installed_tvm() -> str:
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError as error:
        raise LibraryError("TVM is not installed here; name what the records were built with, --tvm-version") from error


def _existing(url_or_path: str | None) -> Library:
    """Open a library to read in it; a file that is not there is a slip of the fingers, not a library to make."""
    if url_or_path is not None and "://" not in url_or_path and not Path(url_or_path).expanduser().exists():
        raise LibraryError(f"there is no library {url_or_path}; name the one that a tune wrote with --library")
    return Library.open(url_or_path)
