"""Search, build and learn as stateless tasks, on a small matrix product, in this process."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cross.targets.target import host_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.cost_model.feature_codec import NO_PROGRAM, pack_program
from fleet.cost_model.job_trees import JobTrees, learn
from fleet.cost_model.scoring import Ranker
from fleet.domain.keys import trace_digest
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Observation, no_features
from fleet.domain.origin import Origin, Source, has_decisions
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks import propose as proposing
from fleet.optimizer.tasks.evolution import Evolution, blind_population
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.recall import recall_programs
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of, workload_of

TARGET = host_target()
COUNT = 6


@pytest.fixture(scope="module")
def workload() -> Workload:
    return matmul(64)


@pytest.fixture(scope="module")
def proposals(workload: Workload) -> list[Candidate]:
    return propose(ProposeTask(mod_json=workload.mod_json, target=TARGET, count=COUNT, seed=3))


def copy_program(size: int) -> Workload:
    """Return a program without any choice."""
    from tvm import te

    source = te.placeholder((size,), name="A")
    return workload_of(te.create_prim_func([source, te.compute((size,), lambda i: source[i], name="B")]), name="copy")


@pytest.mark.slow
def test_first_round_samples_the_design_space(proposals: list[Candidate]) -> None:
    """Without records or a model there are as many different candidates as requested, and no predictions."""
    assert len({proposal.digest for proposal in proposals}) == COUNT
    assert all(proposal.digest == trace_digest(proposal.trace_json) for proposal in proposals)
    assert all(math.isnan(proposal.predicted) for proposal in proposals)


@pytest.mark.slow
def test_same_task_gives_the_same_proposals(workload: Workload, proposals: list[Candidate]) -> None:
    """A round can be repeated in another process: seed and records decide alone."""
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=COUNT, seed=3)
    again = propose(pickle.loads(pickle.dumps(task)))  # noqa: S301

    assert [proposal.digest for proposal in proposals] == [proposal.digest for proposal in again]


@pytest.mark.slow
def test_replayed_trace_is_the_candidate(workload: Workload) -> None:
    """The text of a trace carries all of a schedule, post-processing included: its replay is the same program."""
    import tvm

    evolution = Evolution(
        state=SearchState(workload.mod_json, TARGET),
        parents=(),
        ranker=Ranker(None, None, records=0),
        population=16,
        generations=1,
        most=COUNT,
        seed=5,
    )
    found = evolution.run()

    assert len(found) >= COUNT
    for one in found:
        assert one.schedule is not None
        replayed = replay(module_of(workload.mod_json), one.trace_json)
        tvm.ir.assert_structural_equal(one.schedule.mod, replayed.mod)
        assert "EnterPostproc" in one.trace_json
        assert has_decisions(one.trace_json)


@pytest.mark.slow
def test_a_workers_cache_does_not_change_proposals(workload: Workload) -> None:
    """A new worker proposes the same, from the own space and from MetaSchedule's rules."""
    kept = SearchState(workload.mod_json, TARGET)
    own = kept.with_features(list(itertools.islice(kept.own_space(), 24)), threads=1)
    records = [
        Observation(
            workload="w",
            trace_json=each.trace_json,
            origin=each.origin,
            run_sec=1e-3 + 1e-5 * n,
            features=no_features() if each.features is None else each.features,
        )
        for n, each in enumerate(own)
    ]
    task = ProposeTask(
        mod_json=workload.mod_json,
        target=TARGET,
        records=tuple(records),
        is_guided=True,
        count=8,
        ahead=4,
        population=24,
    )

    anew, again = propose(task, SearchState(workload.mod_json, TARGET)), propose(task, kept)

    assert anew == again
    assert next(kept.own_space()).features is own[0].features is not None
    assert 2 == sum(has_decisions(each.trace_json) for each in again[:8])
    assert all(has_decisions(each.trace_json) == (each.origin == Origin(source=Source.RULES)) for each in again)
    assert all(each.origin is not None and each.origin.knobs for each in again if not has_decisions(each.trace_json))
    assert 12 == len({each.digest for each in again} - {each.digest for each in own})
    for some in (again[:8], again[8:]):
        expected = [each.log_secs.mean() for each in some if each.log_secs is not None]
        assert len(some) == len(expected)
        assert expected == sorted(expected)


class Knowing(SearchState):
    """A state that must not replay a trace to identify its program."""

    def program_of(self, trace: str) -> int | None:
        raise AssertionError("the record says which program it is")


@pytest.mark.slow
def test_records_with_a_known_hash_are_not_replayed(workload: Workload, proposals: list[Candidate]) -> None:
    """A resumed job or search gets the programs' hashes from the library and makes the same proposals."""
    programs = recall_programs(workload.mod_json, TARGET, [proposal.trace_json for proposal in proposals])
    records = [
        Observation(workload="w", trace_json=proposal.trace_json, origin=proposal.origin, run_sec=1e-3)
        for proposal in proposals
    ]
    knowing = [replace(one, program=stored.number) for one, stored in zip(records, programs, strict=True)]
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=COUNT, records=tuple(records))

    replayed = propose(task, SearchState(workload.mod_json, TARGET))
    known = propose(replace(task, records=tuple(knowing)), Knowing(workload.mod_json, TARGET))

    assert replayed == known
    assert len(known) == COUNT


