"""The cost model on made-up workloads with times that follow from their features by a known rule."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fleet.cost_model.experts import PARTS
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import NO_CONTEXT, Context
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.training import is_not_worse, train_snapshot
from fleet.domain.observation import Observation
from fleet.errors import InvalidRequest

COLUMNS = 12
CANDIDATES = 40


def made_up(workload: int, *, rule: int = 1, device: str = "board", noise: float = 0.2) -> list[Observation]:
    """Return samples: more of the first three columns is slower; workloads differ in all else."""
    random = np.random.default_rng([workload, 1 + rule])
    shift, level = random.normal(0, 3, COLUMNS), random.normal(0, 1)
    samples = []
    for _ in range(CANDIDATES):
        stores = np.abs(random.normal(5, 1.5, (random.integers(1, 4), COLUMNS)) + shift).astype(np.float32)
        slowness = rule * 0.4 * (stores[:, :3].max(axis=0) - shift[:3]).sum() + level + random.normal(0, noise)
        samples.append(
            Observation(
                workload=f"w{workload}",
                run_sec=float(math.exp(slowness - 9)),
                features=stores,
                flop=1e6,
                device_model=device,
                instruction_set="x86-64-v4",
            )
        )
    return samples


def many(workloads: range, **options: int) -> list[Observation]:
    return [sample for workload in workloads for sample in made_up(workload, **options)]


def ranked(snapshot: Snapshot, samples: Sequence[Observation], known: Sequence[Observation] = ()) -> float:
    predicted = snapshot.predict([one.features for one in samples], Context(flop=1e6, known=known)).log_sec
    return ranked_right(predicted, np.array([one.run_sec for one in samples]))


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return train_snapshot(many(range(9)))


def test_a_workload_that_was_never_seen_is_ranked(snapshot: Snapshot) -> None:
    """A rule learned on other workloads ranks a new one: features count relative to its own candidates."""
    assert ranked(snapshot, made_up(100)) > 0.75


def test_a_value_is_the_mean_of_its_parts(snapshot: Snapshot) -> None:
    """A benchmark can thus leave out each part."""
    model, features = snapshot.model, [one.features for one in made_up(100)]
    frame = model.frame(features)

    parts = model.parts(frame, features)

    assert parts.shape == (len(model.members), len(PARTS), len(features))
    np.testing.assert_allclose(model.values(frame, features), parts.mean(axis=1), rtol=1e-5, atol=1e-6)


def test_a_snapshot_that_is_stored_and_read_predicts_the_same(snapshot: Snapshot) -> None:
    """A snapshot is fully determined by its bytes."""
    features, context = [one.features for one in made_up(101)], Context(flop=1e6, known=made_up(101)[:10])

    again = Snapshot.of(snapshot.content)

    assert again.metrics == snapshot.metrics
    assert again.digest == snapshot.digest
    np.testing.assert_array_equal(again.predict(features, context).members, snapshot.predict(features, context).members)


@pytest.mark.slow
def test_the_same_samples_make_the_same_snapshot() -> None:
    """Training is repeatable, so that a digest identifies its training data."""
    samples = many(range(3))

    first, again = train_snapshot(samples, seed=4), train_snapshot(samples, seed=4)

    features = [one.features for one in made_up(102)]
    np.testing.assert_array_equal(
        first.predict(features, NO_CONTEXT).log_sec, again.predict(features, NO_CONTEXT).log_sec
    )


def test_own_records_weigh_more_than_those_of_others(snapshot: Snapshot) -> None:
    """A workload that behaves the other way around is ranked by its own records in the end."""
    contrary = made_up(103, rule=-1)

    assert ranked(snapshot, contrary[30:]) < 0.4
    assert ranked(snapshot, contrary[30:], contrary[:30]) > 0.6


def test_predictions_with_own_records_are_in_seconds(snapshot: Snapshot) -> None:
    """The level of a workload is known once a few of its candidates are measured."""
    samples = made_up(104)

    found = snapshot.predict([one.features for one in samples[8:]], Context(flop=1e6, known=samples[:8]))

    errors = found.log_sec - np.log([one.run_sec for one in samples[8:]])
    assert abs(np.mean(errors)) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("known", [0, 12])
def test_four_of_five_times_of_unseen_workloads_lie_within_the_members_four_fifths(
    snapshot: Snapshot, known: int
) -> None:
    """Uncertainty is calibrated on workloads that were left out: it is neither bold nor timid."""
    inside = []
    for workload in range(200, 212):
        samples = made_up(workload)
        asked = [one.features for one in samples[known:]]
        found = snapshot.predict(asked, Context(flop=1e6, known=samples[:known]))
        low, high = np.quantile(found.members, [0.1, 0.9], axis=0)
        times = np.log([one.run_sec for one in samples[known:]])
        inside.append(((times >= low) & (times <= high)).mean())

    assert 0.65 < np.mean(inside) < 0.95


@pytest.mark.slow
def test_disturbed_times_count_less() -> None:
    """If as many samples contradict, it helps to know that these were disturbed."""
    samples, odd = many(range(4)), many(range(20, 24), rule=-1)

    knowing = train_snapshot(samples + [replace(sample, is_disturbed=True) for sample in odd])
    unknowing = train_snapshot(samples + odd)

    assert ranked(knowing, made_up(105)) > max(0.6, ranked(unknowing, made_up(105)))


def test_disturbed_own_records_count_less(snapshot: Snapshot) -> None:
    """If a workload's own records contradict each other, the calm ones win."""
    right = []
    for workload in range(103, 107):
        own = made_up(workload)
        middle = math.exp(np.mean(np.log([sample.run_sec for sample in own])))
        calm, asked = own[:15], own[30:]
        odd = [replace(sample, run_sec=middle**2 / sample.run_sec) for sample in own[15:30]]
        disturbed = [replace(sample, is_disturbed=True) for sample in odd]
        right.append([ranked(snapshot, asked, [*calm, *some]) for some in (odd, disturbed)])

    unknowing, knowing = np.mean(right, axis=0)
    assert knowing > unknowing + 0.05


