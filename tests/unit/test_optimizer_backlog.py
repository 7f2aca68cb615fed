"""Candidates are searched ahead of their turn, so that predictions exist in time and devices do not wait."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleet.domain.observation import Observation
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Backlog, Candidate
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.planning import plan
from fleet.optimizer.core.progress import WorkloadProgress
from tests.unit.optimizer_core import Script, conditions, proposals, workload

SPREAD_OUT = [Observation(workload="w", trace_json=f"old {number}", run_sec=1.0 + 0.1 * number) for number in range(12)]


def begun(name: str) -> WorkloadProgress:
    """Return a workload that is known well enough for its gains to be estimated."""
    return WorkloadProgress(
        workload=workload(name), right={"best": 1.0}, untuned_sec=9.0, records=list(SPREAD_OUT), batches=2
    )


def expecting(digest: str, *secs: float) -> Candidate:
    """Return a candidate for which each member of a model predicts one of these times."""
    return Candidate(digest=digest, trace_json=digest, log_secs=np.log(np.array(secs, np.float32)))


def chosen(effects: list[ev.Effect]) -> list[tuple[str, list[str]]]:
    return [(one.workload, [each.digest for each in one.proposals]) for one in effects if isinstance(one, ev.Claim)]


def asked(effects: list[ev.Effect]) -> list[str]:
    return [one.workload for one in effects if isinstance(one, ev.Propose)]


def test_a_candidate_is_claimed_when_it_is_chosen() -> None:
    """Found candidates enter the backlog unclaimed; a batch takes the first of them, and the rest stays."""
    job = Script()
    job.feed(ev.RoundWanted())

    found = job.feed(ev.Found("w", proposals(*"abcdef")))

    assert found == []
    assert not job.core.workload("w").under_way
    assert chosen(job.feed(ev.RoundWanted())) == [("w", list("abcd"))]
    assert [one.digest for one in job.core.workload("w").backlog.candidates] == list("ef")


def test_a_newer_search_replaces_the_backlog() -> None:
    """Dropped candidates were never claimed; candidates under way by then are not taken again."""
    job = Script()
    job.find(*"abcdefgh")
    job.run(ev.RoundWanted())

    job.find(*"defx")

    assert [one.digest for one in job.core.workload("w").backlog.candidates] == list("efx")
    assert job.core.workload("w").under_way == set("abcd")


def test_the_backlog_serves_batches_during_a_search() -> None:
    """During a search ahead, the workload's next batch comes from the previous search, although that knew less."""
    job = Script()
    job.find(*"abcdefgh")
    job.run(ev.RoundWanted())
    job.run(ev.BatchWanted("w", list("abcd")))

    assert asked(job.feed(ev.AheadWanted())) == ["w"]
    assert asked(job.feed(ev.AheadWanted())) == []
    assert chosen(job.feed(ev.RoundWanted())) == [("w", list("efgh"))]


def test_candidates_are_not_taken_twice_while_they_are_claimed() -> None:
    """A search that ends before the claim is answered knows nothing of it.

    Before, its candidates entered the backlog and were measured twice, or the job failed with a KeyError.
    """
    job = Script()
    job.find(*"abcdefgh")
    job.run(ev.RoundWanted())
    job.run(ev.BatchWanted("w", list("abcd")))
    job.feed(ev.AheadWanted())
    assert chosen(job.feed(ev.RoundWanted())) == [("w", list("efgh"))]

    job.feed(ev.Found("w", proposals(*"efghij")))
    job.run(ev.Proposed("w", proposals(*"efgh")))

    assert [one.digest for one in job.core.workload("w").backlog.candidates] == list("ij")


def test_a_backlog_two_batches_old_is_dropped() -> None:
    """Too many results came since: the next batch waits for a search."""
    job = Script()
    job.find(*"abcdefghijklmnop")
    for batch in ("abcd", "efgh", "ijkl"):
        job.run(ev.RoundWanted())
        job.run(ev.BatchWanted("w", list(batch)))

    assert asked(job.feed(ev.RoundWanted())) == ["w"]


def test_where_cores_are_shared_a_batch_knows_all_results() -> None:
    """A search on shared cores stops all measuring, so a batch of an older search would gain no time."""
    job = Script(shares_cores=True)
    job.find(*"abcdefgh")
    job.run(ev.RoundWanted())
    job.run(ev.BatchWanted("w", list("abcd")))

    effects = job.feed(ev.RoundWanted())

    assert (chosen(effects), asked(effects)) == ([], ["w"])


