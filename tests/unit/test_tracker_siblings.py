"""A device that is slower than its siblings for half an hour is found, and nothing shorter counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.tracker.core.siblings import LASTING_SEC, Siblings

T0 = 1_000_000.0


@pytest.fixture
def siblings() -> Siblings:
    """Three siblings with a median of 1 ms."""
    siblings = Siblings()
    for name, reference_sec in (("a", 0.9e-3), ("b", 1e-3), ("c", 5e-3)):
        siblings.note(name, "pi", reference_sec, T0)
    return siblings


def test_a_device_is_slow_after_half_an_hour_of_slow_readings(siblings: Siblings) -> None:
    found = [siblings.note("d", "pi", 1.2e-3, T0 + sec) for sec in (0.0, 900.0, LASTING_SEC - 1, LASTING_SEC)]

    assert found == [None, None, None, True]


def test_one_good_reading_ends_a_slow_time(siblings: Siblings) -> None:
    siblings.note("d", "pi", 1.2e-3, T0)
    siblings.note("d", "pi", 1.1e-3, T0 + 60.0)

    assert siblings.note("d", "pi", 1.2e-3, T0 + LASTING_SEC) is None
    assert siblings.note("d", "pi", 1.2e-3, T0 + 2 * LASTING_SEC) is True


def test_a_device_is_well_after_half_an_hour_of_good_readings(siblings: Siblings) -> None:
    siblings.note("d", "pi", 1.1e-3, T0)

    assert siblings.note("d", "pi", 1.0e-3, T0 + LASTING_SEC) is False


@pytest.mark.parametrize(("gone", "model"), [("a", "pi"), ("", "other model")])
def test_a_device_with_two_siblings_is_not_judged(siblings: Siblings, gone: str, model: str) -> None:
    siblings.forget(gone)
    siblings.note("d", model, 9.0, T0)

    assert siblings.note("d", model, 9.0, T0 + LASTING_SEC) is None


def test_a_clock_set_back_begins_the_half_hour_again(siblings: Siblings) -> None:
    siblings.note("d", "pi", 1.2e-3, T0)
    siblings.note("d", "pi", 1.2e-3, T0 - 86_400.0)

    assert siblings.note("d", "pi", 1.2e-3, T0 - 86_400.0 + LASTING_SEC - 1) is None


def test_a_restarted_device_has_half_an_hour(siblings: Siblings) -> None:
    siblings.note("d", "pi", 1.2e-3, T0)
    siblings.restart("d")

    assert siblings.note("d", "pi", 1.2e-3, T0 + LASTING_SEC) is None


READINGS = st.tuples(st.sampled_from("abcde"), st.sampled_from(["x", "y"]), st.floats(allow_nan=True), st.booleans())


@given(st.lists(READINGS, max_size=40))
def test_any_readings_leave_consistent_tables(readings: list[tuple[str, str, float, bool]]) -> None:
    """Forgetting all devices leaves nothing, whatever agents reported."""
    siblings = Siblings()
    for number, (name, model, reference_sec, is_gone) in enumerate(readings):
        siblings.note(name, model, reference_sec, T0 + 600.0 * number)
        if is_gone:
            siblings.forget(name)
    for name in "abcde":
        siblings.forget(name)

    assert siblings.note("f", "x", math.nan, T0) is None
    assert not siblings._devices  # noqa: SLF001 - nothing else shows what is kept
    assert not siblings._times  # noqa: SLF001