class Ruled(SearchState):
    """A state without an own space: all candidates come from MetaSchedule's rules."""

    def own_space(self) -> Iterator[Candidate]:
        return iter(())


@pytest.mark.slow
@pytest.mark.parametrize("explored", [0.0, 1.0])
def test_now_and_then_a_random_pick_of_the_rules_is_measured(
    workload: Workload, explored: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM returns random picks last, so keeping the first ones would never measure any."""
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=4, ahead=60, population=16)
    monkeypatch.setattr(proposing, "EXPLORED", 0.0)
    found = [one.digest for one in propose(task, Ruled(workload.mod_json, TARGET))]
    monkeypatch.setattr(proposing, "EXPLORED", explored)

    chosen = [one.digest for one in propose(task, Ruled(workload.mod_json, TARGET))[:4]]

    assert len(found) > 8
    assert chosen == (found[::-1] if explored else found)[:4]


def test_schedules_check_their_arguments_again_after_the_own_space_was_made(workload: Workload) -> None:
    """TVM's checks are off only while our own code schedules."""
    from tvm.s_tir import Schedule

    before = Schedule.split
    next(SearchState(workload.mod_json, TARGET).own_space())

    assert Schedule.split is before
    with pytest.raises(TypeError, match="split"):
        Schedule(module_of(workload.mod_json)).split("i", [1])


@pytest.mark.slow
def test_measured_candidates_never_come_again(workload: Workload, proposals: list[Candidate]) -> None:
    """Round after round, measured, failed and in-flight candidates are not proposed again."""
    seen = {proposal.digest for proposal in proposals}
    records = [
        Observation(workload="w", trace_json=proposals[0].trace_json, origin=proposals[0].origin, run_sec=math.inf)
    ]
    records += [
        Observation(workload="w", trace_json=p.trace_json, origin=p.origin, run_sec=1e-3 * n)
        for n, p in enumerate(proposals[1:4], 1)
    ]
    in_flight = frozenset(proposal.digest for proposal in proposals[4:])
    for seed in range(3):
        fresh = propose(
            ProposeTask(
                mod_json=workload.mod_json,
                target=TARGET,
                records=tuple(records),
                known=in_flight,
                count=COUNT,
                seed=3 if seed == 0 else seed,
            )
        )
        assert fresh
        assert not seen & {proposal.digest for proposal in fresh}
        seen |= {proposal.digest for proposal in fresh}
        records += [
            Observation(workload="w", trace_json=proposal.trace_json, origin=proposal.origin, run_sec=1e-3)
            for proposal in fresh
        ]


@pytest.mark.slow
def test_exhausted_space_gives_fewer_then_none() -> None:
    """A program with hardly a choice ends the search instead of repeating itself."""
    small = copy_program(4)
    records: tuple[Observation, ...] = ()
    counts = []
    for seed in range(6):
        found = propose(
            ProposeTask(mod_json=small.mod_json, target=TARGET, records=records, count=64, seed=seed, population=16)
        )
        counts.append(len(found))
        records += tuple(
            Observation(workload="w", trace_json=p.trace_json, origin=p.origin, run_sec=1e-6) for p in found
        )

    assert 0 < counts[0] < 64
    assert counts[-1] == 0


def test_foreign_trace_is_refused(workload: Workload) -> None:
    """A trace of another program is the caller's mistake, reported without a stack."""
    trace = json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []])

    with pytest.raises(InvalidRequest, match="does not fit its workload"):
        replay(module_of(workload.mod_json), trace)


def test_workload_survives_the_trip_through_text(workload: Workload) -> None:
    """Written and read back, a program has the same hash, arguments and operations."""
    again = workload_of(module_of(workload.mod_json), name=workload.name)

    assert workload == again
    assert workload.flop == 2 * 64**3
    assert (TensorSpec((64, 64), "float32", is_output=True),) == workload.args[2:]


@pytest.mark.slow
def test_candidates_build_and_compute_the_same(workload: Workload, proposals: list[Candidate], tmp_path: Path) -> None:
    """A candidate and the unscheduled program give the same answer; its features equal those made for a library."""
    import tvm

    left, right = np.random.default_rng(0).standard_normal((2, 64, 64)).astype("float32")
    for trace in (None, proposals[0].trace_json):
        built = build_candidate(
            BuildTask(mod_json=workload.mod_json, target=TARGET, trace_json=trace, out_dir=str(tmp_path))
        )
        arrays = [tvm.runtime.tensor(array) for array in (left, right, np.zeros((64, 64), "float32"))]
        tvm.runtime.load_module(str(built.artifact.path))["main"](*arrays)
        np.testing.assert_allclose(left @ right, arrays[2].numpy(), rtol=1e-4, atol=1e-4)
        assert workload.args == built.artifact.args
        if trace is not None:
            assert built.features is not None
            recalled = recall_programs(workload.mod_json, TARGET, [trace])
            assert recalled == [pack_program(built.program, built.features)]
        assert (trace is None) == (built.features is None)


