"""Proofs of times in a job: events in, effects out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fleet.domain.measuring import ErrorKind
from fleet.domain.proving import Proof, ProofVerdict
from fleet.optimizer.core import events as ev
from tests.unit.optimizer_core import Script, build, find, known, proposals, secs

PROVEN = Proof(verdict=ProofVerdict.PROVEN, claimed_sec=1.0, measured_sec=1.0, least_sec=0.8)
REFUTED = Proof(verdict=ProofVerdict.REFUTED, claimed_sec=1.0, measured_sec=20.0, message="it took longer")
OPEN = Proof(verdict=ProofVerdict.UNDECIDED, message="others had the processors")
IMPOSSIBLE = Proof(verdict=ProofVerdict.IMPOSSIBLE, message="a board of before")


def test_a_time_that_is_not_proven_is_not_the_best() -> None:
    """The record is marked, the user gets a message, and the next best is proven in turn."""
    job = Script()
    job.answer = secs({"a": 1.0, "b": 2.0, "c": 3.0})
    job.proofs = {"a": REFUTED, "b": PROVEN}

    job.propose("a", "b", "c")

    item = job.core.workload("w")
    assert [check.claimed_sec for check in find(job.log, ev.CheckOutputs)] == [1.0, 2.0]
    assert job.happened(ev.KeepProof) == [ev.KeepProof("w", "a", REFUTED), ev.KeepProof("w", "b", PROVEN)]
    assert (item.best_trace, item.is_proven, item.errors[ErrorKind.TIME_NOT_PROVEN]) == ("b", True, 1)
    assert [record.run_sec for record in item.records] == [math.inf, 2.0, 3.0]
    assert job.notices == [
        "w: a candidate is discarded because its time is not proven: it claimed 1 s, and took 20 s by the agent's "
        "clock; it took longer"
    ]


def test_a_time_below_all_that_the_device_can_is_refused_at_once() -> None:
    """A nanosecond is too short for a million operations, so the device runs no proof."""
    job = Script()
    job.core.workload("w").floor_sec = 0.5
    job.answer = secs({"a": 1e-9, "b": 2.0})

    job.propose("a", "b")

    assert [check.candidate.digest for check in find(job.log, ev.CheckOutputs)] == ["b"]
    assert [kept.trace_json for kept in find(job.log, ev.KeepProof)] == ["a"]
    assert job.core.workload("w").best_trace == "b"


def test_schedules_of_earlier_jobs_are_proven_at_the_end() -> None:
    """The best is proven, and the next best after a refutation. Proven schedules are not proven again."""
    job = Script(known(right={"x": 1.0, "y": 2.0, "z": 3.0}, untuned_sec=9.0))
    job.proofs = {"x": REFUTED, "y": PROVEN}

    job.run(ev.ProofWanted("w"))
    job.run(ev.ProofWanted("w"))

    item = job.core.workload("w")
    assert [asked.trace_json for asked in find(job.log, ev.Prove)] == ["x", "y"]
    assert (item.best_trace, item.is_proven) == ("y", True)


@pytest.mark.parametrize("proof", [OPEN, IMPOSSIBLE])
def test_an_undecided_proof_is_reported_and_its_schedule_used(proof: Proof) -> None:
    """A busy machine, or a board without the means, refutes nothing; an undecided proof is repeated once at the end."""
    job = Script(known(untuned_sec=9.0))
    job.proofs = {"a": proof}

    job.propose("a")
    job.run(ev.ProofWanted("w"))
    job.run(ev.ProofWanted("w"))

    item = job.core.workload("w")
    assert (item.best_trace, item.is_proven, item.unprovable) == ("a", False, proof.message)
    assert len(find(job.log, ev.Prove)) == (1 if proof is OPEN else 0)
    assert find(job.log, ev.KeepProof) == []


def test_static_schedules_need_no_proof() -> None:
    """Rules choose them, and their code is the fleet's own: proofs of all took a third of a job without trials."""
    job = Script(known(untuned_sec=9.0))
    job.answer = secs({"s": 1.0})
    job.proofs = {"s": PROVEN}
    job.run(ev.Proposed("w", proposals("s"), is_static=True))
    job.run(ev.BatchWanted("w", ("s",)))

    job.run(ev.ProofWanted("w"))

    item = job.core.workload("w")
    assert [check.claimed_sec for check in find(job.log, ev.CheckOutputs)] == [0.0]
    assert find(job.log, ev.Prove) == []
    assert (item.best_trace, item.needs_proof, item.is_proven) == ("s", False, False)


def test_a_trial_that_beats_the_static_schedule_is_proven() -> None:
    """A trial that becomes the best by its time needs a proof."""
    job = Script(known(untuned_sec=9.0))
    job.answer = secs({"s": 1.0, "a": 0.5})
    job.proofs = {"a": replace(PROVEN, least_sec=0.4)}
    job.run(ev.Proposed("w", proposals("s"), is_static=True))
    job.run(ev.BatchWanted("w", ("s",)))

    job.propose("a")

    item = job.core.workload("w")
    assert [check.claimed_sec for check in find(job.log, ev.CheckOutputs)] == [0.0, 0.5]
    assert (item.best_trace, item.needs_proof) == ("a", False)


def test_a_candidate_of_this_job_is_not_built_again_for_its_proof() -> None:
    """A candidate of an earlier job is built again."""
    job = Script(known("v", right={"x": 1.0}, untuned_sec=9.0), known(untuned_sec=9.0))
    job.proofs = {"a": OPEN, "x": OPEN}
    job.propose("a")

    job.run(ev.ProofWanted("w"))
    job.run(ev.ProofWanted("v"))

    ours, other = find(job.log, ev.Prove)
    assert (ours.trace_json, ours.build) == ("a", build("a"))
    assert (other.trace_json, other.build) == ("x", None)


def test_a_newer_time_that_is_shorter_than_the_proven_one_is_proven_again() -> None:
    """A run-off may find such a time."""
    job = Script(known(right={"x": 0.5}, proven={"x": 0.8}, untuned_sec=9.0))
    job.proofs = {"x": replace(PROVEN, least_sec=0.4)}

    job.run(ev.ProofWanted("w"))

    assert [asked.claimed_sec for asked in find(job.log, ev.Prove)] == [0.5]
    assert job.core.workload("w").is_proven
