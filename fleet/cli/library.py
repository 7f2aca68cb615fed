"""`fleet library`: records of past tuning runs, and the model learnt from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.base.quantities import count_text
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.freshness_view import freshness_data, print_freshness
from fleet.cli.library_coverage import coverage
from fleet.cli.library_refresh import refresh
from fleet.cli.library_view import BestRow, best_data, print_best, print_snapshots, snapshot_data
from fleet.cli.options import LibraryOption
from fleet.cli.record_filters import (
    DAY_SEC,
    DeviceModelOption,
    MaxAgeOption,
    TargetOption,
    WhereOption,
    age,
    asked_text,
    older_line,
    record_filter,
)
from fleet.cli.stored import existing_library, naming
from fleet.cli.tables import WideOption, make_console
from fleet.domain.freshness import NOTHING_REBUILT, judge
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.tvm_versions import tvm_version as installed_tvm
from fleet.errors import LibraryError, NotFound
from fleet.library import Library, Record, StoredSnapshot, StoredWorkload
from fleet.library.exchange import export_json, import_json
from fleet.library.record_pruning import Kept
from fleet.library.schema import SCHEMA_VERSION
from fleet.library.versions import change_version

if TYPE_CHECKING:
    from fleet.optimizer.refreshing.changed_code import JudgedCode

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(coverage)
app.command()(refresh)


_ALL, _UNKNOWN = "all", "unknown"
"""Values of --tvm-version: every version, and records that do not name theirs."""


@app.callback()
def library_group() -> None:
    """Inspect the records of all tuning runs.

    Example: fleet library best 'conv2d 3x3*'
    """


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
    pattern: PatternArgument = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    tvm_version: VersionOption = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=1_000_000, metavar="K", help="Candidates per workload and device.")
    ] = 1,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Show the fastest candidates of each workload, for each device model, target and TVM version.

    Example: fleet library best 'conv2d 3x3*' --top 3
    """
    within = record_filter(target=target, device_model=device_model, max_age=max_age, where=where)
    with existing_library(library) as opened:
        workloads = opened.find_workloads(pattern)
        shashes = [workload.shash for workload in workloads]
        scopes = _of_version(opened.scopes(shashes, within), tvm_version)
        parts = [(scope, within.of(scope)) for scope in scopes]
        rows = [row for part in parts for row in _best_rows(opened, workloads, *part, top)]
        older = older_line(opened.count_older(shashes, within))
        if not rows:
            raise NotFound(_nothing_of(pattern, within, opened, older))
    if older:
        options.stderr().print(older)
    if json_output:
        options.print_json({"best": [best_data(row) for row in rows]})
        return
    print_best(rows, make_console(is_wide=wide))


@app.command("export")
def export_(
    directory: Annotated[Path, typer.Argument(help="The directory to write to; made if missing.")],
    pattern: PatternArgument = "*",
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    tvm_version: VersionOption = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    best: Annotated[
        int | None,
        typer.Option("--best", min=1, metavar="K", help="Only the K fastest of each workload, target and device."),
    ] = None,
    checked: Annotated[bool, typer.Option("--checked", help="Only candidates whose output was checked.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of an earlier export.")] = False,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write records as MetaSchedule's database_workload.json and database_tuning_record.json.

    Each candidate has one line, with the time that counts in 'fleet library best'. MetaSchedule looks records up by
    program only: give --target and --device-model if the library has several.

    Example: fleet library export tuned/ --device-model 'Cortex-A72 x4' --best 3 --checked
    """
    within = record_filter(target=target, device_model=device_model, max_age=max_age, where=where)
    with working(f"writing records to {directory}"), existing_library(library) as opened:
        shashes = [outline.shash for outline in opened.find_outlines(pattern)]
        versions = {scope.tvm_version for scope in _of_version(opened.scopes(shashes, within), tvm_version)}
        older = older_line(opened.count_older(shashes, within))
        if not versions:
            raise NotFound(_nothing_of(pattern, within, opened, older))
        if len(versions) == 1:
            within = replace(within, tvm_version=versions.pop())
        done = export_json(
            opened, directory, pattern=pattern, within=within, best=best, checked_only=checked, overwrite=overwrite
        )
    if older:
        options.stderr().print(older)
    if json_output:
        options.print_json({"directory": str(directory), "workloads": done.workloads, "records": done.records})
        return
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
    json_output: options.JsonOption = False,
) -> None:
    """Read the records of a MetaSchedule work directory. Importing twice adds nothing twice.

    Example: fleet library import work_dir/ --device-model 'Cortex-A72 x4'
    """
    version = installed_tvm() if tvm_version is None else tvm_version
    if version is None:
        raise LibraryError("TVM is not installed here; name the version that built the records with --tvm-version")
    scope = RecordScope(target_json=target, device_model=device_model, tvm_version=version)
    with working(f"reading the records of {directory}"), Library.open(library) as opened:
        done = import_json(opened, directory, scope)
    if json_output:
        options.print_json(asdict(done))
        return
    known = f", {done.known_records} of them known" if done.known_records else ""
    options.stderr().print(f"Imported {done.records} records of {done.workloads} workloads{known}.")


@app.command()
def stale(
    max_age: Annotated[
        float,
        typer.Option(
            "--max-age",
            parser=age,
            metavar="TIME",
            help="Age above which records are stale: 12h, 90d. Default: 180d.",
            show_default=False,
        ),
    ] = 180 * DAY_SEC,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Also build them again, and judge code and programs; needs TVM.")
    ] = False,
    target: TargetOption = None,
    device_model: DeviceModelOption = None,
    tvm_version: VersionOption = None,
    where: WhereOption = None,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Count the records to measure again, by reason, and the device time that this would take.

    Judged are the best three schedules of each workload: measured on software or settings that no device of their model
    has any more, too long ago, or only while something disturbed the device. With --rebuild also those with other code,
    or with another program, than they would have today. Needs no device.

    Example: fleet library stale --max-age 90d
    """
    within = record_filter(target=target, device_model=device_model, where=where)
    with existing_library(library) as opened:
        scopes = _of_version(opened.scopes(within=within), tvm_version)
        if not scopes:
            raise NotFound(_nothing_of("*", within, opened))
        times = opened.kept_times(scopes, within)
        now, oldest = datetime.now(UTC), timedelta(seconds=max_age)
        code = _judged_code(opened, scopes) if rebuild else None
        changed = NOTHING_REBUILT if code is None else code.by_reason
        found = judge(times, opened.environments(), now=now, max_age=oldest, changed=changed)
    judged = None if code is None else code.within({time.record_id for time in times})
    if json_output:
        options.print_json(freshness_data(found, max_age, judged))
        return
    print_freshness(found, make_console(is_wide=False), judged)


@app.command()
def snapshots(
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """List the snapshots of the shared cost model: what each was trained on, how it ranks, which one is in use.

    Example: fleet library snapshots
    """
    with existing_library(library) as opened:
        found = opened.memory.snapshots()
        in_use = {one.digest for version in {s.feature_version for s in found} if (one := _in_use(opened, version))}
    if json_output:
        options.print_json({"snapshots": [snapshot_data(one, is_in_use=one.digest in in_use) for one in found]})
    elif found:
        print_snapshots(found, in_use, make_console(is_wide=wide))
    else:
        options.stderr().print(f"No snapshots in {opened.url} yet: the first comes with 64 measured candidates.")


_KEPT = {
    Kept.BEST: "among the best of their workload",
    Kept.YOUNG: "young",
    Kept.RUNNING: "of waiting or running jobs",
    Kept.CARRIED: "behind records of another TVM version",
    Kept.NO_SEARCH: "of unscheduled programs or whole models",
    Kept.NEWEST: "as the newest",
}


@app.command()
def prune(
    keep: Annotated[
        int,
        typer.Option(
            "--keep", min=0, max=1_000_000, metavar="N", help="Keep the newest N snapshots and jobs, however old."
        ),
    ] = 10,
    days: Annotated[
        float,
        typer.Option(
            "--days", min=0, max=36500, callback=options.finite, metavar="D", help="Keep entries younger than D days."
        ),
    ] = 30.0,
    records: Annotated[
        bool, typer.Option("--records", help="Remove old records, too; --best and --older-than keep some.")
    ] = False,
    best: Annotated[
        int,
        typer.Option(
            "--best", min=1, max=1_000_000, metavar="K", help="Keep the K best schedules of each workload and scope."
        ),
    ] = 3,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            parser=age,
            metavar="TIME",
            help="Keep records that are not older: 12h, 90d. Default: 180d.",
            show_default=False,
        ),
    ] = 180 * DAY_SEC,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Remove old snapshots of the cost model, and the model files of old jobs; with --records, old records as well.

    Kept are the snapshot in use, all that waiting and running jobs need, and what --keep and --days say. Jobs stay: one
    without its model is resumed by submitting the model again. Removed records no longer teach the cost model, and are
    missing in reports of their jobs.

    Example: fleet library prune --records --best 3 --older-than 180d --dry-run
    """
    now = datetime.now(UTC)
    with working("looking for old entries"), existing_library(library) as opened:
        gone = opened.prune(newest=keep, made_before=now - timedelta(days=days), is_trial=dry_run)
        since = now - timedelta(seconds=older_than)
        removed = opened.prune_records(best=best, made_before=since, is_trial=dry_run) if records else None
    if json_output:
        options.print_json(
            {
                "snapshots": list(gone.snapshots),
                "model_files": list(gone.model_files),
                "size_bytes": gone.size_bytes,
                "records": None if removed is None else removed.removed,
                "records_kept": None if removed is None else removed.kept,
                "is_dry_run": dry_run,
            }
        )
        return
    verb, size_mb = "Would remove" if dry_run else "Removed", gone.size_bytes / 1e6
    what = f"{len(gone.snapshots)} snapshots and {len(gone.model_files)} model files"
    options.stderr().print(f"{verb} {what}, {size_mb:.1f} MB.")
    if removed is not None:
        kept = ", ".join(f"{count} {_KEPT[reason]}" for reason, count in removed.kept.items())
        options.stderr().print(f"{verb} {count_text(removed.removed, 'record')}; kept: {kept or 'none'}.")


@app.command()
def migrate(
    to: Annotated[int, typer.Option(metavar="VERSION", help=f"The schema version; today's is {SCHEMA_VERSION}.")],
    backup: Annotated[
        Path | None, typer.Option("--backup", metavar="FILE", help="Where the copy goes. Default: beside the library.")
    ] = None,
    no_backup: Annotated[
        bool, typer.Option("--no-backup", help="Make no copy; for PostgreSQL, make one with pg_dump.")
    ] = False,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Bring a library to another schema version, also back to one that an older program reads; a copy is made first.

    What the older version has no place for is lost there: jobs in the queue, features, snapshots. Programs of today
    bring a library to their own version when they open it.

    Example: fleet library migrate --to 3
    """
    done = change_version(library, to, backup=backup, has_backup=no_backup)
    if json_output:
        backed_up = None if done.backup is None else str(done.backup)
        options.print_json({"had_version": done.found, "has_version": to, "backup": backed_up})
        return
    console = options.stderr()
    if done.found == to:
        console.print(f"The library has version {to} already.")
        return
    console.print(f"The library had version {done.found}, and has {to} now.")
    if done.backup is not None:
        console.print(f"A copy from before is at {done.backup}.")


def _judged_code(library: Library, scopes: Sequence[RecordScope]) -> JudgedCode:
    from fleet.optimizer.refreshing.changed_code import judge_code

    with working("building the best schedules") as narrate:
        return options.run(judge_code(library, scopes, narrate=narrate))


def _in_use(library: Library, feature_version: str) -> StoredSnapshot | None:
    return library.memory.newest_snapshot(feature_version)


def _of_version(scopes: Sequence[RecordScope], asked: str | None) -> list[RecordScope]:
    """Return the scopes of one TVM version; all scopes if none was requested and TVM is not installed.

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


def _nothing_of(pattern: str, within: ScopeFilter, library: Library, older: str = "") -> str:
    """Return a message that nothing was found, with the existing alternatives."""
    models = sorted({scope.device_model for scope in library.scopes() if scope.device_model})
    shows = f"'fleet library best{naming(library.url)}' shows them"
    instead = f"there are some of {', '.join(models)}: {shows}" if models else ""
    facts = library.known_facts() if within.facts else []
    known = f"facts of the environments: {', '.join(facts)}" if facts else ""
    text = f"no records of workloads {pattern!r}{asked_text(within)} in {library.url}"
    return "; ".join(filter(None, [text, older, instead, known]))


def _best_rows(
    library: Library, workloads: Sequence[StoredWorkload], scope: RecordScope, within: ScopeFilter, top: int
) -> list[BestRow]:
    shashes = [workload.shash for workload in workloads]
    untuned = {shash: record.median_sec for shash, record in library.baselines(shashes, within).items()}
    found = _best(library, shashes, within, top)
    return [
        BestRow(workload=workload, record=record, scope=scope, untuned_sec=untuned.get(workload.shash))
        for workload in workloads
        for record in found.get(workload.shash, ())
    ]


def _best(library: Library, shashes: Sequence[str], within: ScopeFilter, k: int) -> dict[str, list[Record]]:
    """Return each workload's records in order of preference: the fastest proven ones, then other checked ones.

    Unchecked records, which may be wrong, are returned only if none was checked.
    """
    checked = library.best_of(shashes, within, k=k, checked_only=True)
    proven = library.best_of(checked, within, k=k, checked_only=True, proven_only=True)
    unchecked = library.best_of([shash for shash in shashes if shash not in checked], within, k=k)
    return unchecked | {shash: _proven_first(proven.get(shash, []), those)[:k] for shash, those in checked.items()}


def _proven_first(proven: Sequence[Record], checked: Sequence[Record]) -> list[Record]:
    known = {record.id for record in proven}
    return [*proven, *(record for record in checked if record.id not in known)]
