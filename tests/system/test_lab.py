"""People, CI and tuning share one board: real processes over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.library import Library, RecordKind
from fleet.testing import eventually_sync
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet, start_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_WITHIN_SEC = 330
"""Other tests tune concurrently, and one of them measures at a time; no wait exceeds 300 s."""
_TRIALS = 24


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with running_fleet(tmp_path) as found:
        yield found


def stored_trials(path: Path) -> int:
    if not path.exists():
        return 0
    with Library.open(path) as library:
        return len(library.records(kinds=[RecordKind.CANDIDATE]))


def test_a_person_gets_the_board_of_a_tune_that_ends_with_every_trial(
    fleet: Fleet, two_products: Path, tmp_path: Path
) -> None:
    """`fleet acquire` gets the only board while `fleet tune` measures on it, and the tune goes on afterwards."""
    library = tmp_path / "library.sqlite"
    words = ("tune", str(two_products), "--trials", str(_TRIALS), "--batch", "8", "--library", str(library), "--json")
    tuning = start_fleet(*words, "--tracker", fleet.address)
    eventually_sync(lambda: tuning.poll() is not None or stored_trials(library) >= 4, _WITHIN_SEC)
    assert tuning.poll() is None, tuning.communicate()[1]

    acquired = run_fleet(
        *("acquire", "cpu", "--class", "interactive", "--tracker", fleet.address, "--json", "--wait-timeout", "60"),
        *("--", "true"),
        timeout_sec=120,
    )
    out, err = tuning.communicate(timeout=_WITHIN_SEC)

    assert acquired.returncode == 0, acquired.stderr
    assert tuning.returncode == 0, err
    report = json.loads(out)
    assert report["trials"] == _TRIALS == sum(item["trials"] for item in report["workloads"])
