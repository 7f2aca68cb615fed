"""The rules that all JSON of the command line keeps."""

from __future__ import annotations

import enum
import json
import math
from datetime import datetime, timedelta, timezone

import pytest

from fleet.cli.json_out import SCHEMA, in_seconds, print_document


class State(enum.Enum):
    FREE = "FREE"


def test_lengths_of_time_are_seconds_everywhere_but_in_a_whole_model() -> None:
    """Durations are converted at any depth; unknown ones stay unknown."""
    rows = [{"best_us": 2.0, "least_us": None, "took_ms": 3}]

    assert in_seconds({"rows": rows, "model": {"tuned_ms": 9.0}}) == {
        "rows": [{"best_sec": 2e-6, "least_sec": None, "took_sec": 3e-3}],
        "model": {"tuned_ms": 9.0},
    }


def test_moments_are_rfc_3339_in_utc() -> None:
    """Times with a zone and seconds since 1970 are written alike."""
    when = datetime(2026, 11, 22, 21, 0, tzinfo=timezone(timedelta(hours=1)))

    assert in_seconds({"made_at": when, "at_sec": 0, "state": State.FREE}) == {
        "made_at": "2026-11-22T20:00:00Z",
        "at": "1970-01-01T00:00:00Z",
        "state": "free",
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nonfinite_numbers_are_written_as_null(number: float, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent may send any reading; "NaN" would end every other reader than Python's."""
    print_document({"temp_c": number, "best_us": number, "more": [number], "model": {"tuned_ms": number}})

    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "schema": SCHEMA,
        "temp_c": None,
        "best_sec": None,
        "more": [None],
        "model": {"tuned_ms": None},
    }
