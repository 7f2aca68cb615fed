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
from tests.chaos.schedule import STANDBY, TRACKER, Fault, Kind, PairKind, make_storm, make_storm_of_pair
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


def storm_of_pair(number: int, *, length_sec: float) -> list[Fault]:
    faults = make_storm(
        1, number, first=5, length_sec=length_sec, agents=AGENTS, clients=CLIENTS, devices=DEVICES, kinds=("cpu",)
    )
    return make_storm_of_pair(1, number, faults, first=5, length_sec=length_sec, callers=(*AGENTS, *CLIENTS))


def test_a_storm_with_a_standby_has_all_other_faults_and_its_own() -> None:
    """Three storms have the three kinds of takeovers; no journal is torn."""
    storms = [storm_of_pair(number, length_sec=600.0) for number in range(3)]

    kinds = [{fault.kind for fault in storm} for storm in storms]
    assert set.union(*kinds) == {*Kind, *PairKind} - {Kind.TEAR}
    takeovers = {PairKind.FALL, PairKind.FREEZE, PairKind.SPLIT}
    assert all(len(takeovers & each) == 1 for each in kinds)
    assert storms[1] == storm_of_pair(1, length_sec=600.0)
    assert [fault.number for fault in storms[1]] == list(range(5, 5 + len(storms[1])))


def test_any_two_programs_of_a_pair_are_cut_off() -> None:
    """The standby from its tracker, and each agent and client from either."""
    cuts = {fault.target for fault in storm_of_pair(1, length_sec=3600.0) if fault.kind is PairKind.PART}

    callers = (*AGENTS, *CLIENTS)
    assert cuts == {f"{TRACKER}>{STANDBY}", *(f"{one}>{to}" for one in callers for to in (TRACKER, STANDBY))}
