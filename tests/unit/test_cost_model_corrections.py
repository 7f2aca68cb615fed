"""The packaged model conditioned on the records of a small lab."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cost_model.calibration import Calibration
from fleet.cost_model.corrections import (
    ALL_KINDS,
    LEAST_RECORDS,
    NO_CORRECTIONS,
    Corrections,
    Evidence,
    are_not_worse,
    corrected_line,
    fit_corrections,
)
from fleet.cost_model.model import CostModel, evidence_of
from fleet.cost_model.packaged_model import PATH, unpack_samples
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Context, Group, grouped
from fleet.cost_model.scoring import Ranker
from fleet.cost_model.snapshot import Snapshot, pack
from fleet.domain.observation import Observation

LAB = Path(__file__).parents[2] / "benchmarks/data/x86_64_v2.npz"
"""480 records of 15 workloads, of models that the packaged model has not seen, on a device without AVX."""

USUAL = Calibration(slope=1.0, slope_spread=0.5, noise=0.8, level=(-18.0, 0.6), level_spread=0.7)
DEVICE = "x86_64_v2"
_DRAWS = 40
"""Choices of the lab's first records over which errors are averaged."""


def made_up(
    count: int, *, offset: float, kind: str = "conv2d 1x1", device: str = "pi", number: int = 0, slope: float = 1.0
) -> Evidence:
    """Return candidates that are slower than the model expects, by `offset` in log time."""
    values = np.linspace(-1, 1, count, dtype=np.float32)
    expected = USUAL.level[0] + USUAL.level[1] * math.log(1e6 + 1)
    log_sec = (expected + offset + slope * values).astype(np.float32)
    observed = [
        Observation(workload=f"w{number}", device_model=device, kind=kind, flop=1e6, run_sec=float(sec))
        for sec in np.exp(log_sec)
    ]
    return Evidence(observed, values)


evidence = st.lists(
    st.builds(
        made_up,
        st.integers(1, 40),
        offset=st.floats(-3, 3),
        kind=st.sampled_from(["", "conv2d 1x1", "mean"]),
        device=st.sampled_from(["pi", "phone"]),
        number=st.integers(0, 4),
        slope=st.floats(-2, 3),
    ),
    max_size=8,
    unique_by=lambda one: (one.workload, one.device_model, one.kind),
)


