"""Choice of a workload's schedule by running the best few in the model."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleet.domain.measuring import OperatorCall
from fleet.domain.observation import Observation
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Record, RecordKind
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.job_run import have_alternatives
from fleet.optimizer.reporting import report_placed
from fleet.optimizer.whole_model_tuning.selection import (
    Selection,
    affordable,
    lineups,
    place,
    secs_in_place,
    selection_of,
    that_matter,
)


def workload(name: str = "conv", weight: int = 1) -> Workload:
    return Workload(name=name, weight=weight, mod_json="", shash=f"hash of {name}", flop=1.0, args=())


def record(trace: str, sec: float, kind: RecordKind = RecordKind.CANDIDATE) -> Record:
    return Record(
        id=1,
        uid=trace,
        workload="hash of conv",
        scope=RecordScope(target_json="{}", device_model="", tvm_version=""),
        trace_json=trace,
        trace_digest=f"digest of {trace}",
        run_secs=(sec,),
        kind=kind,
        checked=True,
        created_at=datetime.now(UTC),
    )


STATIC = record("static", 2.0, RecordKind.STATIC)
CLOSE = [record("a", 1.0), record("b", 1.1), record("c", 1.2), record("d", 1.25)]


def selection(name: str = "conv", weight: int = 1) -> Selection:
    found = selection_of(workload(name, weight), "a", [*CLOSE[:3], STATIC])
    assert found is not None
    return found


def test_the_best_few_and_the_static_schedule_take_part() -> None:
    """The decided one first, then the fastest; the static one however slow it is alone, others if they are close."""
    found = selection_of(workload(), "b", [*CLOSE, record("far", 1.4), record("too far", 2.1), STATIC])
    assert found is not None

    (usual,) = that_matter([found], {found.workload.shash: 1.1})

    assert ["b", "a", "c", "static"] == [option.trace_json for option in usual.options]


def test_more_candidates_take_part_where_times_are_scarce() -> None:
    """A schedule that is clearly slower in the model than alone may be the wrong choice among many."""
    found = selection_of(workload(), "b", [*CLOSE, record("far", 1.4), record("too far", 2.1), STATIC])
    assert found is not None

    (cold,) = that_matter([found], {found.workload.shash: 1.6})

    assert ["b", "a", "c", "d", "far", "static"] == [option.trace_json for option in cold.options]


def test_without_a_rival_there_is_no_selection() -> None:
    """Nor is there a selection for a schedule without a record, or for one that loses nothing in the model
    and has slower rivals.
    """
    assert selection_of(workload(), "a", [CLOSE[0], record("far", 2.1)]) is None
    alone = selection_of(workload(), "a", [CLOSE[0], record("far", 1.4)])
    assert alone is not None
    assert [] == that_matter([alone], {alone.workload.shash: 1.0})
    assert selection_of(workload(), "gone", CLOSE) is None


def test_a_workload_that_takes_no_time_is_not_worth_a_choice() -> None:
    """Workloads are ordered by the time of all their calls, the costliest first."""
    secs = {"hash of conv": 10e-3, "hash of many": 3e-3, "hash of tiny": 0.1e-3}

    found = that_matter([selection("tiny"), selection(), selection("many", weight=9)], secs)

    assert ["many", "conv"] == [item.workload.name for item in found]
    assert [] == that_matter([selection()], {})


def test_each_build_holds_another_schedule_of_every_workload() -> None:
    """There are as many builds as the workload with most rivals needs, besides the static one."""
    one_rival = selection_of(workload("pool"), "a", CLOSE[:2])
    assert one_rival is not None
    decided = {"hash of conv": "a", "hash of pool": "a", "hash of other": "x"}

    found = lineups(decided, [selection(), one_rival], most=5)

    assert [{**decided, "hash of conv": "b", "hash of pool": "b"}, {**decided, "hash of conv": "c"}] == found
    assert found[:1] == lineups(decided, [selection(), one_rival], most=1)


@pytest.mark.parametrize(("share_sec", "builds"), [(5.9, None), (6.0, 0), (8.9, 0), (9.0, 1), (12.0, 2)])
def test_builds_are_as_many_as_their_share_pays_for(share_sec: float, builds: int | None) -> None:
    """The share first pays for the build of the winners and the measuring of existing builds."""
    assert builds == affordable(share_sec, compile_sec=2.0, measure_sec=1.0)


def test_calls_of_one_workload_are_averaged_and_the_machines_own_left_out() -> None:
    """The average covers cold and warm calls of a kernel in the model, each by its shortest run."""
    calls = [
        OperatorCall(function=name, min_sec=sec, median_sec=9.0)
        for name, sec in (("conv", 1.0), ("vm.builtin.alloc_tensor", 5.0), ("conv", 3.0))
    ]

    assert {"hash of conv": 2.0} == secs_in_place(calls, [workload()])


def rounds(**secs: float) -> list[tuple[dict[str, str], dict[str, float]]]:
    """Return rounds in which schedules took so long; "static" is the build without records."""
    return [
        ({} if trace == "static" else {"hash of conv": trace}, {"hash of conv": sec})
        for trace, sec in secs.items()
        for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("secs", "chosen", "is_slower"),
    [
        ({"a": 1.5, "static": 2.1, "b": 1.2}, "b", False),
        ({"a": 1.5, "static": 1.1, "b": 1.2}, "static", False),
        ({"a": 1.50, "static": 1.49, "b": 1.6}, "a", True),
        ({"b": 0.5}, "a", False),
        ({}, "a", False),
    ],
)
def test_the_fastest_in_place_is_chosen_if_it_is_clearly_faster(
    secs: dict[str, float], chosen: str, is_slower: bool
) -> None:
    """Two timings of one kernel differ by a percent; an option that did not run decides nothing."""
    placed = place(selection(), rounds(**secs))

    assert chosen == placed.chosen.trace_json
    assert is_slower is placed.is_slower_in_place
    report = report_placed(placed, is_confirmed=False)
    assert [True, False, False, False] == [option.is_chosen for option in report.options]


def test_one_disturbed_round_does_not_decide() -> None:
    """The median of the rounds counts."""
    disturbed = [({"hash of conv": "a"}, {"hash of conv": 9.0}), *rounds(a=1.0, b=1.3)]

    assert "a" == place(selection(), disturbed).chosen.trace_json


@pytest.mark.parametrize(
    ("traces", "trials_before", "is_chosen", "expected"),
    [
        ((), 0, True, False),
        (("static",), 0, True, False),
        (("static", "a"), 0, True, True),
        (("static",), 3, True, True),
        (("static",), 0, False, True),
    ],
    ids=["unscheduled", "static", "trial", "earlier trials", "other workload"],
)
def test_a_model_with_one_schedule_for_each_operator_has_no_alternatives(
    traces: tuple[str, ...], trials_before: int, is_chosen: bool, expected: bool
) -> None:
    """Trials of this or an earlier job make some, and so may workloads that were not chosen."""
    records = [Observation(workload="hash of conv", run_sec=1.0, trace_json=trace) for trace in traces]
    item = WorkloadProgress(workload=workload(), trials_before=trials_before, records=records)
    others = [] if is_chosen else [workload("dense")]

    assert have_alternatives([item], [workload(), *others]) is expected
