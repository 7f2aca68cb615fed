"""A candidate's life: events in, effects out. Every event is followed by a check of all invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleet.domain.measuring import ErrorKind, Measurement
from fleet.domain.observation import Observation
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate, CandidateStage
from fleet.optimizer.core.invariants import broken_invariants
from fleet.optimizer.core.job import BASELINE
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.prioritizer.values import BatchOutcome
from fleet.optimizer.reporting import report_batches
from tests.unit.optimizer_core import Script, build, find, known, proposals, secs, why_closed, workload

LATE_GAIN = np.log([2.0] * 12 + [0.3] * 4).astype(np.float32)
"""Predictions for the next candidates of a workload that takes 1 s: three batches of four gain nothing."""


def test_a_candidate_goes_through_its_stages() -> None:
    """A candidate is proposed, built, measured, stored, checked, and then the best: each step has its effect."""
    job = Script()

    made = proposals("a", trace="trace")
    assert [effect.proposals for effect in find(job.feed(ev.Proposed("w", made)), ev.Build)] == [made]
    assert job.feed(ev.Built("w", "a", build("a"))) == []
    (measure,) = job.feed(ev.BatchWanted("w", ["a"]))
    assert isinstance(measure, ev.Measure)
    assert [trial.candidate_id for trial in measure.trials] == ["a"]
    result = Measurement(candidate_id="a", run_secs=(2.0,))
    (store,) = job.feed(ev.Measured(measure.batch, "devices/pi", result))
    assert isinstance(store, ev.Store)
    assert (store.candidate, store.measurement) == (job.core.candidates["w", "a"], result)
    job.store(ev.Stored(store, 7, 1.5))
    assert job.feed(ev.MeasureEnded(measure.batch, "devices/pi", 1.0)) == [
        ev.CheckOutputs(job.core.candidates["w", "a"], claimed_sec=2.0)
    ]
    assert job.feed(ev.Checked("w", "a", ev.Verdict.RIGHT)) == [ev.MarkChecked(7)]

    item = job.core.workload("w")
    assert (item.best_sec, item.best_trace, item.trials) == (2.0, "trace", 1)
    assert job.core.candidates["w", "a"].stage is CandidateStage.CHECKED
    assert job.core.progress.first_trial_sec == 1.5


def test_a_result_counts_when_it_is_stored() -> None:
    """A job that is killed between measuring and storing has not counted a result that is lost."""
    job = Script()
    job.run(ev.Proposed("w", proposals("a")))
    (measure,) = job.feed(ev.BatchWanted("w", ["a"]))
    assert isinstance(measure, ev.Measure)

    (store,) = job.feed(ev.Measured(measure.batch, "", Measurement(candidate_id="a", run_secs=(2.0,))))
    assert isinstance(store, ev.Store)
    item = job.core.workload("w")
    assert (item.trials, item.under_way, item.records) == (0, {"a"}, [])
    job.store(ev.Stored(store, 1, 0.0))
    assert (item.trials, item.under_way, len(item.records)) == (1, set(), 1)


def test_a_failed_build_is_a_failed_trial() -> None:
    """It is stored and never measured."""
    job = Script()
    job.unbuildable.add("b")

    job.propose("a", "b")

    item = job.core.workload("w")
    assert job.rounds == [["a"]]
    assert (item.trials, dict(item.errors)) == (2, {ErrorKind.BUILD_FAILED: 1})
    assert [record.run_sec for record in item.records] == [math.inf, 1.0]


def test_a_batch_without_a_built_candidate_gains_zero() -> None:
    """Its expected gain is not compared with the next batch's result: that shifted the forecasts of all later
    batches.
    """
    records = [
        Observation(workload="w", trace_json=f"old {number}", run_sec=1.0 + 0.1 * number) for number in range(12)
    ]
    job = Script(known(untuned_sec=1.0, records=records, trials_before=12))
    job.unbuildable = set("abcd")
    job.find(*"abcd")

    job.run(ev.RoundWanted())

    item, (batch,) = job.core.workload("w"), job.core.progress.decisions
    assert batch.expected_share > 0
    assert item.outcomes == [BatchOutcome(expected=batch.expected_share, gained=0.0)]
    assert not item.forecasts


def test_no_more_trials_are_planned_than_there_are() -> None:
    """Trials under way count, also when the next round is planned during a measurement."""
    job = Script(total=6)

    (first,) = find(job.feed(ev.RoundWanted()), ev.Propose)
    job.find(*"abcd")
    job.run(ev.RoundWanted())
    (second,) = find(job.feed(ev.RoundWanted()), ev.Propose)
    job.find(*"efg")
    (last,) = find(job.feed(ev.RoundWanted()), ev.Claim)

    assert (first.count, second.count) == (4, 2)
    assert second.known == frozenset("abcd")
    assert [one.digest for one in last.proposals] == ["e", "f"]
    assert job.feed(ev.RoundWanted()) == []


def test_a_search_without_a_result_closes_its_workload() -> None:
    """A failing search closes its workload, too, with a notice for the user; the others go on."""
    job = Script(known("a"), known("b"))

    job.run(ev.Found("a", ()))
    job.run(ev.SearchFailed("b", "killed"))

    assert [why_closed(item) for item in job.core.progress.workloads] == [
        "no new candidates are left to try",
        "its search failed: killed",
    ]
    assert job.notices == ["b gets no more trials: its search failed: killed"]
    assert job.feed(ev.RoundWanted()) == []


def test_a_static_schedule_is_stored_as_one_and_is_no_trial() -> None:
    """Its record replaces that of an earlier job's trial in the search."""
    job = Script(known(trials_before=1, records=[Observation(workload="w", trace_json="s", run_sec=9.0)]))

    job.run(ev.Proposed("w", proposals("s"), is_static=True))
    job.run(ev.BatchWanted("w", ["s"]))
    job.propose("a")

    stored = [store.candidate for store in job.happened(ev.Store) if isinstance(store, ev.Store)]
    assert [(one.digest, one.is_static) for one in stored if not one.is_baseline] == [("s", True), ("a", False)]
    item = job.core.workload("w")
    assert (item.trials, item.static_sec) == (1, 1.0)
    assert [record.trace_json for record in item.records] == ["s", "a"]


