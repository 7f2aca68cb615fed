"""A fleet passes through a storm, and its logs prove that nothing went wrong. `make chaos` is the long form."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.domain.leases import LeaseClass
from tests.chaos.apart import run_apart
from tests.chaos.checker import Bounds, check
from tests.chaos.history import Event, What, read
from tests.chaos.schedule import Kind, make_storm
from tests.chaos.summary import shown_finding, summarize

SEED, SECONDS = 136, 20.0
"""One storm with thirty faults: every kind, and every process killed but one agent."""
PATIENT = Bounds(served_sec=100.0)
AGENTS, CLIENTS, DEVICES = ("agent-0", "agent-1"), ("client-0",), ("a-0", "b-0")


def kinds(history: Sequence[Event]) -> set[str]:
    return set(summarize(SEED, history, []).faults)


def test_a_machine_without_the_commands_for_namespaces_is_told_their_packages(tmp_path: Path) -> None:
    """Before, it was a traceback after "sh: 1: ip: not found"."""
    words = [sys.executable, "-m", "tests.chaos", "--minutes", "0.01"]
    done = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "install ip (package iproute2) and unshare (package util-linux)" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_goes_through_storms(tmp_path: Path) -> None:
    """Through kills, stops, cuts, full disks and changed clocks, no device has two holders, no epoch decreases, and no
    record, client or process is lost, starved or left over.
    """
    history = read(sorted(run_apart(tmp_path, seed=SEED, seconds=SECONDS, bounds=PATIENT).glob("*.jsonl")))

    findings = check(history, PATIENT)

    assert not findings, "\n".join(shown_finding(SEED, history, finding) for finding in findings)
    assert set(Kind) == kinds(history)
    seen = {event.what for event in history}
    assert {What.BEGIN, What.GRANT, What.RECORDED, What.CENSUS, What.LEFT, What.RESUMING} <= seen
    assert {What.OPENED, What.QUEUED, What.OVER, What.DEMANDED} <= seen
    granted = [event for event in history if event.what is What.GRANTED]
    assert set(LeaseClass) == {event.lease_class for event in granted}
    assert any(event.of_set for event in granted)


def test_a_seed_gives_its_storm_again() -> None:
    """Another seed, or another storm of the same seed, differs."""

    def storm(seed: int, number: int) -> list[tuple[float, str]]:
        faults = make_storm(
            seed, number, first=0, length_sec=60.0, agents=AGENTS, clients=CLIENTS, devices=DEVICES, kinds=("cpu",)
        )
        return [(fault.at_sec, fault.target) for fault in faults]

    assert storm(1, 2) == storm(1, 2)
    assert storm(1, 2) != storm(1, 3)
    assert storm(1, 2) != storm(2, 2)


def test_every_kind_of_fault_comes() -> None:
    """An hour's schedule contains every kind of fault, each at a program that can have it."""
    faults = make_storm(
        1, 0, first=5, length_sec=3600.0, agents=AGENTS, clients=CLIENTS, devices=DEVICES, kinds=("cpu",)
    )

    assert set(Kind) == {fault.kind for fault in faults}
    assert {"tracker"} == {fault.target for fault in faults if fault.kind is Kind.TEAR}
    assert list(range(5, 5 + len(faults))) == [fault.number for fault in faults]
