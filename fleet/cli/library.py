"""`fleet library best|export|import`: what past tuning runs found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cross.targets.boards import load_boards
from fleet.cli import options
from fleet.cli.library_view import BestRow, best_data, print_best
from fleet.cli.options import LibraryOption
from fleet.cli.stored import existing_library
from fleet.cli.tables import WideOption, make_console
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.tvm_versions import tvm_version as installed_tvm
from fleet.errors import LibraryError, NotFound
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import export_json, import_json

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


_ALL, _UNKNOWN = "all", "unknown"
"""Values of --tvm-version: every version, and records that do not name theirs."""


@app.callback()
def library_group() -> None:
    """Look into the records of all tuning runs.

    Example: fleet library best 'conv2d 3x3*'
    """


def _target_of_board(text: str | None) -> str | None:
    """Return the target of a named board; anything else as it is, since imported records have targets of any form."""
    boards = load_boards()
    return boards[text].target_json if text is not None and text in boards else text


TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Only records of this TVM target (JSON), or of this board ('fleet targets').",
        callback=_target_of_board,
    ),
]
DeviceModelOption = Annotated[
    str | None, typer.Option("--device-model", metavar="MODEL", help="Only records of this device model.")
]
PatternArgument = Annotated[
    str, typer.Argument(help="Shell pattern of workload names, as shown or as in TVM, or a workload's hash.")
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--tvm-version",
        metavar="VERSION",
        help="Only records made with this TVM, or 'all'. Default: the installed one, if any.",
    ),
]


@app.command()
def best(
    ctx: typer.Context,
    pattern: PatternArgument = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    tvm_version: VersionOption = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="Candidates per workload and device.")] = 1,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Show the fastest candidates of each workload, for each device model, target and TVM version.

    Example: fleet library best 'conv2d 3x3*' --top 3
    """
    within = ScopeFilter(target_json=target, device_model=device_model)
    with existing_library(library) as opened:
        workloads = opened.find_workloads(pattern)
        known = opened.scopes()
        scopes = _of_version(opened.scopes([workload.shash for workload in workloads], within), tvm_version)
        rows = [row for scope in scopes for workload in workloads for row in _best_rows(opened, workload, scope, top)]
    if not rows:
        raise NotFound(_nothing_of(pattern, within, known, opened.url))
    if options.wants_json(ctx, json_output):
        options.print_json([best_data(row) for row in rows])
        return
    print_best(rows, make_console(is_wide=wide))


@app.command("export")
def export_(
    directory: Annotated[Path, typer.Argument(help="The directory to write to; made if missing.")],
    pattern: PatternArgument = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    tvm_version: VersionOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of an earlier export.")] = False,
    library: LibraryOption = None,
) -> None:
    """Write records as MetaSchedule's database_workload.json and database_tuning_record.json.

    Each candidate has one line, with the time that counts in 'fleet library best'. MetaSchedule looks records up by
    program only: give --target and --device-model if the library has several.

    Example: fleet library export tuned/ --device-model 'Cortex-A72 x4'
    """
    within = ScopeFilter(target_json=target, device_model=device_model)
    with existing_library(library) as opened:
        scopes = opened.scopes([workload.shash for workload in opened.find_workloads(pattern)], within)
        versions = {scope.tvm_version for scope in _of_version(scopes, tvm_version)}
        if len(versions) == 1:
            within = replace(within, tvm_version=versions.pop())
        done = export_json(opened, directory, pattern=pattern, within=within, overwrite=overwrite)
    options.stderr().print(f"Exported {done.records} records of {done.workloads} workloads to {directory}.")


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(help="The directory with MetaSchedule's two files.")],
    device_model: Annotated[
        str,
        typer.Option("--device-model", metavar="MODEL", help="What the times were measured on; the files do not say."),
    ],
    tvm_version: Annotated[
        str | None, typer.Option("--tvm-version", help="What the programs were built with. Default: the installed TVM.")
    ] = None,
    target: Annotated[str, typer.Option("--target", metavar="JSON", help="For records that name no target.")] = "",
    library: LibraryOption = None,
) -> None:
    """Read the records of a MetaSchedule work directory. Importing twice adds nothing twice.

    Example: fleet library import work_dir/ --device-model 'Cortex-A72 x4'
    """
    version = installed_tvm() if tvm_version is None else tvm_version
    if version is None:
        raise LibraryError("TVM is not installed here; name what the records were built with, --tvm-version")
    scope = RecordScope(target_json=target, device_model=device_model, tvm_version=version)
    with Library.open(library) as opened:
        done = import_json(opened, directory, scope)
    known = f", {done.known_records} of them known" if done.known_records else ""
    options.stderr().print(f"Imported {done.records} records of {done.workloads} workloads{known}.")


def _of_version(scopes: Sequence[RecordScope], asked: str | None) -> list[RecordScope]:
    """Return the scopes of one TVM version; of all where none was asked for and TVM is not installed.

    Raises:
        NotFound: there are records, but none with that TVM.
    """
    version = asked or installed_tvm() or _ALL
    found = [scope for scope in scopes if version in (_ALL, scope.tvm_version or _UNKNOWN)]
    if scopes and not found:
        known = sorted({scope.tvm_version or _UNKNOWN for scope in scopes})
        raise NotFound(
            f"no records were made with TVM {version}; there are some of {', '.join(known)}: --tvm-version {known[-1]}"
        )
    return found


def _nothing_of(pattern: str, within: ScopeFilter, known: Sequence[RecordScope], url: str) -> str:
    """Say that nothing was found, and what there is instead."""
    asked = {"target": within.target_json, "device model": within.device_model}
    of = "".join(f", {name} {value!r}" for name, value in asked.items() if value is not None)
    models = sorted({scope.device_model for scope in known if scope.device_model})
    instead = f"; there are some of {', '.join(models)}: 'fleet library best' shows them" if models else ""
    return f"no records of workloads {pattern!r}{of} in {url}{instead}"


def _best_rows(library: Library, workload: StoredWorkload, scope: RecordScope, top: int) -> list[BestRow]:
    untuned = library.baseline(workload.shash, scope)
    untuned_sec = untuned.median_sec if untuned else None
    return [
        BestRow(workload=workload, record=record, scope=scope, untuned_sec=untuned_sec)
        for record in _best(library, workload, scope, top)
    ]


def _best(library: Library, workload: StoredWorkload, scope: RecordScope, k: int) -> list[Record]:
    """Return the fastest. A fast one may be wrong, so unchecked ones count only where none was checked."""
    checked = library.best(workload.shash, scope, k=k, checked_only=True)
    return checked or library.best(workload.shash, scope, k=k)