def test_a_static_schedule_that_broke_a_device_is_not_sent_to_one_again() -> None:
    """Later jobs search without it instead of crashing the device at their start."""
    job = Script(known(poison=frozenset({"static"})))

    job.run(ev.Proposed("w", proposals("static"), is_static=True))

    assert not job.happened(ev.Build)
    assert find(job.feed(ev.RoundWanted()), ev.Propose)


def test_a_workload_is_left_alone_when_it_has_had_enough() -> None:
    """Trials of all jobs count."""
    job = Script(known(trials_before=100))

    assert job.feed(ev.RoundWanted()) == []
    assert "the library has 100 trials of it" in why_closed(job.core.workload("w"))


def test_searches_side_by_side_are_of_different_workloads() -> None:
    """No search is started if each workload has one; a failed search leaves the others alone."""
    job = Script(known("a"), known("b"))

    asked = [propose for _ in range(3) for propose in find(job.feed(ev.RoundWanted()), ev.Propose)]
    job.find("x", shash="a")
    job.run(ev.SearchFailed("b", "killed"))

    assert [propose.workload for propose in asked] == ["a", "b"]
    [chosen] = find(job.feed(ev.RoundWanted()), ev.Claim)
    assert (chosen.workload, [one.digest for one in chosen.proposals]) == ("a", ["x"])


def test_the_cost_model_learns_when_there_is_something_new() -> None:
    """The model learns once for each batch."""
    job = Script(known(), known("v"))
    job.propose("a", "b")

    kinds = [[type(effect) for effect in job.feed(ev.RoundWanted())] for _ in range(2)]

    assert kinds == [[ev.Learn, ev.Propose], [ev.Propose]]


@pytest.mark.parametrize(("has_prior", "snapshot", "trains"), [(True, "", 0), (False, "", 1), (False, "sha256:0", 0)])
def test_own_trees_are_trained_without_a_better_model(has_prior: bool, snapshot: str, trains: int) -> None:
    """A model of such targets, together with the records themselves, replaces the trees."""
    job = Script(has_prior=has_prior)
    job.core.use_snapshot(snapshot)
    job.propose("a", "b")

    job.run(ev.RoundWanted())

    assert len(job.happened(ev.Learn)) == trains


