"""Output of `fleet library stale --rebuild`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fleet.cli.freshness_view import freshness_data, print_freshness
from fleet.cli.tables import make_console
from fleet.domain.freshness import KeptTime, judge
from fleet.optimizer.refreshing.changed_code import JudgedCode

NOW = datetime(2026, 11, 30, tzinfo=UTC)
TIMES = [KeptTime(measured_at=NOW, is_disturbed=False, device_sec=1.0, record_id=number) for number in range(1, 5)]
JUDGED = JudgedCode(
    changed=frozenset({1}),
    other_programs=frozenset({1, 2}),
    unknown_programs=frozenset({3, 4}),
    refused=1,
    refusal="stored fragment: is cut off\x1b[31m",
)


def test_changed_programs_and_refused_fragments_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The message of a refusal has no control characters."""
    found = judge(TIMES, {}, now=NOW, max_age=timedelta(days=1), changed=JUDGED.by_reason)

    print_freshness(found, make_console(is_wide=False), JUDGED)
    out = capsys.readouterr().out
    data = freshness_data(found, 86400.0, JUDGED)

    assert ["program", "2"] in [line.split()[:2] for line in out.splitlines()]
    assert "operators not known: 2 records" in out
    assert "1 fragment refused; the first: stored fragment: is cut off" in out
    assert "\x1b" not in out
    assert (data["unknown_code"], data["unknown_programs"], data["refused_fragments"]) == (0, 2, 1)
    assert freshness_data(found, 86400.0, None)["refused_fragments"] is None
