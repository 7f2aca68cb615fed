"""Flat and rising trends of the soak benchmark."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak import Sample, trend_of


def samples(*memory_mb: float) -> list[Sample]:
    """Return samples that are five seconds apart."""
    return [
        Sample(
            at_sec=5.0 * number,
            memory_mb=each,
            cpu_ms_per_grant=0.1,
            threads=9,
            files=40,
            grants_per_sec=500.0,
            p50_ms=1.0,
            p99_ms=2.0,
        )
        for number, each in enumerate(memory_mb, 1)
    ]


def test_a_leak_is_reported_per_hour() -> None:
    """A tenth of a megabyte in every five seconds, beside noise of two."""
    rng = random.Random(1)

    trend = trend_of(samples(*(100.0 + 0.1 * number + rng.gauss(0.0, 2.0) for number in range(200))), "memory_mb")

    assert trend.is_rising
    assert trend.per_hour == pytest.approx(72.0, rel=0.1)


def test_initial_growth_and_noise_are_flat() -> None:
    """Caches fill at first; later ups and downs are no trend."""
    rng = random.Random(2)
    filling = [40.0 + number for number in range(60)]

    trend = trend_of(samples(*filling, *(100.0 + rng.gauss(0.0, 2.0) for _ in range(140))), "memory_mb")

    assert not trend.is_rising
    assert trend.mean == pytest.approx(100.0, rel=0.01)


def test_too_few_samples_are_no_line() -> None:
    """Too few samples are an error instead of a meaningless slope."""
    with pytest.raises(ValueError, match="too few"):
        trend_of(samples(1.0, 2.0), "memory_mb")
