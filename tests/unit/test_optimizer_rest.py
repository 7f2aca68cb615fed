"""A search ends once its rest should gain too little, and its user learns how much that is."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.measuring import ErrorKind
from fleet.domain.observation import Observation
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.planning import plan
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.prioritizer.prioritize import prioritize
from fleet.optimizer.prioritizer.values import (
    UNKNOWN_GAIN,
    BatchOutcome,
    DeviceState,
    Done,
    JobTerms,
    Plan,
    StaticQuality,
    WorkloadState,
)
from fleet.optimizer.prioritizer.worth import Prospect, rest_of
from fleet.optimizer.reporting import report_end, report_workload
from tests.unit.optimizer_core import Script, conditions, find, known, why_closed, workload

SPREAD_OUT = tuple(4.0 * 0.9**number for number in range(16))
FLAT = tuple(1.0 + 1e-9 * number for number in range(40))
ENDING = JobTerms(name="jobs/1", until_gain=0.005, look_sec=10.0)


def state(name: str, *run_secs: float, job: JobTerms = ENDING, **facts: object) -> WorkloadState:
    known: dict[str, object] = {"current_sec": min(run_secs), "batches": 5, "trials": 40, "trial_device_sec": 0.1}
    return WorkloadState(name=name, job=job, run_secs=run_secs, **(known | facts))  # type: ignore[arg-type]


def decide(*workloads: WorkloadState) -> Plan:
    return prioritize(workloads, {}, [DeviceState()], 0.0)


def test_the_time_ahead_goes_to_the_largest_gain_per_second() -> None:
    """The second workload gets the seconds that the first cannot use."""
    steep, slow = Prospect(rate=2.0, most_sec=4.0), Prospect(rate=0.5, most_sec=100.0)

    rest = rest_of([slow, steep], within_sec=10.0, latency_sec=80.0)

    assert (rest.gain_sec, rest.share) == (4.0 + 0.5 * 8.0, 0.1)


prospects = st.lists(st.builds(Prospect, rate=st.floats(0, 1e3), most_sec=st.floats(0, 1e3)), max_size=6)


@given(found=prospects, within_sec=st.floats(0, 1e3), order=st.randoms(use_true_random=False))
def test_a_rest_is_bounded(found: list[Prospect], within_sec: float, order: random.Random) -> None:
    """It is at most the sum of all prospects, at least the best one's gain, and no matter of their order."""
    gain_sec = rest_of(found, within_sec=within_sec, latency_sec=1.0).gain_sec

    assert gain_sec <= math.fsum(one.most_sec for one in found) * (1 + 1e-9)
    assert gain_sec >= max((min(one.most_sec, one.rate * within_sec) for one in found), default=0.0) * (1 - 1e-9)
    shuffled = order.sample(found, len(found))
    assert rest_of(shuffled, within_sec=within_sec, latency_sec=1.0).gain_sec == pytest.approx(gain_sec)


def test_a_job_ends_once_its_rest_should_gain_too_little() -> None:
    """All of its workloads are finished for that reason; without a limit none is."""
    plan = decide(state("a", *FLAT), state("b", *FLAT))

    assert [finish.done for finish in plan.finished.values()] == [Done.LITTLE_LEFT] * 2
    assert not plan.batches
    assert plan.rests["jobs/1"].share < ENDING.until_gain
    endless = JobTerms(name="jobs/1", look_sec=10.0)
    assert not decide(state("a", *FLAT, job=endless), state("b", *FLAT, job=endless)).finished


def test_a_job_goes_on_while_one_workload_should_gain() -> None:
    """The workloads without prospects keep their turns."""
    plan = decide(state("flat", *FLAT), state("steep", *SPREAD_OUT))

    assert not plan.finished
    assert plan.rests["jobs/1"].share > ENDING.until_gain


def test_the_rest_of_one_job_ends_no_other() -> None:
    """Each job has its own limit and latency."""
    one, other = (replace(ENDING, name=name, look_sec=1.0) for name in ("jobs/1", "jobs/2"))

    vain = (BatchOutcome(expected=0.2, gained=0.0),) * 5
    plan = decide(state("a", *FLAT, job=one, outcomes=vain), state("b", *SPREAD_OUT, job=other))

    assert list(plan.finished) == ["a"]
    assert [batch.workload for batch in plan.batches] == ["b"]


