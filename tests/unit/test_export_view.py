"""Counts of schedules in the output of `fleet export`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.cli.export import result, schedules_line
from fleet.export.service import Exported
from fleet.runtime.manifest import UsedRecord
from tests.unit.test_runtime_manifest import MANIFEST


def exported(*, tuned: int, static: int, workloads: int, trials: int) -> Exported:
    records = tuple(
        UsedRecord(workload=f"w{at}", operator="op", shash=str(at), uid=str(at), median_sec=1e-3, is_static=at >= tuned)
        for at in range(tuned + static)
    )
    manifest = replace(MANIFEST, records=records)
    return Exported(
        path=Path("m.fleet"), digest="", size_bytes=1, workloads=workloads, manifest=manifest, trials=trials
    )


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ((5, 67, 76, 16), "16 trials: 5 operators tuned, 67 static, 4 not measured; on it x2"),
        ((0, 3, 3, 0), "0 trials: 0 operators tuned, 3 static; on it x2"),
        ((1, 0, 1, 1), "1 trial: 1 operator tuned; on it x2"),
        ((0, 0, 76, 0), "no records for 76 operators: fleet tune finds some"),
    ],
)
def test_static_schedules_are_not_counted_as_tuned(counts: tuple[int, int, int, int], line: str) -> None:
    """Before, "72 of 76 operators" were called tuned after 16 trials."""
    tuned, static, workloads, trials = counts
    found = exported(tuned=tuned, static=static, workloads=workloads, trials=trials)

    assert schedules_line(found) == line
    data = result(found)
    assert {name: data[name] for name in ("trials", "tuned", "static", "unmeasured")} == {
        "trials": trials, "tuned": tuned, "static": static, "unmeasured": workloads - tuned - static
    }  # fmt: skip
