"""Programs that were to blame once: the second time within seven days is proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agents.serving.doubts import Doubts
from fleet.domain.poison import KEPT_SEC, MAX_POISON
from fleet.testing import FakeClock

A, B = ("sha256:" + letter * 64 for letter in "ab")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "doubts.json"


@pytest.mark.parametrize(("after_sec", "is_proof"), [(KEPT_SEC - 1.0, True), (KEPT_SEC + 1.0, False)])
def test_the_second_time_within_seven_days_is_proof(
    path: Path, clock: FakeClock, after_sec: float, is_proof: bool
) -> None:
    """Also over a restart of the agent, and whatever other programs did meanwhile."""
    assert not Doubts(path, clock.now_sec).confirm(A)
    assert not Doubts(path, clock.now_sec).confirm(B)
    clock.advance(after_sec)

    assert Doubts(path, clock.now_sec).confirm(A) == is_proof


def test_proof_uses_a_doubt_up(path: Path, clock: FakeClock) -> None:
    """Another two times are needed after that."""
    doubts = Doubts(path, clock.now_sec)

    assert [doubts.confirm(A) for _ in range(4)] == [False, True, False, True]


def test_a_clock_that_was_set_back_keeps_no_doubt_for_longer(path: Path, clock: FakeClock) -> None:
    """Its doubts are as old as the clock that it was set to."""
    ahead = FakeClock()
    ahead.advance(10 * KEPT_SEC)
    Doubts(path, ahead.now_sec).confirm(A)
    Doubts(path, clock.now_sec).confirm(B)
    clock.advance(KEPT_SEC + 1.0)

    assert not Doubts(path, clock.now_sec).confirm(A)


def test_very_many_programs_displace_the_oldest(clock: FakeClock) -> None:
    doubts = Doubts(None, clock.now_sec)
    for number in range(MAX_POISON + 1):
        doubts.confirm(str(number))

    assert (doubts.confirm("1"), doubts.confirm("0")) == (True, False)


@pytest.mark.parametrize(
    "content",
    ["", "[" * 100_000, "[1]", json.dumps({A: "x"}), json.dumps({A: None}), json.dumps({"x": 1}), " " * 2_000_000],
)
def test_a_damaged_file_counts_as_empty(path: Path, clock: FakeClock, content: str) -> None:
    """The next one is written over it."""
    path.parent.mkdir()
    path.write_text(content)

    assert not Doubts(path, clock.now_sec).confirm(A)
    assert Doubts(path, clock.now_sec).confirm(A)


def test_doubts_hold_in_the_running_agent_where_no_file_can_be_written(path: Path, clock: FakeClock) -> None:
    path.parent.write_text("no folder")
    doubts = Doubts(path, clock.now_sec)

    assert (doubts.confirm(A), doubts.confirm(A)) == (False, True)
