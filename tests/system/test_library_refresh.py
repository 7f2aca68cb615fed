"""Refreshes on simulated devices with scripted times: tracker and agent are real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import ErrorKind, FleetError
from fleet.library import Library
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.verdicts import Verdict
from tests.programs import environment
from tests.system.fleet_processes import Fleet, running_fleet
from tests.system.refresh_script import BEFORE, TODAY, Script, add_old, refresh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_CONFIG = "devices: [{driver: simulated, name: sim, noise: 0.005, time_scale: 0}]"
EQUAL = ("e1", "e2", "e3")
"""Workloads with unchanged code."""

NEW = ("a2", "b2", "c2")
"""Workloads with new programs."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), _CONFIG) as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "library.sqlite"


def make(path: Path, *, changed: tuple[str, ...] = (), slowdown: float = 1.0) -> Script:
    """Make a library and its script: the code of some workloads changed, and the board is slower than it was."""
    with Library.open(path) as library:
        for name in (*EQUAL, *changed):
            add_old(library, path.parent, name, f"best {name}", "100 old", then_us=100 / slowdown)
    return {f"best {name}": "100 old" for name in EQUAL} | {f"best {name}": "100 new" for name in changed}


def run(
    path: Path, fleet: Fleet, script: Script, *, wait_timeout_sec: float = 60, is_dry_run: bool = False
) -> tuple[RefreshReport, dict[str, Verdict]]:
    report = asyncio.run(refresh(path, fleet.address, script, wait_timeout_sec=wait_timeout_sec, is_dry_run=is_dry_run))
    return report, {one.shash: one.verdict for one in report.outcomes}


def test_each_workload_gets_the_verdict_of_its_code(path: Path, fleet: Fleet) -> None:
    """Old and new code run side by side: the slower one is found, and a rival that is faster by now takes its place."""
    script = dict(make(path, changed=("same", "slow", "fast", "rival", "lost", "static", "wrong")))
    script |= {"best slow": "110 new", "best fast": "80 new", "best rival": "130 new", "other rival": "101 new"}
    script |= {"best static": "120 new", "static static": "70 new", "best wrong": "90 wrong"}
    del script["best lost"]
    with Library.open(path) as library:
        add_old(library, path.parent, "rival", "other rival", "125 old")
        add_old(library, path.parent, "unknown", "best unknown", "100 old", is_kept=False)
    report, found = run(path, fleet, script | {"best unknown": "100 new"})

    assert found == {
        **dict.fromkeys(EQUAL, Verdict.CARRIED),
        "same": Verdict.CARRIED,
        "slow": Verdict.SLOWER_BY_CODE,
        "fast": Verdict.FASTER,
        "rival": Verdict.CHOICE_CHANGED,
        "lost": Verdict.NO_VERDICT,
        "static": Verdict.CHOICE_CHANGED,
        "unknown": Verdict.NO_VERDICT,
        "wrong": Verdict.NO_VERDICT,
    }
    assert [one.shash for one in report.slower(0.03)] == ["slow"]
    assert (report.slower(0.2), report.problem) == ([], None)
    with Library.open(path) as library:
        schedules = [json.loads(one.trace_json) for one in library.best_schedules(TODAY, ["static"])]
        assert schedules == ["static static", "best static"]
        assert len(library.carried()) == len(EQUAL)
        assert [one.checked for one in library.records("slow", TODAY)] == [True]
        assert [one.error for one in library.records("wrong", TODAY)] == [ErrorKind.WRONG_OUTPUT]


def test_a_slower_board_is_no_slower_code(path: Path, fleet: Fleet) -> None:
    """The old code of all workloads takes longer than it did; only changed code that is slower beside it is blamed."""
    script = make(path, changed=("same", "slow"), slowdown=1.2)

    report, found = run(path, fleet, {**script, "best slow": "110 new"})

    blamed = Verdict.SLOWER_BY_ENVIRONMENT
    assert found == {**dict.fromkeys(EQUAL, blamed), "same": blamed, "slow": Verdict.SLOWER_BY_CODE}
    assert report.environment is not None
    assert report.environment.low > 1.1
    assert len(report.slower(0.03)) == 5


def test_noise_is_no_news_and_a_second_run_measures_no_changed_code(path: Path, fleet: Fleet) -> None:
    """Today's code is in the records by then, so that all of it is the same."""
    script = make(path, changed=("same",))

    first, found = run(path, fleet, script)
    second, again = run(path, fleet, script)

    assert (set(found.values()), first.to_measure) == ({Verdict.CARRIED}, 1)
    assert (set(again.values()), second.to_measure, second.carried) == ({Verdict.KEPT}, 0, 0)


