"""Scores for the search, from the shipped model and the job's own records."""

from __future__ import annotations

import numpy as np

from cross.targets.target import parse_target
from fleet.cost_model.job_trees import fit_trees
from fleet.cost_model.packaged_model import PATH, prior_for
from fleet.cost_model.prediction import condition
from fleet.cost_model.samples import Context
from fleet.cost_model.scoring import Ranker
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Observation

CPU = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')
GPU = parse_target('{"kind": "cuda", "arch": "sm_86"}')
COLUMNS = 164


def made_up(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [np.abs(random.normal(5, 2, (random.integers(1, 4), COLUMNS))).astype(np.float32) for _ in range(count)]


def own_trees(features: list[np.ndarray]) -> bytes:
    """Return trees that learnt: the more of the first column, the faster."""
    first = np.array([one[:, 0].max() for one in features])
    return fit_trees(features, (first / first.max()).astype(np.float32))


def test_scores_are_positive_and_the_same_every_time() -> None:
    """MetaSchedule's search counts scores below 0 as 0, and a search has to be repeatable."""
    features = made_up(40)

    scores = Ranker(prior_for(CPU), None, records=0).score(features)

    assert (scores > 0).all()
    assert np.ptp(scores) > 0.1
    np.testing.assert_array_equal(scores, Ranker(prior_for(CPU), None, records=0).score(features))


def test_all_candidates_of_a_search_are_compared_with_the_same_ones() -> None:
    """A candidate keeps its score when it comes again in smaller company."""
    features = made_up(40)
    ranker = Ranker(prior_for(CPU), own_trees(features[:20]), records=20)

    first = ranker.score(features)

    np.testing.assert_allclose(ranker.score(features[7:9]), first[7:9], rtol=1e-5)


def test_the_more_own_records_there_are_the_more_they_decide() -> None:
    """A hundred own records outvote the model of other workloads."""
    features = made_up(60)
    own = own_trees(features)
    wanted = np.array([one[:, 0].max() for one in features])

    few, many = (Ranker(prior_for(CPU), own, records=count).score(features) for count in (4, 100))

    assert np.corrcoef(many, wanted)[0, 1] > np.corrcoef(few, wanted)[0, 1]
    assert np.corrcoef(many, wanted)[0, 1] > 0.5


def test_a_gpu_has_no_prior_that_was_measured_on_processors() -> None:
    """A GPU's features have other meanings; only its own records count."""
    assert prior_for(GPU) is None
    assert Ranker(prior_for(GPU), None, records=0).is_blind
    assert not Ranker(prior_for(GPU), own_trees(made_up(10)), records=10).is_blind


def test_programs_without_a_store_rank_last() -> None:
    """A program without any store cannot be judged."""
    features = [*made_up(20), np.empty((0, 0), np.float32)]

    scores = Ranker(prior_for(CPU), None, records=0).score(features)

    assert scores[-1] == scores.min() > 0


def test_the_prior_is_taken_apart_only_when_it_is_asked() -> None:
    """A job without a search does not wait for loading it."""
    prior = Snapshot.of(PATH.read_bytes())

    assert prior.metrics["workloads"] >= 40
    assert "model" not in vars(prior)


def test_records_that_contradict_the_shared_model_outvote_it() -> None:
    """Some dozens of own records reverse a wrong order, and a candidate's score does not depend on its batch."""
    features = made_up(80)
    before = Ranker(prior_for(CPU), None, records=0).score(features)
    measured = [
        Observation(workload="own", run_sec=1e-3 * float(score), features=one)
        for one, score in zip(features[:40], before[:40], strict=True)
    ]

    ranker = Ranker(prior_for(CPU), own_trees(features), Context(known=measured), records=40)
    after = ranker.score(features)

    assert np.corrcoef(np.log(before[40:]), np.log(after[40:]))[0, 1] < 0
    np.testing.assert_allclose(ranker.score(features[30:33]), after[30:33], rtol=1e-4)


def test_a_model_conditioned_once_predicts_parts_of_a_batch_as_all_at_once() -> None:
    """Training on the own records takes most of a prediction's time, so a search does it once."""
    prior, features = prior_for(CPU), made_up(60)
    assert prior is not None
    known = [Observation(workload="own", run_sec=1e-3 + 1e-5 * n, features=one) for n, one in enumerate(features[:24])]
    asked = features[24:]

    conditioned = condition(prior.model, Context(known=known), prior.model.frame([*asked, *features[:24]]))
    parts = [conditioned.predict(asked[first : first + 9]) for first in range(0, 36, 9)]

    together = prior.predict(asked, Context(known=known))
    np.testing.assert_allclose(np.concatenate([part.log_sec for part in parts]), together.log_sec, atol=1e-5)
    np.testing.assert_allclose(conditioned.predict(asked).members, together.members, atol=1e-5)