def test_where_cores_are_shared_one_workload_alone_is_searched_while_its_batch_is_built() -> None:
    """Its search uses one core, so the other core would idle: a batch knows all results but those of the last one."""
    job = Script(shares_cores=True, search_threads=2)
    job.find(*"abcdefgh")
    job.run(ev.RoundWanted())
    job.run(ev.BatchWanted("w", list("abcd")))

    assert chosen(job.feed(ev.RoundWanted())) == [("w", list("efgh"))]
    job.run(ev.Proposed("w", proposals(*"efgh")))
    assert asked(job.feed(ev.AheadWanted())) == ["w"]
    job.find(*"ijklmnop")
    job.run(ev.BatchWanted("w", list("efgh")))
    assert chosen(job.feed(ev.RoundWanted())) == [("w", list("ijkl"))]


def test_where_cores_are_shared_several_workloads_are_searched_with_all_results() -> None:
    """Several searches keep all cores busy side by side, so an old search would gain no time."""
    job = Script(begun("a"), begun("b"), shares_cores=True, search_threads=2)

    assert not job.core.searches_beside_builds
    job.core.workload("b").close(News(topic=Topic.EXHAUSTED))
    assert job.core.searches_beside_builds


def test_a_workload_without_waiting_devices_gets_whole_batches() -> None:
    """A smaller one would only cost another search, and another way to the device and back."""
    counts = []
    for others in ([], [begun("b")]):
        job = Script(begun("a"), *others, batch_size=16)
        job.run(ev.Found("a", tuple(expecting(f"a{n}", 0.9, 1.1) for n in range(32))))
        batches = plan(job.core.progress, job.core.conditions, 100, now_sec=0.0).batches
        counts.append(next(batch.count for batch in batches if batch.workload == "a"))

    assert counts[0] == 16 > counts[1]


def test_only_outdated_backlogs_are_searched_ahead() -> None:
    """Every open workload has a batch ahead, and none is searched again before it had a result."""
    job = Script(begun("a"), begun("b"))
    job.find("x", shash="a")

    assert asked(job.feed(ev.AheadWanted())) == ["b"]
    job.find("y", shash="b")
    assert asked(job.feed(ev.AheadWanted())) == []


def test_predictions_of_the_backlog_decide_the_next_workload() -> None:
    """The workload with the more promising backlog of two similar ones is next, with a forecast to match."""
    job = Script(begun("a"), begun("b"))
    job.run(ev.Found("a", tuple(expecting(f"a{n}", 1.9, 2.1) for n in range(8))))
    job.run(ev.Found("b", tuple(expecting(f"b{n}", 0.4, 0.6) for n in range(8))))

    (claim,) = chosen(job.feed(ev.RoundWanted()))

    assert claim[0] == "b"
    assert pytest.approx(0.5, abs=0.2) == job.core.workload("b").forecasts[-1]


def test_a_search_looks_further_ahead_with_each_batch() -> None:
    """Up to three batches after the next one beside a device of its own; one where a search costs device time."""
    counts: dict[bool, list[int]] = {}
    for shares_cores in (False, True):
        job = Script(shares_cores=shares_cores)
        for batch in ("abcd", "efgh", "ijkl", "mnop"):
            counts.setdefault(shares_cores, []).extend(
                one.ahead for one in job.feed(ev.RoundWanted()) if isinstance(one, ev.Propose)
            )
            job.find(*batch)
            job.run(ev.RoundWanted())
            job.run(ev.BatchWanted("w", list(batch)))

    assert counts == {False: [4, 4, 8, 12], True: [4, 4, 4, 4]}


def test_predictions_end_at_the_first_candidate_without_one() -> None:
    """Predictions stand in the order of the candidates, so they end at the first candidate without one."""
    backlog = Backlog(
        candidates=(expecting("a", 1.0, 2.0), expecting("b", 3.0, 4.0), Candidate(digest="c", trace_json="c"))
    )

    found = backlog.predictions()

    assert found is not None
    assert found.shape == (2, 2)
    assert pytest.approx(math.log(3.0)) == found[0, 1]
    assert Backlog(candidates=(Candidate(digest="c", trace_json="c"), expecting("a", 1.0))).predictions() is None


def test_builders_are_priced_by_their_measured_time() -> None:
    """The processor time of searches and builds is measured, not assumed."""
    job = Script(begun("a"), shares_cores=True)
    terms = conditions(shares_cores=True)
    before = plan(job.core.progress, terms, 100, now_sec=0.0).batches[0].reason
    for number in range(9):
        job.run(ev.Found("a", (Candidate(digest=f"{number}", trace_json="t"),), builder_sec=9.0))

    after = plan(job.core.progress, terms, 100, now_sec=0.0).batches[0].reason

    assert after.builder_sec > before.builder_sec
    assert after.worth < before.worth