def test_a_wrong_candidate_is_marked_and_the_next_one_checked() -> None:
    """The search records a failure and the user gets a notice; candidates slower than the best are not checked
    at all.
    """
    job = Script()
    job.answer = secs({"a": 1.0, "b": 2.0, "c": 3.0})
    job.verdicts["a"] = ev.Verdict.WRONG

    job.propose("a", "b", "c")

    item = job.core.workload("w")
    checks = [check for check in job.happened(ev.CheckOutputs) if isinstance(check, ev.CheckOutputs)]
    assert [check.candidate.digest for check in checks] == ["a", "b"]
    assert job.happened(ev.MarkWrong) == [ev.MarkWrong(1, "off by 3")]
    assert (item.best_trace, item.errors[ErrorKind.WRONG_OUTPUT]) == ("b", 1)
    assert [record.run_sec for record in item.records] == [math.inf, 2.0, 3.0]
    assert job.notices == ["w: a candidate gives wrong results and is discarded: off by 3"]


@pytest.mark.parametrize("verdict", [ev.Verdict.LOST, ev.Verdict.NOT_CHECKED])
def test_a_candidate_without_a_verdict_is_neither_wrong_nor_the_best(verdict: ev.Verdict) -> None:
    """Such a candidate is out of the competition, and not marked."""
    job = Script()
    job.verdicts["a"] = verdict

    job.propose("a")

    item = job.core.workload("w")
    assert (item.best_trace, dict(item.errors)) == (None, {})
    assert not job.happened(ev.MarkWrong)
    assert not job.happened(ev.MarkChecked)


def test_a_run_off_decides_for_its_runners() -> None:
    """The old best is judged by its new time, since it ran again."""
    job = Script()
    job.answer = secs({"a": [1.0, 1.5], "b": [1.1, 1.2], "c": [1.2, 9.0], "d": 5.0})
    job.propose("a", "b", "c", "d")

    job.run(ev.RunOffWanted("w"))

    item = job.core.workload("w")
    assert sorted(job.rounds[-1]) == ["a", "b", "c"]
    assert (item.best_trace, item.best_sec) == ("b", 1.2)
    assert item.trials == 4


def test_a_best_of_an_earlier_job_stays_unless_it_is_beaten() -> None:
    """The earlier best did not run, so its time stands."""
    job = Script(known(right={"old": 0.5}))
    job.propose("a")

    job.run(ev.RunOffWanted("w"))

    item = job.core.workload("w")
    assert (item.best_trace, item.best_sec) == ("old", 0.5)


def test_the_unscheduled_program_runs_off_too() -> None:
    """A schedule that was lucky beside a disturbed baseline is not used: a model is never made slower than it was."""
    job = Script()
    job.build_baseline()
    job.answer = secs({"w": 2.0, "a": [1.0, 1.1], BASELINE: 0.9})
    job.run(ev.BaselinesWanted(["w"]))
    job.propose("a")

    assert job.core.workload("w").uses_schedule
    job.run(ev.RunOffWanted("w"))

    item = job.core.workload("w")
    assert job.rounds[-1] == ["a", BASELINE]
    assert (item.untuned_sec, item.best_sec, item.uses_schedule) == (0.9, 1.1, False)
    assert (item.current_sec, item.speedup) == (0.9, 1.0)


def test_a_baseline_far_behind_stays_out_of_the_run_off() -> None:
    """A baseline far behind has no chance, so measuring it would waste time."""
    job = Script()
    job.build_baseline()
    job.answer = secs({"w": 20.0, "a": 1.0})
    job.run(ev.BaselinesWanted(["w"]))
    job.propose("a")

    job.run(ev.RunOffWanted("w"))

    assert job.rounds[-1] == ["a"]
    assert job.core.workload("w").uses_schedule


def test_a_schedule_that_is_slower_than_none_is_not_used() -> None:
    """That holds without a run-off, too."""
    assert not known(untuned_sec=1.0, right={"a": 2.0}).uses_schedule
    assert known(untuned_sec=2.0, right={"a": 1.0}).uses_schedule
    assert known(right={"a": 1.0}).uses_schedule
    assert not known(untuned_sec=1.0).uses_schedule


