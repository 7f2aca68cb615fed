"""Proposals of the strategies besides the evolutionary one: grid search, random search and replay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cross.targets.target import host_target
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin, Source, has_decisions
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.search_state import SearchState
from fleet.optimizer.tasks.searches import GRID_MOST
from fleet.workloads.programs import matmul

TARGET = host_target()
COUNT = 4


@pytest.fixture(scope="module")
def product() -> Workload:
    return matmul(64)


@pytest.fixture(scope="module")
def state(product: Workload) -> SearchState:
    return SearchState(product.mod_json, TARGET)


@pytest.fixture(scope="module")
def own(state: SearchState) -> list[Candidate]:
    """The first schedules of its own space."""
    return list(itertools.islice(state.own_space(), 3 * COUNT))


def task_of(workload: Workload, strategy: str, **facts: object) -> ProposeTask:
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=COUNT, strategy=strategy, population=16)
    return replace(task, **facts)  # type: ignore[arg-type]


def records_of(candidates: list[Candidate]) -> tuple[Observation, ...]:
    return tuple(
        Observation(workload="w", trace_json=one.trace_json, run_sec=1.0, program=one.program) for one in candidates
    )


@pytest.mark.slow
def test_a_grid_is_searched_in_its_order(product: Workload, state: SearchState, own: list[Candidate]) -> None:
    """The order of batches does not depend on measurements."""
    first = propose(task_of(product, "gridsearch"), state)
    second = propose(task_of(product, "gridsearch", records=records_of(own[:COUNT])), state)

    assert [one.digest for one in (*first, *second)] == [one.digest for one in own[: 2 * COUNT]]


class Wide(SearchState):
    """A state whose own space has this many schedules, all of them equal."""

    size = 0

    def own_space(self) -> Iterator[Candidate]:
        return itertools.repeat(
            Candidate(trace_json="[]", digest="one", program=1, origin=Origin(source=Source.SPACE)), self.size
        )


@pytest.mark.slow
def test_a_space_of_ten_thousand_schedules_is_too_large_for_a_grid(product: Workload) -> None:
    """One schedule less is allowed. A workload without a space of its own has no order at all."""
    wide = Wide(product.mod_json, TARGET)
    with pytest.raises(InvalidRequest, match="has no order; use 'evolutionary'"):
        propose(task_of(product, "gridsearch"), wide)

    wide.size = GRID_MOST - 1
    assert [one.digest for one in propose(task_of(product, "gridsearch"), wide)] == ["one"]

    wide.size = GRID_MOST
    with pytest.raises(InvalidRequest, match="10,000 schedules or more; use 'evolutionary' or 'random'"):
        propose(task_of(product, "gridsearch"), wide)


@pytest.mark.slow
def test_replay_proposes_records_in_their_order(product: Workload, state: SearchState, own: list[Candidate]) -> None:
    """Traces that do not fit the workload, and measured ones, are left out."""
    foreign = '[[["GetSBlock",[],["nobody","main"],["b0"]]],[]]'
    traces = (own[5].trace_json, foreign, own[1].trace_json, own[3].trace_json)

    found = propose(task_of(product, "replay", replayed=traces, records=records_of([own[1]])), state)

    assert [one.trace_json for one in found] == [own[5].trace_json, own[3].trace_json]


@pytest.mark.slow
def test_a_random_search_draws_from_the_own_space_and_from_the_rules(product: Workload, state: SearchState) -> None:
    """Half of the candidates come from each; equal seeds repeat, other seeds differ."""
    first, again, other = (propose(task_of(product, "random", seed=seed), state) for seed in (1, 1, 2))

    assert [one.digest for one in first] == [one.digest for one in again]
    assert {one.digest for one in first} != {one.digest for one in other}
    assert [has_decisions(one.trace_json) for one in first].count(True) == COUNT // 2
