"""The contract of every part of the cost model: ours, and the example of docs/how-to/add-a-cost-model-part.md."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fleet.cost_model import experts
from fleet.cost_model.experts import PARTS, lesson_of
from fleet.cost_model.packaged_model import PATH
from fleet.cost_model.part import Arrays, Candidates, Lesson, Part, Vector
from fleet.cost_model.pooling import Reference, pooled
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Context, grouped
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.training import train_snapshot
from fleet.domain.observation import Features
from fleet.errors import InvalidRequest
from tests.programs import REPOSITORY
from tests.unit.test_cost_model import made_up, many
from tests.unit.test_cost_model_scoring import made_up as made_up_features

FOLDS = (0, 1, 0, 1, 1, 0)


def example_part() -> type[Part]:
    sys.path.insert(0, str(REPOSITORY / "examples/cost_model_part"))
    try:
        from correlation import Correlation  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    part: type[Part] = Correlation
    return part


EXAMPLE = example_part()
MEMBERS = (*PARTS, EXAMPLE)


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    return [lesson_of(group) for group in grouped(many(range(len(FOLDS))))]


@pytest.fixture(scope="module", params=MEMBERS, ids=lambda part: part.name)
def kind(request: pytest.FixtureRequest) -> type[Part]:
    part: type[Part] = request.param
    return part


@pytest.fixture(scope="module")
def fitted(kind: type[Part], lessons: list[Lesson]) -> Sequence[Part]:
    return kind.fit(lessons, FOLDS, seed=1)


@pytest.fixture(scope="module")
def trained() -> Snapshot:
    return train_snapshot([*many(range(3)), *[replace(one, device_model="odd") for one in many(range(3, 5))]])


def values(part: Part, features: Sequence[Features], frame: Sequence[Features] | None = None) -> Vector:
    """Return the values of candidates, compared with one another or with a frame."""
    frame = features if frame is None else frame
    rows = Reference.of(pooled(frame)).relative(pooled(features))
    return part.values(Candidates(features=features, rows=rows), part.level(frame))


def unseen(workload: int = 100) -> list[Features]:
    return [one.features for one in made_up(workload)]


def stored(arrays: Arrays) -> Arrays:
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as read:
        return dict(read)


def test_there_is_a_part_for_each_fold_that_ignores_the_times_of_that_fold(
    kind: type[Part], lessons: list[Lesson], fitted: Sequence[Part]
) -> None:
    """Predictions for left-out workloads are honest."""
    others = [
        replace(lesson, targets=-lesson.targets) if fold == 1 else lesson
        for lesson, fold in zip(lessons, FOLDS, strict=True)
    ]

    again = kind.fit(others, FOLDS, seed=1)

    assert len(fitted) == len(again) == 2
    np.testing.assert_array_equal(values(again[1], unseen()), values(fitted[1], unseen()))
    assert not np.array_equal(values(again[0], unseen()), values(fitted[0], unseen()))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("count", [1, 40])
def test_finite_features_have_finite_values(fitted: Sequence[Part], count: int, scale: float) -> None:
    """A value per candidate, even for constant and for huge features."""
    found = values(fitted[0], [np.asarray(one * scale, np.float32) for one in unseen()[:count]])

    assert found.shape == (count,)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_a_value_does_not_depend_on_the_other_candidates(fitted: Sequence[Part]) -> None:
    """Within one frame, a candidate that comes again in smaller company keeps its value."""
    features = unseen()

    together = values(fitted[0], features)

    np.testing.assert_allclose(values(fitted[0], features[7:9], features), together[7:9], rtol=1e-4, atol=1e-5)


def test_the_same_seed_makes_the_same_part(kind: type[Part], lessons: list[Lesson], fitted: Sequence[Part]) -> None:
    """Training is repeatable, so that a snapshot's digest identifies its training data."""
    for one, again in zip(fitted, kind.fit(lessons, FOLDS, seed=1), strict=True):
        assert one.arrays().keys() == again.arrays().keys()
        for name, array in one.arrays().items():
            np.testing.assert_array_equal(array, again.arrays()[name])


