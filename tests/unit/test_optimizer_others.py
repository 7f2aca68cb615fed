"""A job uses the trials that other jobs make of its workloads meanwhile."""

from __future__ import annotations

import math

from fleet.cost_model.observation import Observation
from fleet.optimizer.core import events as ev
from tests.unit.optimizer_core import Script, find, known, secs


def seen(trace: str, run_sec: float) -> Observation:
    return Observation(workload="w", trace_json=trace, run_sec=run_sec)


def test_trials_of_another_job_train_the_search_and_may_be_the_best() -> None:
    """They count as earlier trials, and their gain is not credited to this job's next batch."""
    job = Script(known(untuned_sec=10.0))
    job.answer = secs({"own": 8.0, "next": 6.0})
    job.propose("own")

    job.core.learn_from_others(
        "w", [seen("theirs", 5.0), seen("failed", math.inf)], right={"theirs": 5.0}, refuted=set()
    )
    [proposing] = find(job.feed(ev.RoundWanted()), ev.Propose)

    item = job.core.workload("w")
    assert (item.best_trace, item.best_sec, item.judged_sec) == ("theirs", 5.0, 5.0)
    assert (item.trials, item.trials_before) == (1, 2)
    assert [record.trace_json for record in proposing.records] == ["own", "theirs", "failed"]


def test_a_candidate_that_turned_out_wrong_for_others_is_no_longer_the_best() -> None:
    """Searches do not build on its time any more. Own candidates stay as they are."""
    job = Script(known(untuned_sec=10.0))
    job.answer = secs({"own": 8.0})
    job.propose("own")
    job.core.learn_from_others("w", [seen("theirs", 5.0)], right={"theirs": 5.0, "own": 7.0}, refuted=set())

    job.core.learn_from_others("w", [], right={"own": 7.0}, refuted={"theirs", "own"})

    item = job.core.workload("w")
    assert item.right == {"own": 8.0}
    assert [(record.trace_json, record.run_sec) for record in item.records] == [("own", 8.0), ("theirs", math.inf)]


def test_a_trial_that_is_known_is_not_counted_twice() -> None:
    """The same candidate may be read again after the library was away."""
    job = Script(known(untuned_sec=10.0))

    for _ in range(2):
        job.core.learn_from_others("w", [seen("theirs", 5.0)], right={"theirs": 5.0}, refuted=set())

    item = job.core.workload("w")
    assert (item.trials_before, len(item.records)) == (1, 1)
