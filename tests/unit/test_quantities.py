"""Quantities read easily: a fitting unit, few digits."""

from __future__ import annotations

import pytest

from fleet.base.quantities import elapsed_text, size_text, time_text


@pytest.mark.parametrize(
    ("sec", "expected"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7500, "2 h 05 min"), (100_000, "1 d 3 h")],
)
def test_elapsed_times_have_at_most_two_units(sec: float, expected: str) -> None:
    """Seconds become minutes, hours with minutes, then days with hours."""
    assert elapsed_text(sec) == expected


@pytest.mark.parametrize(
    ("sec", "digits", "expected"),
    [
        (None, 4, "-"),
        (8.5e-7, 3, "850 ns"),
        (12.34e-6, 3, "12.3 us"),
        (161.23e-6, 4, "161.2 us"),
        (161e-6, 2, "160 us"),
        (4.56e-3, 3, "4.56 ms"),
        (999.96e-6, 4, "1000 us"),
        (1.2, 3, "1.2 s"),
        (12345.0, 4, "12340 s"),
    ],
)
def test_measured_times_have_a_fitting_unit_and_no_exponent(sec: float | None, digits: int, expected: str) -> None:
    """Digits that are not significant are zeros."""
    assert time_text(sec, digits=digits) == expected


@pytest.mark.parametrize(("size_bytes", "expected"), [(0, "-"), (900, "900 B"), (512e6, "512 MB"), (3.84e9, "3.84 GB")])
def test_sizes_have_a_fitting_unit(size_bytes: int, expected: str) -> None:
    """Units are powers of 1000."""
    assert size_text(size_bytes) == expected
