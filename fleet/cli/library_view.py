"""Output of `fleet library`: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from fleet.base.quantities import time_text
from fleet.cli.tables import (
    ROOMY_COLUMNS,
    WIDE_COLUMNS,
    clock_time,
    gflops,
    line,
    make_table,
    rate,
    speed_up,
)
from fleet.domain.keys import canonical_target
from fleet.domain.measuring import disturbances_in
from fleet.domain.scope import RecordScope
from fleet.library import Record, StoredSnapshot, StoredWorkload

_DIGITS = 12
"""Digits of a digest that are shown, enough to tell two apart."""

_NAMED = 3
"""Number of workloads that a note names; a longer list would add nothing."""


def snapshot_data(snapshot: StoredSnapshot, *, is_in_use: bool) -> dict[str, object]:
    """Return the facts about a snapshot of the cost model."""
    return {
        "digest": snapshot.digest,
        "made_at": snapshot.made_at,
        "published_at": snapshot.published_at,
        "is_in_use": is_in_use,
        "feature_version": snapshot.feature_version,
        "records": snapshot.record_count,
        "workloads": dict(snapshot.workloads),
        "metrics": dict(snapshot.metrics),
        "size_bytes": len(snapshot.content),
    }


def print_snapshots(snapshots: Sequence[StoredSnapshot], in_use: Collection[str], console: Console) -> None:
    """Print a row for each snapshot, oldest first."""
    table = make_table("snapshot", "made", "records", "workloads", "ranks right", "KB", "use", left=frozenset({"use"}))
    for one in snapshots:
        pairs = one.metrics.get("left_out_pairs")
        use = "in use" if one.digest in in_use else "" if one.published_at else "not used"
        table.add_row(
            one.digest.removeprefix("sha256:")[:_DIGITS],
            clock_time(one.made_at),
            str(one.record_count),
            str(len(one.workloads)),
            f"{pairs:.3f}" if isinstance(pairs, int | float) else "",
            f"{len(one.content) / 1e3:.0f}",
            use,
        )
    console.print(table)
    console.print("ranks right: share of pairs, in workloads that it had not seen", style="dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRow:
    """One of the fastest candidates of a workload."""

    workload: StoredWorkload
    record: Record
    scope: RecordScope
    untuned_sec: float | None

    @property
    def disturbances(self) -> list[str]:
        return [found.text for found in disturbances_in(self.record.provenance)]


def best_data(row: BestRow) -> dict[str, object]:
    """Return everything needed to use a record."""
    workload, record, scope = row.workload, row.record, row.record.scope
    return {
        "workload": workload.name,
        "operator": workload.operator,
        "shash": workload.shash,
        "target": scope.target_json,
        "device_model": scope.device_model,
        "tvm_version": scope.tvm_version,
        "best_sec": record.median_sec,
        "untuned_sec": row.untuned_sec,
        "gflops": gflops(workload.flop, record.median_sec),
        "run_secs": list(record.run_secs),
        "checked": record.checked,
        "is_proven": record.is_proven,
        "record": record.id,
        "job": record.job_name,
        "measured_at": record.created_at,
        "trace": record.trace_json,
        "disturbances": row.disturbances,
    }


def print_best(rows: Sequence[BestRow], console: Console) -> None:
    """Print a table for each scope, since times from different scopes do not compare."""
    has_room, is_wide = console.width >= ROOMY_COLUMNS, console.width >= WIDE_COLUMNS
    columns = ["workload", "best", "speed-up", "GFLOP/s", "output"]
    columns += ["untuned", "measured"] if has_room else []
    columns += ["TVM's name"] if is_wide else []
    for number, (scope, group) in enumerate(groupby(rows, key=lambda row: row.scope)):
        if number:
            console.print()
        console.print(_scope_line(scope, is_wide=is_wide), no_wrap=True, overflow="ellipsis")
        table = make_table(*columns, left=frozenset({"workload", "output", "TVM's name"}))
        for row in group:
            best_sec = row.record.median_sec
            table.add_row(
                line(row.workload.operator),
                time_text(best_sec),
                speed_up(row.untuned_sec, best_sec),
                rate(gflops(row.workload.flop, best_sec)),
                _known(row.record),
                *([time_text(row.untuned_sec), clock_time(row.record.created_at)] if has_room else []),
                *([line(row.workload.name)] if is_wide else []),
            )
        console.print(table)
    disturbed = [row.workload.operator for row in rows if row.disturbances]
    if disturbed:
        names = ", ".join(disturbed[:_NAMED]) + (", ..." if len(disturbed) > _NAMED else "")
        console.print(Text(f"measured while something disturbed the device, see --json: {names}", style="yellow"))


def _known(record: Record) -> str:
    """Return "checked" for a verified output and "proven" for a verified time."""
    words = ["checked"] * bool(record.checked) + ["proven"] * bool(record.is_proven)
    return ", ".join(words)


def _scope_line(scope: RecordScope, *, is_wide: bool) -> Text:
    version = f"TVM {scope.tvm_version}" if scope.tvm_version else "unknown TVM"
    target = scope.target_json if is_wide else canonical_target(scope.target_json)
    return Text(f"{scope.device_model}, {version}, {target or 'unknown target'}", style="bold")