def test_a_dry_run_changes_nothing(path: Path, fleet: Fleet) -> None:
    """It tells the records to carry, the workloads to measure, and their device time."""
    script = make(path, changed=("same",))
    before = path.read_bytes()

    report, found = run(path, fleet, script, is_dry_run=True)

    assert (report.carried, report.to_measure, report.expected_sec > 0) == (3, 1, True)
    assert found["same"] is Verdict.NO_VERDICT
    assert path.read_bytes() == before


def test_a_new_program_is_measured_with_the_former_best_schedules_first(path: Path, fleet: Fleet) -> None:
    """They are adapted and run beside the static schedule and the old code. A second run finds the new records."""
    script = dict(make(path, changed=("a", "b", "c", "d")))
    script |= {"best a on a2": "100 new", "static a2": "150 new", "best b on b2": "120 new", "static b2": "90 new"}
    script |= {"static c2": "120 new"}
    with Library.open(path) as library:
        fragments = {"a": b"a2", "b": b"b2", "c": b"c2", "d": b"d2", "e1": b"e1", "e2": b""}
        library.add_fragments(TODAY.target_json, fragments)

    report, found = run(path, fleet, script)
    again, later = run(path, fleet, script)

    assert found == {
        **dict.fromkeys(EQUAL, Verdict.CARRIED),
        "a": Verdict.CARRIED,
        "b": Verdict.CHOICE_CHANGED,
        "c": Verdict.SLOWER_BY_CODE,
        "d": Verdict.NO_VERDICT,
    }
    assert {one.shash: one.new_shash for one in report.outcomes if one.new_shash} == {
        name: f"{name}2" for name in "abcd"
    }
    assert "no schedule fits its new program" in next(one.problem for one in report.outcomes if one.shash == "d")
    assert (report.new_programs, report.refused_fragments) == (4, 1)
    assert "is cut off" in report.refusal
    assert [name for name in sorted(later) if name.startswith(("a", "b", "c"))] == ["a2", "b2", "c2"]
    assert (again.new_programs, again.to_measure) == (1, 0)
    with Library.open(path) as library:
        schedules = {one: [json.loads(best.trace_json) for best in library.best_schedules(TODAY, [one])] for one in NEW}
        assert schedules == {
            "a2": ["best a on a2", "static a2"],
            "b2": ["static b2", "best b on b2"],
            "c2": ["static c2"],
        }
        assert len(library.records("a", BEFORE)) == 1
        origins = [record.provenance["origin"] for record in library.best_schedules(TODAY, ["a2"])]
        assert origins[0] == {"source": "space", "knobs": "tile=4", "is_adapted": True}
        assert library.fragments(TODAY.target_json, ["a", "a2"]) == {"a": b"a2", "a2": b"a2"}


def test_a_program_with_records_is_no_new_one(path: Path, fleet: Fleet) -> None:
    """It was tuned since. Of two former programs that are one now, one is measured."""
    script = dict(make(path, changed=("old", "one", "two")))
    script |= {"best one on new": "100 new", "best two on new": "100 new"}
    with Library.open(path) as library:
        library.add_fragments(TODAY.target_json, {"old": b"e1", "one": b"new", "two": b"new"})

    report, found = run(path, fleet, script)

    assert found == {**dict.fromkeys(EQUAL, Verdict.CARRIED), "one": Verdict.CARRIED}
    assert report.to_measure == 1


def test_a_killed_refresh_loses_nothing(path: Path, fleet: Fleet) -> None:
    """After kill -9 the measured records are there, and a second run goes on with the others."""
    script = make(path, changed=("same", "more"))
    words = [sys.executable, "-m", "tests.system.refresh_script", str(path), fleet.address, json.dumps(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "1 workloads are done" in line)
        process.kill()
    with Library.open(path) as library:
        assert len(library.carried()) == len(EQUAL)
        assert library.scopes() == [*library.scopes()[:1], TODAY]

    report, found = run(path, fleet, script)

    assert set(found.values()) <= {Verdict.KEPT, Verdict.CARRIED}
    assert (report.problem, len(found)) == (None, 5)


def test_a_device_that_goes_away_ends_the_measurements(path: Path, tmp_path: Path) -> None:
    """The report has the error, unchanged code is carried nevertheless, and changed code has no verdict."""
    script = make(path, changed=("same",))
    with running_fleet(tmp_path, _CONFIG) as fleet:
        fleet.agent.kill()
        report, found = run(path, fleet, script, wait_timeout_sec=1)

    assert isinstance(report.problem, FleetError)
    assert found == {**dict.fromkeys(EQUAL, Verdict.CARRIED), "same": Verdict.NO_VERDICT}
