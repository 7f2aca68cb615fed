"""The contract of every search strategy: ours, and the example of docs/how-to/add-a-search-strategy.md."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cross.targets.target import host_target
from fleet.domain.observation import Observation
from fleet.domain.trace_check import check_trace
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.strategies import BUILT_IN, strategy_of
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of
from tests.contract.installed import install

pytestmark = pytest.mark.slow

HOST = host_target()
EXAMPLE = Path(__file__).parents[2] / "examples/strategy"
COUNT = 4


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as an installed package."""
    install(EXAMPLE, tmp_path / "site", monkeypatch)
    yield
    sys.modules.pop("spread_search", None)


@pytest.fixture(scope="module")
def product() -> Workload:
    return matmul(64)


@pytest.fixture(scope="module")
def own(product: Workload) -> list[Candidate]:
    """The first schedules of its own space."""
    return list(itertools.islice(SearchState(product.mod_json, HOST).own_space(), 6 * COUNT))


@pytest.fixture(params=[*BUILT_IN, "spread"])
def task(request: pytest.FixtureRequest, product: Workload, own: list[Candidate]) -> ProposeTask:
    return ProposeTask(
        mod_json=product.mod_json,
        target=HOST,
        count=COUNT,
        population=16,
        strategy=request.param,
        is_guided=strategy_of(request.param).uses_model,
        replayed=tuple(made.trace_json for made in own),
        seed=3,
    )


@pytest.fixture
def later(task: ProposeTask, own: list[Candidate]) -> ProposeTask:
    """The same workload after one measured batch, with another under way."""
    records = tuple(
        Observation(workload="w", trace_json=made.trace_json, run_sec=1e-3 * (1 + place), program=made.program)
        for place, made in enumerate(own[:COUNT])
    )
    return replace(task, records=records, known=frozenset(made.digest for made in own[COUNT : 2 * COUNT]))


def test_a_strategy_has_a_summary(task: ProposeTask) -> None:
    """It is shown with the job."""
    assert strategy_of(task.strategy).summary


def test_the_same_task_gives_the_same_proposals(task: ProposeTask, later: ProposeTask) -> None:
    """Proposals are reproducible even in a fresh worker, so an interrupted job continues as it began."""
    for one in (task, later):
        first, again = (propose(one, SearchState(one.mod_json, HOST)) for _ in range(2))

        assert [proposal.digest for proposal in first] == [proposal.digest for proposal in again]
        assert first


def test_a_batch_has_its_size_and_no_candidate_twice(task: ProposeTask) -> None:
    """At most the wanted number for now and for later is proposed."""
    for ahead in (0, COUNT):
        found = propose(replace(task, ahead=ahead))

        assert 0 < len(found) <= COUNT + ahead
        assert len({proposal.digest for proposal in found}) == len(found)


def test_no_candidate_is_proposed_again(later: ProposeTask) -> None:
    """Neither measured candidates nor those in progress are proposed."""
    found = {proposal.digest for proposal in propose(later)}

    assert found
    assert not found & later.known
    assert not {proposal.trace_json for proposal in propose(later)} & {one.trace_json for one in later.records}


def test_each_proposal_replays_and_may_be_a_record(task: ProposeTask) -> None:
    """Its steps are on the allowlist of traces."""
    for proposal in propose(task):
        check_trace(proposal.trace_json)
        replay(module_of(task.mod_json), proposal.trace_json)


def test_an_installed_strategy_tries_the_neighbours_of_the_fastest(product: Workload, own: list[Candidate]) -> None:
    """The example behaves as described on its page."""
    fastest = Observation(workload="w", trace_json=own[10].trace_json, run_sec=1e-3, program=own[10].program)
    task = ProposeTask(mod_json=product.mod_json, target=HOST, count=COUNT, strategy="spread", records=(fastest,))

    places = [[made.digest for made in own].index(proposal.digest) for proposal in propose(task)]

    assert sorted(places) == [8, 9, 11, 12]


def test_ours_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that registers a strategy under one of our names changes nothing."""
    (tmp_path / "spy-1.0.dist-info").mkdir()
    (tmp_path / "spy-1.0.dist-info/entry_points.txt").write_text("[fleet.strategies]\nrandom = spread_search:SPREAD\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert strategy_of("random") is BUILT_IN["random"]


def test_an_installed_strategy_that_fails_is_named(product: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trace with a forbidden step is refused, too: others replay records."""
    import spread_search

    from fleet.optimizer.core.candidates import Candidate

    task = ProposeTask(mod_json=product.mod_json, target=HOST, count=COUNT, strategy="spread")
    forbidden = '[[["EnterFoo",[],[],[]]],[]]'
    for returned, text in [
        (lambda *_: 1 / 0, "the strategy 'spread' .* failed: ZeroDivisionError"),
        (lambda *_: [Candidate(trace_json=forbidden, digest="d")], "EnterFoo"),
    ]:
        monkeypatch.setattr(spread_search, "SPREAD", replace(spread_search.SPREAD, propose=returned))
        with pytest.raises(InvalidRequest, match=text):
            propose(task)


def test_an_entry_point_that_is_no_strategy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point has to name a `Strategy`; an unknown name is answered with the closest."""
    import spread_search

    with pytest.raises(InvalidRequest, match="did you mean 'spread'"):
        strategy_of("spred")
    monkeypatch.setattr(spread_search, "SPREAD", spread_search.propose)
    with pytest.raises(InvalidRequest, match="spread_search:SPREAD, no"):
        strategy_of("spread")