@pytest.mark.slow
def test_a_device_that_differs_has_a_residual_of_its_own() -> None:
    """Devices of one instruction set may rank alike, and another one otherwise."""
    usual = many(range(6))
    other = [replace(s, device_model="odd", instruction_set="armv8") for s in many(range(6, 12), rule=-1)]
    trained = train_snapshot(usual + other)
    features, secs = [s.features for s in made_up(106)], np.array([s.run_sec for s in made_up(106)])

    def right(device: str, instruction_set: str) -> float:
        context = Context(device_model=device, instruction_set=instruction_set)
        return ranked_right(trained.predict(features, context).log_sec, secs)

    assert right("board", "x86-64-v4") > right("odd", "armv8")
    assert right("sibling of odd", "armv8") < right("sibling of board", "x86-64-v4")


@pytest.mark.slow
def test_only_a_snapshot_that_is_worse_for_sure_is_rejected(snapshot: Snapshot) -> None:
    """A new snapshot is published unless the paired test shows that it is worse."""
    holdout = many(range(300, 310))
    wrong = train_snapshot(many(range(9), rule=-1))

    assert is_not_worse(snapshot, wrong, holdout)
    assert is_not_worse(snapshot, snapshot, holdout)
    assert not is_not_worse(wrong, snapshot, holdout)


@pytest.mark.parametrize(
    "bad",
    [
        {"run_sec": math.nan},
        {"run_sec": 0.0},
        {"run_sec": -1.0},
        {"run_sec": 1e9},
        {"features": np.full((2, COLUMNS), np.nan, np.float32)},
        {"features": np.ones((2, COLUMNS + 1), np.float32)},
    ],
)
def test_impossible_measurements_are_refused(bad: dict[str, float]) -> None:
    """Invalid measurements are rejected on input instead of spoiling predictions."""
    samples = many(range(2))

    with pytest.raises(InvalidRequest):
        train_snapshot([*samples, replace(samples[0], **bad)])


def test_features_of_another_version_are_refused(snapshot: Snapshot) -> None:
    """Other columns would be mistaken for known ones."""
    with pytest.raises(InvalidRequest, match="12 columns"):
        snapshot.predict([np.ones((2, COLUMNS + 1), np.float32)], NO_CONTEXT)


def test_a_snapshot_of_another_version_is_refused(snapshot: Snapshot) -> None:
    """A snapshot with another feature version has other columns; the error tells the user to train anew."""
    with np.load(io.BytesIO(snapshot.content)) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    arrays["header"] = np.frombuffer(json.dumps({**header, "feature_version": 2}).encode(), np.uint8)
    other = io.BytesIO()
    np.savez_compressed(other, allow_pickle=False, **arrays)

    with pytest.raises(InvalidRequest, match="features of version 2, this program of version 1: train it anew"):
        Snapshot.of(other.getvalue())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nonsense", b"\x80\x04\x95nonsense"])
def test_bytes_that_are_no_snapshot_are_refused(content: bytes) -> None:
    """Malformed snapshots are the sender's error."""
    with pytest.raises(InvalidRequest):
        Snapshot.of(content)


def test_a_snapshot_that_unpacks_to_very_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed snapshot a thousandth of its unpacked size is refused by its header before it is unpacked."""
    monkeypatch.setattr("fleet.cost_model.snapshot._MOST_UNPACKED_BYTES", 1_000_000)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, header=np.zeros(1_000_000, np.uint8))

    with pytest.raises(InvalidRequest, match="at most 1000000 are unpacked"):
        Snapshot.of(file.getvalue())


def test_too_few_workloads_make_no_snapshot() -> None:
    """A rule of a single workload may hold for no other."""
    with pytest.raises(InvalidRequest, match="1 workloads"):
        train_snapshot(made_up(0))


def test_ranking_ignores_differences_within_the_noise() -> None:
    """Times that are 2 % apart are equal, 10 % are not."""
    assert ranked_right(np.array([2.0, 1.0]), np.array([1.0, 1.02])) == 0.5
    assert ranked_right(np.array([2.0, 1.0]), np.array([1.0, 1.1])) == 0.0
