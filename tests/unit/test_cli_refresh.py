"""Output and exit codes of `fleet library refresh`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer

from fleet.cli.library_refresh import end
from fleet.cli.refresh_view import print_refresh, refresh_data
from fleet.cli.shares import day_share, share
from fleet.errors import DeviceUnreachable
from fleet.optimizer.refreshing.measured import outcome
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.side_by_side import OLD
from tests.unit.refreshing_parts import NAMES, SCOPE, group, rebuilt, simulated

SLOWER = simulated(dict.fromkeys(NAMES, 1.1) | {OLD: 1.0}, 1)


def report(**more: object) -> RefreshReport:
    """Return a report of one slower and one unchanged workload."""
    outcomes = (outcome(SLOWER.group, SLOWER, None), outcome(group(rebuilt("x", "x"), name="softmax"), None, None))
    given: dict[str, object] = {"scope": SCOPE, "outcomes": outcomes, "environment": None, "carried": 2}
    return RefreshReport(to_measure=1, expected_sec=3.0, **(given | more))  # type: ignore[arg-type]


def test_a_proven_slowdown_above_the_limit_fails() -> None:
    """So does a lost device, with its own exit code."""
    end(report(), None)
    end(report(), 0.5)
    with pytest.raises(typer.Exit) as raised:
        end(report(), 0.03)
    assert raised.value.exit_code == 1
    with pytest.raises(DeviceUnreachable):
        end(report(problem=DeviceUnreachable("away")), 0.03)


@pytest.mark.parametrize(("text", "found"), [("3%", 0.03), ("0.03", 0.03), ("0", 0.0), ("100%", 1.0)])
def test_shares_are_written_with_and_without_percent(text: str, found: float) -> None:
    """The option takes both."""
    assert share(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["", "%", "-1%", "nan", "three"])
def test_other_shares_are_usage_errors(text: str) -> None:
    """The message has the form to write."""
    with pytest.raises(typer.BadParameter, match="3%"):
        share(text)


@pytest.mark.parametrize("text", ["0%", "0.009%", "101%", "10", "abc", "nan", "-1%", "inf", ""])
def test_a_share_of_a_day_lies_between_its_limits(text: str) -> None:
    """One sentence names them."""
    assert day_share("10%") == pytest.approx(0.1)
    with pytest.raises(typer.BadParameter, match=r"from 0\.01% to 100%"):
        day_share(text)


def test_news_have_a_row_and_the_rest_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Unchanged workloads are many, and of no interest each."""
    print_refresh(report())

    out = capsys.readouterr().out
    assert "slower by code" in out.splitlines()[1]
    assert "2 workloads: 1 kept, 1 slower by code" in out
    assert "softmax" not in out


def test_new_programs_have_a_row_and_refused_fragments_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Data has both hashes; the message of a refusal has no control characters."""
    renewed = replace(report().outcomes[1], new_shash="17")
    found = report(outcomes=(renewed,), refused_fragments=2, refusal="stored fragment: is cut off\x1b[1m")

    print_refresh(found)
    out = capsys.readouterr().out
    data = json.loads(json.dumps(refresh_data(found)))

    assert "kept, new program" in out.splitlines()[1]
    assert "another program than before: 1 workload" in out
    assert "2 fragments refused; the first: stored fragment: is cut off" in out
    assert "\x1b" not in out
    assert (data["workloads"][0]["shash"], data["workloads"][0]["new_shash"]) == ("1", "17")
    assert data["refused_fragments"] == 2


def test_a_dry_run_tells_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run measures nothing and shows no verdicts."""
    print_refresh(report(is_dry_run=True))

    assert capsys.readouterr().out == (
        "2 records would be carried; 1 workload would be measured; with the sentinels about 3 s of device time\n"
    )


def test_data_has_both_digests_and_the_interval() -> None:
    """Scripts read the verdict by its name."""
    found = json.loads(json.dumps(refresh_data(report())))["workloads"][0]

    assert (found["verdict"], found["old_digest"], found["new_digest"]) == ("slower by code", "old", "former")
    assert 1.0 < found["code"]["low"] <= found["ratio"] <= found["code"]["high"]
