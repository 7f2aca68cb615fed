"""Value of the next batches of one workload, and of the rest of a job.

The rest divides the time ahead among the workloads as in a fractional knapsack (Dantzig, 1957): the largest gain per
second first, each workload up to the most that can be looked ahead. The result is an upper bound of the expected gain,
since a batch cannot be divided.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.optimizer.prioritizer.futures import from_predictions, from_records, gains
from fleet.optimizer.prioritizer.values import BatchOutcome, DeviceState, LogSecs, Rest, WorkloadState

HORIZONS = (1, 2, 4, 8)
"""Batches that are looked ahead. One batch often gains nothing where four gain much."""

_FUTURES = 128
_DOUBT = 0.05
"""Share of a workload's time that estimates are taken to have promised, and kept, before the first outcome."""

_LEAST_TRUST, _MOST_TRUST = 0.02, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Most profitable batch size and horizon for a workload's next batches."""

    count: int
    horizon: int
    share: float
    """Share of the workload's time that is gained over the horizon."""

    spread: float
    """Standard deviation of `share`."""

    first_share: float
    """Gained by the first batch."""

    far_share: float
    """Share that all trials within the horizon should gain, even if the job's budget is smaller."""

    far_count: int
    """Trials that can be looked ahead."""

    device_sec: float
    """Device time of one batch."""

    builder_sec: float
    rate: float
    """Share of the workload's time gained per second of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Cost of a batch."""

    device_sec: float
    builder_sec: float
    total_sec: float
    """Device seconds, plus the value of the builders' seconds."""


def price_of(state: WorkloadState, device: DeviceState, count: int) -> Price:
    """Return the cost of a batch by its number of trials."""
    device_sec = state.round_device_sec + count * state.trial_device_sec
    builder_sec = state.round_builder_sec + count * state.trial_builder_sec
    return Price(
        device_sec=device_sec, builder_sec=builder_sec, total_sec=device_sec + device.builder_price * builder_sec
    )


def estimate(
    state: WorkloadState,
    device: DeviceState,
    predicted: LogSecs | None,
    *,
    left_sec: float,
    enough_sec: float = 0.0,
    usual_spread: float,
    seed: int,
) -> Estimate:
    """Estimate gains by Monte Carlo. Deterministic.

    Args:
        state: with a known time and trials left.
        predicted: unless all of it is finite, it says nothing.
        left_sec: until its job's deadline; longer batches are not considered, except the smallest.
        enough_sec: with this time its job has all that it asked for, so nothing below it is a gain.
    """
    sizes = _sizes(state.least_batch, min(state.max_batch, state.trials_left))
    ahead = min(max(sizes) * max(HORIZONS), max(state.trials_left, max(sizes)))
    rng = np.random.default_rng([seed, zlib.crc32(state.name.encode()), len(state.run_secs)])
    futures = from_records(state.run_secs, ahead, _FUTURES, rng, usual_spread)
    if predicted is not None and predicted.size and np.isfinite(predicted).all():
        near = predicted[:, :ahead]
        futures[:, : near.shape[1]] = from_predictions(near, _FUTURES, rng)
    far_share = float(gains(futures, state.current_sec, state.least_sec)[:, -1].mean())
    shares = gains(futures, state.current_sec, max(state.least_sec, enough_sec))
    means = shares.mean(axis=0)
    found: list[Estimate] = []
    for count in sizes:
        price = price_of(state, device, count)
        for horizon in HORIZONS:
            is_reachable = horizon * count <= ahead and horizon * price.total_sec <= left_sec
            if found and not is_reachable:
                break
            after = min(horizon * count, ahead) - 1
            found.append(
                Estimate(
                    count=count,
                    horizon=horizon,
                    share=float(means[after]),
                    spread=float(shares[:, after].std()),
                    first_share=float(means[count - 1]),
                    far_share=far_share,
                    far_count=ahead,
                    device_sec=price.device_sec,
                    builder_sec=price.builder_sec,
                    rate=float(means[after]) / (horizon * price.total_sec),
                )
            )
    return max(found, key=lambda one: (one.rate, one.count, -one.horizon))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """Expected gain of one open workload."""

    rate: float
    """Gain per priced second [weighted s/s], >= 0."""

    most_sec: float
    """Most that can be looked ahead to [weighted s], >= 0."""


def rest_of(prospects: Sequence[Prospect], *, within_sec: float, latency_sec: float) -> Rest:
    """Return the gain that the next `within_sec` of a job should bring.

    Args:
        within_sec: priced seconds: device seconds plus the builders' seconds at their price.
        latency_sec: current latency of the job's model [weighted s].
    """
    left_sec, gain_sec = within_sec, 0.0
    for prospect in sorted(prospects, key=lambda one: -one.rate):
        if prospect.rate <= 0 or left_sec <= 0:
            break
        gained_sec = min(prospect.most_sec, prospect.rate * left_sec)
        gain_sec += gained_sec
        left_sec -= gained_sec / prospect.rate
    return Rest(gain_sec=gain_sec, within_sec=within_sec, latency_sec=latency_sec)


def trust(own: Sequence[BatchOutcome], others: Sequence[BatchOutcome]) -> float:
    """Return the realised share of the promised gains: a workload's own, shrunk towards that of its job's others."""
    return _kept(own, _kept(others, 1.0))


def _kept(outcomes: Sequence[BatchOutcome], before: float) -> float:
    expected = _DOUBT + math.fsum(outcome.expected for outcome in outcomes)
    gained = _DOUBT * before + math.fsum(outcome.gained for outcome in outcomes)
    return min(max(gained / expected, _LEAST_TRUST), _MOST_TRUST)


def _sizes(least: int, most: int) -> list[int]:
    """Return the batch sizes to choose from: doubling up to the limit."""
    sizes = [min(least, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes
