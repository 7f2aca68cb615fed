"""Times under other measuring conditions have their own scopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.domain.measuring import Evaluator
from fleet.domain.scope import RecordScope, measured_model
from fleet.jobs.options import trial_evaluator
from fleet.library import Library, Record, StoredWorkload

HOST = "AMD EPYC x2"


@pytest.mark.parametrize(
    ("evaluator", "named"),
    [
        (trial_evaluator(), HOST),
        (trial_evaluator(flush_cache=True), f"{HOST} (caches flushed)"),
        (trial_evaluator(cooldown_ms=50, cool_below_c=55), f"{HOST} (rests 50 ms, cooled below 55 C)"),
        (Evaluator(flush_bytes=4096), f"{HOST} (4096 bytes flushed)"),
    ],
)
def test_conditions_are_part_of_the_hardware_that_a_time_is_for(evaluator: Evaluator, named: str) -> None:
    assert measured_model(HOST, evaluator) == named


def test_a_cold_winner_does_not_lose_to_a_warm_loser(tmp_path: Path) -> None:
    """Each scope has its own best schedule and counts its own trials."""
    cold, warm = (
        RecordScope(target_json="llvm", device_model=measured_model(HOST, one), tvm_version="1")
        for one in (trial_evaluator(flush_cache=True), trial_evaluator())
    )
    with Library.open(tmp_path / "l.sqlite") as library:
        library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
        for scope, trace, sec in ((cold, "[[1],[]]", 2e-6), (cold, "[[2],[]]", 3e-6), (warm, "[[2],[]]", 1e-6)):
            library.add_record(Record(workload="1", scope=scope, trace_json=trace, run_secs=(sec,)))

        assert [record.run_secs for record in library.best("1", cold, k=3)] == [(2e-6,), (3e-6,)]
        assert [record.run_secs for record in library.best("1", warm, k=3)] == [(1e-6,)]
        assert library.scopes(["1"]) == [cold, warm]
        assert library.trial_counts(["1"], within=warm) == {"1": 1}