def test_a_part_survives_the_round_trip_through_its_arrays(kind: type[Part], fitted: Sequence[Part]) -> None:
    """Arrays without pickles are all that a snapshot stores of a part."""
    again = kind.from_arrays(stored(fitted[0].arrays()))

    np.testing.assert_array_equal(values(again, unseen()), values(fitted[0], unseen()))


def test_an_easy_rule_is_learnt_better_than_chance(fitted: Sequence[Part]) -> None:
    """More of three columns is slower, also in workloads that were never seen."""
    for part in fitted:
        right = [
            ranked_right(values(part, unseen(workload)), np.array([one.run_sec for one in made_up(workload)]))
            for workload in (100, 101, 102)
        ]
        assert np.mean(right) > 0.6


def test_names_are_unique(lessons: list[Lesson]) -> None:
    """All parts of a member share one namespace of arrays in a snapshot."""
    arrays = [name for kind in MEMBERS for name in kind.fit(lessons, FOLDS, seed=1)[0].arrays()]

    assert len(set(arrays)) == len(arrays)
    assert len({kind.name for kind in MEMBERS}) == len(MEMBERS)


def test_a_snapshot_names_its_parts(trained: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots with fewer parts stay readable after an addition; unknown parts are refused."""
    context = Context(flop=1e6)
    with monkeypatch.context() as patch:
        patch.setattr(experts, "PARTS", MEMBERS)
        more = train_snapshot(many(range(2)))
        model, again = Snapshot.of(more.content).model, Snapshot.of(trained.content)

        assert model.parts(model.frame(unseen()), unseen()).shape[1] == len(MEMBERS)
        np.testing.assert_array_equal(
            again.predict(unseen(), context).members, trained.predict(unseen(), context).members
        )
    with pytest.raises(InvalidRequest, match=r"parts .*'correlation'.*train it anew"):
        _ = Snapshot.of(more.content).model


@pytest.mark.parametrize("parts", [[], ["ridge", "ridge"], ["os.system"], "ridge", 1, [["ridge"]], None])
def test_snapshots_with_malformed_parts_are_refused(trained: Snapshot, parts: object) -> None:
    """A name chooses among the parts of this program."""
    with pytest.raises(InvalidRequest):
        _ = Snapshot.of(with_header(stored_arrays(trained), parts=parts)).model


def test_a_snapshot_of_version_0_1_predicts_the_same(trained: Snapshot) -> None:
    """It names no parts, and has the divisor of each network in its header only."""
    arrays = {name: array for name, array in stored_arrays(trained).items() if not name.endswith(".divisor")}
    context = Context(flop=1e6, device_model="odd")

    older = Snapshot.of(with_header(arrays))

    np.testing.assert_array_equal(older.predict(unseen(), context).members, trained.predict(unseen(), context).members)


def test_the_packaged_model_predicts_as_in_version_0_1() -> None:
    """Changes of the parts keep the meaning of stored snapshots."""
    expected = json.loads((REPOSITORY / "tests/golden/prior_cpu_predictions.json").read_text())
    context = Context(flop=1e6, device_model="x86_64_v4", instruction_set="avx512 vnni")

    found = Snapshot.of(PATH.read_bytes()).predict(made_up_features(24), context)

    np.testing.assert_allclose(found.log_sec, expected["log_sec"], rtol=1e-5)
    np.testing.assert_allclose(found.members[-1], expected["last_member"], rtol=1e-5)


def stored_arrays(snapshot: Snapshot) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(snapshot.content), allow_pickle=False) as read:
        return dict(read)


def with_header(arrays: dict[str, np.ndarray], **changes: object) -> bytes:
    """Return a snapshot with another header: without the names of its parts, if no others are given."""
    header = json.loads(arrays["header"].tobytes())
    del header["parts"]
    file = io.BytesIO()
    text = json.dumps({**header, **changes}).encode()
    np.savez_compressed(file, allow_pickle=False, **{**arrays, "header": np.frombuffer(text, np.uint8)})
    return file.getvalue()
