"""A job uses the trials that other jobs make of its workloads meanwhile."""

from __future__ import annotations

import math

from fleet.domain.observation import Observation
from fleet.optimizer.core import events as ev
from tests.unit.optimizer_core import Script, build, find, known, proposals, secs


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


def test_trials_claimed_beside_another_job_are_shared_with_it() -> None:
    """Its name is stored with each of them, and the next search and its builds count for both."""
    job = Script(known(untuned_sec=10.0))
    job.run(ev.Proposed("w", proposals("a", "b"), shared_with=frozenset({"jobs/2"})))
    job.run(ev.BatchWanted("w", ("a", "b")))

    [proposing] = find(job.feed(ev.RoundWanted()), ev.Propose)

    stored = [one for one in job.log if isinstance(one, ev.Store)]
    assert [one.candidate.shared_with for one in stored] == [{"jobs/2"}] * 2
    assert [one.shared_with for one in job.log if isinstance(one, ev.Build)] == [{"jobs/2"}]
    assert proposing.shared_with == {"jobs/2"}


def test_a_closed_workload_is_shared_until_its_last_trial_has_ended() -> None:
    """A job that searches it no more is not charged for the trials of others."""
    job = Script(known(untuned_sec=10.0))
    job.feed(ev.Proposed("w", proposals("a")))
    job.run(ev.EndWanted("the deadline"))
    assert job.core.searched_no_more() == frozenset()

    job.run(ev.Built("w", "a", build("a")))
    job.run(ev.BatchWanted("w", ("a",)))

    assert job.core.searched_no_more() == {"w"}