@given(evidence, st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_count(some: list[Evidence], random: object) -> None:
    """Services that read the same records in another order publish the same snapshot."""
    shuffled = list(some)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert fit_corrections(USUAL, shuffled) == fit_corrections(USUAL, some)
    assert are_not_worse(USUAL, shuffled) is are_not_worse(USUAL, some)


@given(evidence)
def test_corrections_are_shrunk_and_keep_the_order(some: list[Evidence]) -> None:
    """Levels stay within the measured range, and the order of candidates is kept."""
    found = fit_corrections(USUAL, some)

    records = {name: sum(len(one.values) for one in some if one.device_model == name) for name in ("pi", "phone")}
    assert {name for name, _ in found} == {name for name, count in records.items() if count >= LEAST_RECORDS}
    for correction in found.values():
        assert correction.slope > 0
        assert abs(correction.level) <= 3.01
        assert correction.level_spread > 0


@given(st.integers(8, 40), st.floats(0.1, 3), st.sampled_from([-1, 1]))
def test_more_workloads_move_the_level_closer(count: int, offset: float, sign: int) -> None:
    """One workload may be odd; four that agree are hardly doubted."""
    levels = [
        fit_corrections(USUAL, [made_up(count, offset=sign * offset, number=number) for number in range(workloads)])[
            "pi", ALL_KINDS
        ].level
        for workloads in (1, 2, 4)
    ]

    distances = [abs(sign * offset - level) for level in levels]
    assert offset > distances[0] > distances[1] > distances[2] > 0


def test_a_kind_of_operator_has_a_level_of_its_own() -> None:
    """Kinds without records have the device's level, other devices the model's."""
    slow = [made_up(8, offset=2.0, kind="mean", number=number) for number in range(3)]
    usual = [made_up(8, offset=0.0, kind="conv2d 1x1", number=3 + number) for number in range(3)]
    found = fit_corrections(USUAL, [*slow, *usual])

    def level(kind: str, device_model: str = "pi") -> float:
        return corrected_line(USUAL, found, Context(flop=1e6, device_model=device_model, kind=kind)).level

    assert level("mean") > level("softmax") > level("conv2d 1x1") > level("mean", "phone")
    assert level("mean", "phone") == corrected_line(USUAL, NO_CORRECTIONS, Context(flop=1e6)).level


def test_contradicting_workloads_are_not_worth_a_correction() -> None:
    """Each workload is further off with the others' level than without: nothing is published."""
    some = [made_up(16, offset=offset, number=number) for number, offset in enumerate((2.0, 2.0, 2.0, 2.0))]

    assert are_not_worse(USUAL, some)
    assert not are_not_worse(USUAL, [*some[:1], made_up(16, offset=-2.0, number=9)])
    assert not are_not_worse(USUAL, [])


@functools.cache
def package() -> CostModel:
    return Snapshot.of(PATH.read_bytes()).model


@functools.cache
def lab() -> Sequence[Group]:
    return grouped(unpack_samples(LAB.read_bytes()))


def first_records(count: int, seed: int) -> list[Group]:
    """Return the lab's first records: batches of eight, each of another workload."""
    random = np.random.default_rng(seed)
    chosen = [lab()[index] for index in random.permutation(len(lab()))[: max(1, count // 8)]]
    per_workload = count // len(chosen)
    return [Group([one.observations[i] for i in random.permutation(len(one))[:per_workload]]) for one in chosen]


def conditioned(known: Sequence[Group]) -> CostModel:
    model = package()
    return replace(model, corrections=fit_corrections(model.calibration, evidence_of(model, known)))


@functools.cache
def recorded() -> Sequence[Evidence]:
    return evidence_of(package(), lab())


def log_error(corrections: Corrections, one: Evidence) -> float:
    line = corrected_line(package().calibration, corrections, one.context)
    return float(np.abs(line.level + line.slope * one.values - one.log_sec).mean())


def mean_errors(count: int) -> tuple[float, float]:
    """Return the error of the packaged model, and of the conditioned one, on workloads without records."""
    before, after = [], []
    for seed in range(_DRAWS):
        known = first_records(count, seed)
        corrections, seen = conditioned(known).corrections, {one.workload for one in known}
        rest = [one for one in recorded() if one.workload not in seen]
        before.append(np.mean([log_error(NO_CORRECTIONS, one) for one in rest]))
        after.append(np.mean([log_error(corrections, one) for one in rest]))
    return float(np.mean(before)), float(np.mean(after))


@pytest.mark.slow
def test_a_device_of_another_kind_is_predicted_better_from_its_eighth_record() -> None:
    """Predictions for other workloads improve with 8 records, and further with 16, 32 and 64; with 7 they stay."""
    assert conditioned(first_records(7, 0)).corrections == NO_CORRECTIONS

    ratios = [after / before for before, after in map(mean_errors, (8, 16, 32, 64))]

    assert ratios[0] < 0.94
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.82


@pytest.mark.slow
def test_ranking_with_few_own_records_is_kept() -> None:
    """Corrections are monotonic, so a workload's candidates keep their order, and with records of its own it is as
    good.
    """
    model, pairs = conditioned(first_records(64, 0)), []
    for group in lab():
        few, rest = group.observations[:4], group.observations[4:]
        features = [one.features for one in rest]
        run_sec = np.array([one.run_sec for one in rest])
        of_each = []
        for each in (package(), model):
            snapshot = pack(each, {})
            contexts = [replace(group.context, known=known) for known in ((), few)]
            blind, after = (snapshot.predict(features, context).log_sec for context in contexts)
            of_each.append((ranked_right(blind, run_sec), ranked_right(after, run_sec)))
        pairs.append(of_each)

    (blind, after), (blind_here, after_here) = np.mean(pairs, axis=0)
    assert blind_here == pytest.approx(blind, abs=1e-3)
    assert after_here > after - 0.01


def test_the_recorded_lab_has_several_workloads_of_each_kind() -> None:
    """The first file had no kinds, so that only the levels of devices were judged on it."""
    counts = Counter(one.kind for one in lab())

    assert counts == {"conv2d 1x1": 3, "conv2d 3x3 s2": 2, "dwconv2d 3x3": 3, "layer_norm": 2, "matmul": 3, "mean": 2}


def test_a_snapshot_keeps_its_corrections() -> None:
    """Services that read it predict alike; searches sample candidates by the corrected slope."""
    model = conditioned(first_records(16, 1))
    snapshot = pack(model, {"samples": 1.0})

    read = Snapshot.of(snapshot.content)

    assert read.model.corrections == model.corrections != {}
    group, measured = lab()[0], recorded()[0]
    distance = np.abs(read.predict(group.features, group.context).log_sec - group.log_sec).mean()
    assert distance == pytest.approx(log_error(model.corrections, measured), rel=0.01)

    def spread(device_model: str) -> float:
        ranker = Ranker(read, None, Context(kind=group.kind, device_model=device_model), records=0)
        return float(np.log(ranker.score(group.features)).std())

    slope = corrected_line(model.calibration, model.corrections, group.context).slope
    assert spread(DEVICE) / spread("another") == pytest.approx(slope / model.calibration.slope, rel=0.2)
