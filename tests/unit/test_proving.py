"""Proofs: inputs that vary from call to call, numbers of calls, and times that prove a claim."""

from __future__ import annotations

import random

import pytest

from fleet.domain.measuring import TensorSpec
from fleet.domain.proving import (
    EXTRA_ITEMS,
    ProofArgument,
    ProofOrder,
    RowTimes,
    choose_rows,
    contents_of_call,
    item_bytes,
    vary,
    varying,
)

_SPEC = TensorSpec((500,), "float32")


def argument(*, is_fixed: bool = False) -> ProofArgument:
    bank = random.Random(1).randbytes(4 * (500 + EXTRA_ITEMS))
    return ProofArgument(spec=_SPEC, bank=bank, is_fixed=is_fixed)


def order(claimed_sec: float, *args: ProofArgument) -> ProofOrder:
    output = ProofArgument(spec=TensorSpec((500,), "float32", is_output=True))
    return ProofOrder(artifact_digest="", args=(*args, output), claimed_sec=claimed_sec)


@pytest.mark.parametrize("claimed_sec", [1e-9, 1e-6, 1e-3, 10.0])
def test_a_client_knows_the_inputs_of_every_call(claimed_sec: float) -> None:
    """Worker and client derive the same inputs from one seed, for the kernel and for the reference."""
    asked = order(claimed_sec, argument(), argument(is_fixed=True))
    live = bytearray(_SPEC.size_bytes)
    bank = memoryview(asked.args[0].bank)
    changes = vary(b"seed", [varying(memoryview(live), bank, item_bytes(_SPEC), claimed_sec)])

    for call in range(20):
        next(changes)
        assert contents_of_call(asked, b"seed", call) == [bytes(live), asked.args[1].bank[: len(live)], None]


@pytest.mark.parametrize("claimed_sec", [1e-9, 1e-3])
def test_inputs_differ_from_call_to_call_and_from_row_to_row(claimed_sec: float) -> None:
    """No earlier result is the answer to a later call, or to a row with another seed."""
    asked = order(claimed_sec, argument())

    seen = {contents_of_call(asked, seed, call)[0] for seed in (b"one", b"two") for call in range(50)}

    assert len(seen) > 95


def test_a_single_number_differs_too() -> None:
    """The number is drawn from its bank anew for each call."""
    bank = random.Random(2).randbytes(4 * (1 + EXTRA_ITEMS))
    asked = order(1e-6, ProofArgument(spec=TensorSpec((1,), "float32"), bank=bank))

    assert len({contents_of_call(asked, b"seed", call)[0] for call in range(50)}) > 40


@pytest.mark.parametrize(
    ("claimed_sec", "empty_sec"), [(1e-9, 5e-6), (1e-6, 5e-6), (1e-4, 1e-4), (0.02, 1e-5), (3.0, 1e-5)]
)
def test_rows_last_five_milliseconds_and_differ(claimed_sec: float, empty_sec: float) -> None:
    """The duration includes the harness. The two rows have different, unpredictable lengths."""
    rng = random.Random(3)
    chosen = [choose_rows(claimed_sec, empty_sec, rng) for _ in range(20)]

    assert all(1 <= short < long for short, long in chosen)
    assert all(long * (claimed_sec + empty_sec) >= 0.005 for _, long in chosen)
    assert len({long for _, long in chosen}) > 1


def times(
    run_sec: float, *, empty_sec: float = 5e-6, short: int = 1000, long: int = 3000, **changes: float
) -> RowTimes:
    """Return times of a kernel that takes `run_sec`, on a machine without noise."""
    fixed_sec, empty_sec = 2e-4, 5e-6
    found: dict[str, float] = {
        "empty_short_sec": fixed_sec + short * empty_sec,
        "empty_long_sec": fixed_sec + long * empty_sec,
        "short_sec": fixed_sec + short * (empty_sec + run_sec),
        "long_sec": fixed_sec + long * (empty_sec + run_sec),
    }
    return RowTimes(short=short, long=long, **{**found, **changes})


@pytest.mark.parametrize("run_sec", [1e-7, 1e-6, 1e-5, 1e-3])
def test_an_honest_claim_is_proven_with_room_to_spare(run_sec: float) -> None:
    """The slope is the time, and a claim of a tenth less would still be proven."""
    found = times(run_sec)

    assert found.measured_sec == pytest.approx(run_sec)
    assert found.least_sec <= 0.9 * run_sec


def test_a_claim_of_half_the_time_is_not_proven() -> None:
    """Calls of the harness are short compared with the kernel."""
    assert times(1e-5).least_sec > 0.5e-5
    assert times(1e-3, short=3, long=7).least_sec > 0.5e-3


def test_a_short_row_that_is_slow_on_purpose_does_not_help() -> None:
    """The slope is small then, but the long row still takes its time."""
    slow = times(1e-4)
    assert times(1e-4, short_sec=slow.long_sec).measured_sec == 0.0
    assert times(1e-4, short_sec=slow.long_sec).least_sec > 0.7e-4