@pytest.mark.parametrize(("losses", "is_timed"), [(1, True), (2, False)])
def test_a_baseline_is_timed_again_when_the_device_went_away(losses: int, is_timed: bool) -> None:
    """One loss does not close a workload; a second one does."""
    job = Script()
    job.build_baseline()
    lost = Measurement(candidate_id="w", error=ErrorKind.DEVICE_FAULTED)
    job.answer = lambda number, trial: lost if number <= losses else Measurement(candidate_id="w", run_secs=(1.0,))

    job.run(ev.BaselinesWanted(["w"]))

    item = job.core.workload("w")
    assert math.isfinite(item.untuned_sec) is is_timed
    assert bool(item.closing) is not is_timed


def test_an_unscheduled_program_is_stopped_at_ten_times_the_best_one() -> None:
    """It has a bound instead of a time, and the search continues. Without a best schedule, the usual limit applies."""
    job = Script(known(right={"a": 0.5}), known("v"))
    job.answer = lambda number, trial: Measurement(candidate_id=trial.candidate_id, error=ErrorKind.TIMEOUT)
    for shash in "wv":
        job.build_baseline(shash)

    job.run(ev.BaselinesWanted(["w", "v"]))

    bounded, unknown = job.core.workload("w"), job.core.workload("v")
    assert (bounded.untuned_sec, bounded.is_untuned_above, why_closed(bounded)) == (5.0, True, "")
    assert bounded.uses_schedule
    assert why_closed(unknown).startswith("its unscheduled program failed: TIMEOUT")
    [measure] = find(job.log, ev.Measure)
    assert [trial.timeout_sec for trial in measure.trials] == [15.0, 60.0]


@pytest.mark.parametrize(
    ("untuned_sec", "is_disturbed", "rounds"), [(1.2, False, 1), (1.5, False, 0), (1.5, True, 1), (2.5, True, 0)]
)
def test_a_static_schedule_runs_off_against_a_baseline_that_is_close_only(
    untuned_sec: float, is_disturbed: bool, rounds: int
) -> None:
    """Both were timed a moment before: a factor of 1.5 is significant unless a disturbance was noticed."""
    job = Script(known(untuned_sec=untuned_sec, is_untuned_disturbed=is_disturbed))
    job.build_baseline()
    job.run(ev.Proposed("w", proposals("s"), is_static=True))
    job.run(ev.BatchWanted("w", ("s",)))
    before = len(job.rounds)

    job.run(ev.RunOffWanted("w"))

    assert len(job.rounds) - before == rounds


@pytest.mark.parametrize(("model_sec", "is_disturbed", "rounds"), [(150, False, 1), (250, False, 0), (250, True, 1)])
def test_a_static_schedule_without_weight_in_the_model_has_no_run_off(
    model_sec: float, is_disturbed: bool, rounds: int
) -> None:
    """Below half a percent of the model, the calm times that are known decide."""
    large = known("large", untuned_sec=model_sec, right={"a": model_sec})
    job = Script(known(untuned_sec=1.2, is_untuned_disturbed=is_disturbed), large)
    job.build_baseline()
    job.run(ev.Proposed("w", proposals("s"), is_static=True))
    job.run(ev.BatchWanted("w", ("s",)))
    before = len(job.rounds)

    job.run(ev.RunOffWanted("w"))

    assert len(job.rounds) - before == rounds


def test_an_unscheduled_program_stops_in_the_run_off_once_it_is_behind() -> None:
    """One repeat shows that it is a tenth slower than the best candidate; that one has all repeats."""
    job = Script(known(untuned_sec=1.5))
    job.build_baseline()
    job.answer = secs({"a": 1.0, "b": 1.2, BASELINE: 1.5})
    job.propose("a", "b")

    job.run(ev.RunOffWanted("w"))

    *candidates, baseline = find(job.log, ev.Measure)[-1].trials
    assert baseline.evaluator.give_up_above_sec == pytest.approx(1.1)
    assert [trial.evaluator.give_up_above_sec for trial in candidates] == [0, 0]
    assert {trial.evaluator.repeat for trial in (*candidates, baseline)} == {5}


def test_broken_rules_are_found() -> None:
    """The check of the invariants can fail."""
    job = Script()
    job.propose("a")
    job.core.progress.trials_total = 0
    job.core.candidates["w", "a"].record_id = None

    assert len(broken_invariants(job.core)) == 2


def test_candidates_of_another_job_are_excluded_from_the_search() -> None:
    """No candidate of the batch was free, but the workload is not exhausted: the next search leaves these out."""
    script = Script()
    script.core.begin_search()
    script.taken = {"a", "b"}
    script.run(ev.RoundWanted())
    script.find("a", "b")
    script.run(ev.RoundWanted())

    [proposing] = find(script.feed(ev.RoundWanted()), ev.Propose)

    assert proposing.known == {"a", "b"}
    assert not script.core.workload("w").closing


def test_a_job_ends_when_its_deadline_comes_or_its_target_is_reached() -> None:
    """No search starts any more, and each workload has the reason."""
    late, fast = Script(), Script(target_sec=2.0)
    for script in (late, fast):
        script.build_baseline()
        script.run(ev.BaselinesWanted(["w"]))
        script.core.begin_search()
    late.run(ev.EndWanted("the deadline has come"))

    for script, why in ((late, "deadline"), (fast, "target of 2000 ms")):
        assert not find(script.feed(ev.RoundWanted()), ev.Propose)
        assert why in why_closed(script.core.workload("w"))


def test_no_batch_is_planned_past_the_deadline() -> None:
    """Shortly before it only measurable batches are considered, and none from then on; the user is notified once."""
    records = [
        Observation(workload="w", trace_json=f"old {number}", run_sec=1.0 + 0.1 * number) for number in range(12)
    ]
    facts = {"untuned_sec": 1.0, "records": records, "trials_before": 12}
    calm, hurried = (Script(known(**facts), deadline_sec=end) for end in (1_000.0, 10.0))

    ahead = [Candidate(digest=f"{n}", trace_json=f"{n}", log_secs=LATE_GAIN[n : n + 1]) for n in range(len(LATE_GAIN))]
    for job in (calm, hurried):
        job.run(ev.Found("w", tuple(ahead)))
        job.run(ev.RoundWanted(now_sec=9.5))
    late = Script(known(**facts), deadline_sec=10.0)

    far, near = (job.core.progress.decisions[0].reason for job in (calm, hurried))
    assert (near.horizon, far.horizon) == (1, 4)
    assert late.feed(ev.RoundWanted(now_sec=10.0)) == late.feed(ev.AheadWanted(now_sec=11.0)) == []
    for _ in range(2):
        late.run(ev.EndWanted("its 3 minutes are over"))
    assert why_closed(late.core.workload("w")) == "its 3 minutes are over"
    assert not late.core.has_trials_left, "so nobody waits for a search that still goes on"
    assert late.notices == [
        "its 3 minutes are over: the search ends; the best schedules so far are compared and stored"
    ]


def test_a_job_publishes_its_newest_decision() -> None:
    """The newest decision is described in words for `fleet jobs show` and the dashboard."""
    job = Script(known(untuned_sec=1.0))
    job.find(*"abcd")

    job.run(ev.RoundWanted())

    [decision] = report_batches(job.core.progress, job.core.progress.decisions)
    assert str(decision).startswith(f"4 candidates of {workload().operator}: first batch")


def test_workloads_that_matter_have_a_batch_each_before_one_has_two() -> None:
    """Timed static schedules do not count as first batches."""
    job = Script(*(WorkloadProgress(workload=workload(name)) for name in "abc"))
    job.answer = secs({"a static": 8.0, "b static": 1.0, "c static": 1.0, "a1": 9.0, "b1": 9.0, "c1": 9.0})
    for name in "abc":
        job.run(ev.Proposed(name, proposals(f"{name} static"), is_static=True))
        job.run(ev.BatchWanted(name, [f"{name} static"]))
        job.find(f"{name}1", *(f"{name} {number}" for number in range(9)), shash=name)

    for _ in range(3):
        job.run(ev.RoundWanted())

    assert sorted(batch.workload for batch in job.core.progress.decisions) == ["a", "b", "c"]


def test_unsent_candidates_of_a_suspected_device_can_be_proposed_again() -> None:
    """The batch ends with the crashed candidates; the others count as no trials and are not under way any more."""
    script = Script()
    script.run(ev.Proposed("w", proposals(*"abc")))
    [measure] = find(script.feed(ev.BatchWanted("w", "abc")), ev.Measure)
    crash = Measurement(candidate_id="a", error=ErrorKind.CRASHED)
    script.run(ev.Measured(measure.batch, "devices/d", crash))
    script.run(ev.MeasureEnded(measure.batch, "devices/d", 1.0, is_suspected=True))

    item = script.core.workload("w")
    assert (item.trials, item.under_way) == (1, set())
    assert "healthy" in script.notices[-1]
