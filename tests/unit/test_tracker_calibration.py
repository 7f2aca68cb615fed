"""Forecasts are corrected by the waits that followed: a regression, a calibrated interval, the most likely wait."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.lease_class import LeaseClass
from fleet.domain.waits import Forecast
from fleet.tracker.calibration import Calibration, most_likely

BATCH, NORMAL = LeaseClass.BATCH, LeaseClass.NORMAL


def test_intervals_cover_four_of_five_waits() -> None:
    """Actual waits are three times as long as their schedulings, with much scatter."""
    rng, calibration = random.Random(5), Calibration()
    covered = []
    for _ in range(1_000):
        start_sec = rng.uniform(10, 1_000)
        wait_sec = 3 * start_sec * 2 ** rng.gauss(0, 1)
        said = calibration.forecast(NORMAL, [start_sec])
        assert said is not None
        covered.append(said.forecast.from_sec <= wait_sec <= said.forecast.by_sec)
        calibration.add(said, wait_sec)
    assert statistics.mean(covered[200:]) == pytest.approx(0.8, abs=0.03)


def learned(wait_of: str, count: int = 400) -> Calibration:
    """Return a calibration that has seen waits which depend on one feature, within 10 %."""
    rng, calibration = random.Random(3), Calibration()
    for _ in range(count):
        start_sec, lane_age_sec, use_rank = rng.uniform(50, 2_000), rng.uniform(1, 2_000), rng.random()
        said = calibration.forecast(BATCH, [start_sec], lane_age_sec=lane_age_sec, use_rank=use_rank)
        assert said is not None
        wait_sec = {"rank": start_sec * math.exp(3 * use_rank), "age": lane_age_sec, "start": start_sec**1.5}[wait_of]
        calibration.add(said, wait_sec * rng.uniform(0.9, 1.1))
    return calibration


@pytest.mark.parametrize(
    ("wait_of", "expected_sec"), [("rank", 400.0 * math.exp(1.5)), ("age", 30.0), ("start", 400.0**1.5)]
)
def test_the_expected_wait_follows_each_feature(wait_of: str, expected_sec: float) -> None:
    said = learned(wait_of).forecast(BATCH, [400.0], lane_age_sec=30.0, use_rank=0.5)
    assert said is not None
    assert said.forecast.expected_sec == pytest.approx(expected_sec, rel=0.15)


def test_classes_are_calibrated_apart() -> None:
    said = learned("rank").forecast(NORMAL, [400.0], use_rank=0.5)
    assert said is not None
    assert said.forecast == Forecast(from_sec=400.0, expected_sec=400.0, by_sec=400.0)


def test_old_waits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regression over the latest waits is the same as if there had been no others."""
    monkeypatch.setattr("fleet.tracker.calibration._REMEMBERED_WAITS", 200)
    rng, long_lived, recent = random.Random(1), Calibration(), Calibration()
    for number in range(700):
        start_sec = rng.uniform(50, 2_000)
        factor = 9.0 if number < 300 else 2.0
        for calibration in (long_lived, recent)[: 1 if number < 300 else 2]:
            said = calibration.forecast(BATCH, [start_sec])
            assert said is not None
            calibration.add(said, factor * start_sec)
    found = [calibration.forecast(BATCH, [500.0]) for calibration in (long_lived, recent)]
    assert [said.forecast.expected_sec for said in found if said] == pytest.approx([1_000.0] * 2, rel=0.05)


def test_the_most_likely_wait_is_right_for_the_most() -> None:
    """Three of five waits lie within 40 % of the forecast; the median would be right for two."""
    secs = [1.0, 100.0, 400.0, 420.0, 440.0]
    found = math.exp(most_likely([math.log(sec) for sec in secs]))
    assert sum(abs(found - sec) <= 0.4 * sec for sec in secs) == 3


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1)), max_size=60),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=24),
)
def test_the_expected_wait_lies_in_the_interval(waits: list[tuple[float, ...]], starts_sec: list[float]) -> None:
    """The interval is finite and not in the past, whatever the waits were."""
    calibration = Calibration()
    for start_sec, wait_sec, lane_age_sec, use_rank in waits:
        said = calibration.forecast(BATCH, [start_sec], lane_age_sec=lane_age_sec, use_rank=use_rank)
        assert said is not None
        calibration.add(said, wait_sec)
    said = calibration.forecast(BATCH, starts_sec)
    assert said is not None
    assert 0 <= said.forecast.from_sec <= said.forecast.expected_sec <= said.forecast.by_sec < math.inf


def test_without_schedulings_there_is_no_forecast() -> None:
    assert Calibration().forecast(NORMAL, []) is None