def test_each_relevant_workload_has_a_result_before_its_job_ends() -> None:
    """A workload above a hundredth of the latency without a result keeps the job open, even when it is busy."""
    untried: dict[str, object] = {"current_sec": 0.02, "batches": 1, "trials": 8, "is_tried": False}
    busy, tiny = (
        state("new", 0.02, **untried, is_busy=True),
        state("tiny", 0.001, **(untried | {"current_sec": 0.001})),
    )

    assert not decide(state("a", *FLAT), busy).finished
    assert "jobs/1" not in decide(state("a", *FLAT), busy).rests
    assert decide(state("a", *FLAT), tiny).finished.keys() == {"a", "tiny"}


def test_the_user_learns_once_that_a_search_ends_and_why() -> None:
    """The notice and the report have the trials, and the expected gain as a number."""
    records = [Observation(workload="w", trace_json=f"old {number}", run_sec=sec) for number, sec in enumerate(FLAT)]
    item = WorkloadProgress(workload=workload(), untuned_sec=2.0, trials_before=40, records=records)
    item.right["old 0"] = 1.0
    script = Script(item, total=400, until_gain=0.005)

    for _ in range(2):
        assert not find(script.feed(ev.RoundWanted()), ev.Propose)
    [notice] = [each.news for each in script.log if isinstance(each, ev.Notice)]

    assert "until-gain" in why_closed(item)
    assert (notice.count, notice.limit) == (0, 400)
    ended = report_end(script.core.progress)
    assert ended is not None
    assert (ended.trials_asked, ended.latency_us) == (400, pytest.approx(1e6 * workload().weight))
    assert 0 <= ended.gain_us < 0.005 * ended.latency_us
    assert not script.core.has_trials_left
    assert report_workload(item).note == "", "the job reports it once"


def test_a_kind_that_gained_nothing_gets_a_small_first_batch_or_none() -> None:
    """None where it takes a small part of the latency; then the job may end without it."""
    new: dict[str, object] = {"batches": 0, "trials": 0, "is_tried": False, "first_gain": 0.02}
    usual = replace(state("w", 1.0, **new), first_gain=UNKNOWN_GAIN)

    assert [batch.count for batch in decide(usual).batches] == [8]
    assert [batch.count for batch in decide(replace(usual, first_gain=0.02)).batches] == [4]
    assert decide(state("a", *FLAT), state("w", 0.1, **new)).finished.keys() == {"a", "w"}
    assert not decide(state("a", *FLAT), replace(usual, current_sec=0.1, run_secs=(0.1,))).finished


def test_a_job_learns_from_its_own_searches_which_kinds_gain_nothing() -> None:
    """After five searches without a gain, the next workload of their kind should gain a sixth of an unknown one.

    A gain among them, another kind, and earlier records of the kind count, too; failed trials are no search.
    """
    usual = StaticQuality(kind="conv2d")

    def expected(*gains: float, kind: str = "conv2d", failed: int = 0, earlier: StaticQuality = usual) -> float:
        searched = [
            known(
                f"w{number}",
                quality=replace(earlier, kind=kind),
                static_sec=1.0,
                right={"t": 1.0 - gain},
                trials=8,
                errors=Counter({ErrorKind.CRASHED: failed}),
            )
            for number, gain in enumerate(gains)
        ]
        new = known("new", quality=earlier, untuned_sec=1.0)
        job = JobProgress(workloads=[*searched, new])
        [batch] = [one for one in plan(job, conditions(), 100, 0.0).batches if one.workload == "new"]
        return batch.reason.gain_sec

    assert expected(*[0.0] * 5) == pytest.approx(UNKNOWN_GAIN / 6)
    assert expected(0.5, 0.0, 0.0, 0.0, 0.01) == pytest.approx((0.5 + UNKNOWN_GAIN) / 6)
    assert expected(*[0.0] * 5, kind="softmax") == expected(*[0.0] * 5, failed=1) == UNKNOWN_GAIN
    assert expected(0.0, earlier=StaticQuality(kind="conv2d", searched=3, improved=1, mean_gain=0.1)) == pytest.approx(
        (0.3 + UNKNOWN_GAIN) / 5
    )