def synthetic_records(count: int, seed: int = 0) -> list[Observation]:
    """Candidates with known times: a base and a term for each of two features, summed over their stores."""
    rng = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        features = rng.random((int(rng.integers(1, 4)), 6)).astype("float32")
        run_sec = 1.0 + float(features[:, 0].sum()) * 4 + float(features[:, 3].sum())
        records.append(Observation(workload="w", run_sec=run_sec, features=features))
    return records


def test_model_ranks_unseen_candidates() -> None:
    """Trained on half, the model orders the other half nearly as their times do."""
    from scipy.stats import spearmanr

    records, unseen = synthetic_records(200), synthetic_records(100, seed=1)
    snapshot = learn(records)
    assert snapshot is not None

    scores = JobTrees(snapshot).score([record.features for record in unseen])

    assert spearmanr(scores, [-record.run_sec for record in unseen]).statistic > 0.9


def test_model_is_repeatable_and_travels_as_bytes() -> None:
    """The same records give the same snapshot, and reading it back gives the same predictions."""
    records = synthetic_records(40)
    first, second = learn(records, seed=1), learn(records, seed=1)
    assert first is not None
    assert first == second

    features = [record.features for record in records]
    np.testing.assert_array_equal(JobTrees(first).score(features), JobTrees(bytes(first)).score(features))


def test_disturbed_times_teach_less() -> None:
    """If two records contradict each other, the calm one wins."""
    calm = synthetic_records(40)
    odd = [replace(one, run_sec=calm[-1 - number].run_sec) for number, one in enumerate(calm)]
    best_sec = min(one.run_sec for one in calm)

    def error(records: list[Observation]) -> float:
        snapshot = learn(records)
        assert snapshot is not None
        found = JobTrees(snapshot).score([one.features for one in calm])
        return float(np.abs(found - [best_sec / one.run_sec for one in calm]).mean())

    assert error([*calm, *(replace(one, is_disturbed=True) for one in odd)]) < error([*calm, *odd])


def test_failures_rank_last() -> None:
    """Failed candidates are learned as slow, not left out."""
    good = synthetic_records(60)
    bad = [
        Observation(workload="w", run_sec=math.inf, features=record.features + np.float32(10.0))
        for record in synthetic_records(20, seed=2)
    ]
    snapshot = learn(good + bad)
    assert snapshot is not None

    trees = JobTrees(snapshot)
    good_scores, bad_scores = (trees.score([record.features for record in group]) for group in (good, bad))

    assert bad_scores.max() < np.median(good_scores)


def test_workloads_are_compared_with_themselves_only() -> None:
    """A candidate of a slow workload is not bad for that: scores are relative to its own workload's best."""
    fast = synthetic_records(60)
    slow = [Observation(workload="slow", run_sec=r.run_sec * 1000, features=r.features) for r in fast]
    snapshot = learn(fast + slow)
    assert snapshot is not None

    scores = JobTrees(snapshot).score([record.features for record in fast])

    assert fast[int(np.argmax(scores))].run_sec < 1.2 * min(record.run_sec for record in fast)


@pytest.mark.parametrize(
    "records",
    [[], synthetic_records(7), [Observation(workload="w", run_sec=math.inf, features=np.ones((1, 6), "float32"))] * 20],
)
def test_too_little_gives_no_model(records: list[Observation]) -> None:
    """A handful of records, or failures alone, teach nothing."""
    assert learn(records) is None


def test_candidate_without_stores_scores_zero() -> None:
    """A program that stores nothing has no features and no claim."""
    snapshot = learn(synthetic_records(20))
    assert snapshot is not None
    empty = np.zeros((0, 6), "float32")

    assert JobTrees(snapshot).score([empty, empty]).tolist() == [0.0, 0.0]
    mixed = JobTrees(snapshot).score([empty, synthetic_records(1)[0].features])
    assert 0.0 == mixed[0] != mixed[1]


@pytest.mark.slow
def test_a_record_that_does_not_replay_stops_no_search(workload: Workload, proposals: list[Candidate]) -> None:
    """A damaged or foreign trace in the library is passed over by the search and by the cost model's memory."""
    strange = json.loads(proposals[0].trace_json)
    strange[0][0][2] = ["no such block", "main"]
    traces = ["[[], []]", json.dumps(strange), "nonsense", proposals[0].trace_json]
    records = tuple(Observation(workload="w", trace_json=trace, run_sec=1e-3) for trace in traces[1:])

    found = propose(ProposeTask(mod_json=workload.mod_json, target=TARGET, count=2, seed=3, records=records))
    recalled = recall_programs(workload.mod_json, TARGET, traces)

    assert len(found) == 2
    assert [program != NO_PROGRAM for program in recalled] == [True, False, False, True]


def test_a_search_without_a_model_makes_no_surplus() -> None:
    """A search without a model cannot rank programs, so more of them would waste time."""
    assert blind_population(64, 8) == 16
    assert blind_population(64, 24) == 48
    assert blind_population(64, 100) == 64
    assert blind_population(64, 1) > 1
