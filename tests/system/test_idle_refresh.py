"""Refreshes in idle time on simulated devices: tracker, agent and optimizer are real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fleet.base.config import credentials_dir
from fleet.domain.leases import Lease, LeaseClass
from fleet.domain.scope import RecordScope
from fleet.library import Library
from fleet.testing import eventually_sync
from tests.programs import here
from tests.system.fleet_processes import Fleet, connect, running_fleet
from tests.system.refresh_script import Script, add_old

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_CONFIG = "devices: [{driver: simulated, name: sim, noise: 0.005}]"
_BLOCK = "40000"
"""Microseconds of a kernel: the rounds of one workload take longer than a batch."""

_WORKLOADS = "abcd"
_WITHIN_SEC = 60.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with running_fleet(tmp_path, _CONFIG) as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "library.sqlite"


@pytest.fixture
def script(fleet: Fleet, path: Path) -> Script:
    """Make a library with four workloads, and its script."""
    return changed_workloads(fleet, path, _WORKLOADS)


@pytest.fixture
def start(fleet: Fleet, path: Path, tmp_path: Path, script: Script) -> Iterator[Start]:
    """Starts the optimizer; its share of a day is the argument."""
    begun: list[subprocess.Popen[str]] = []
    words = [sys.executable, "-m", "tests.system.idle_refresh_script", str(path), fleet.address]
    homes = {"XDG_STATE_HOME": str(tmp_path / "state"), "FLEET_CREDENTIALS_DIR": str(credentials_dir())}

    def run(share: float = 1.0) -> subprocess.Popen[str]:
        with (tmp_path / "optimizer.log").open("a") as log:
            given = [*words, json.dumps(script), str(share)]
            begun.append(subprocess.Popen(given, stdout=log, stderr=log, text=True, env={**here(), **homes}))
        return begun[-1]

    yield run
    for process in begun:
        process.terminate()
        process.wait(timeout=60)


def changed_workloads(fleet: Fleet, path: Path, names: str) -> Script:
    """Add workloads of changed code to a library, one for each letter; return their part of the script."""
    with connect(fleet.address) as client:
        inventory = client.snapshot().devices[0].inventory
    then = RecordScope(target_json=inventory.target_json, device_model=inventory.device_model, tvm_version="before")
    with Library.open(path) as library:
        for name in names:
            add_old(library, path.parent, name, f"best {name}", f"{_BLOCK} old", scope=then)
    return {f"best {name}": f"{_BLOCK} new" for name in names}


def shown(fleet: Fleet) -> Sequence[Lease]:
    with connect(fleet.address) as client:
        return client.snapshot().leases


def is_refreshed(fleet: Fleet) -> bool:
    """Tell whether a refresh holds the device, as everybody sees it."""
    return any("refresh" in lease.held_by for lease in shown(fleet))


def lease_ends(tmp_path: Path) -> list[Mapping[str, object]]:
    """Return the ended leases of refreshes in the tracker's audit log."""
    lines = [json.loads(line) for line in (tmp_path / "tracker" / "audit.jsonl").read_text().splitlines()]
    ends = [json.loads(line["subject"]) for line in lines if "held_sec" in str(line.get("subject", ""))]
    return [end for end in ends if end["purpose"] == "refresh the library"]


def measured(path: Path, names: str = _WORKLOADS) -> set[str]:
    """Return the workloads with times of today's code."""
    with Library.open(path) as library:
        return {name for name in names if any(one.scope.tvm_version != "before" for one in library.records(name))}


def test_the_library_is_refreshed_in_batches_and_a_request_goes_before(
    fleet: Fleet, path: Path, tmp_path: Path, start: Start
) -> None:
    """The holder is shown as a refresh. It gives the device back to a request, waits, and goes on to the end."""
    start()
    eventually_sync(lambda: is_refreshed(fleet), timeout_sec=_WITHIN_SEC)
    with connect(fleet.address) as client, client.acquire("name=sim", lease_class=LeaseClass.NORMAL) as device:
        assert [lease.name for lease in shown(fleet)] == [device.lease.name]
        assert measured(path) != set(_WORKLOADS)

    eventually_sync(lambda: measured(path) == set(_WORKLOADS), timeout_sec=_WITHIN_SEC)
    ends = lease_ends(tmp_path)
    assert len(ends) >= 3
    assert all(end["end"] in ("released", "expired") for end in ends)


def test_a_batch_request_goes_before_as_well(fleet: Fleet, start: Start) -> None:
    """So do jobs with the priority background: they wait for one batch at most."""
    start()
    eventually_sync(lambda: is_refreshed(fleet), timeout_sec=_WITHIN_SEC)
    with (
        connect(fleet.address) as client,
        client.acquire("name=sim", lease_class=LeaseClass.BATCH, priority=-10) as device,
    ):
        assert [lease.name for lease in shown(fleet)] == [device.lease.name]


def test_a_killed_optimizer_loses_nothing(fleet: Fleet, path: Path, tmp_path: Path, start: Start) -> None:
    """Its lease ends, its batch is counted, and the next start goes on."""
    first = start()
    eventually_sync(lambda: len(measured(path)) == 1, timeout_sec=_WITHIN_SEC)
    eventually_sync(lambda: is_refreshed(fleet), timeout_sec=_WITHIN_SEC)
    first.kill()
    first.wait(timeout=60)
    eventually_sync(lambda: not shown(fleet), timeout_sec=_WITHIN_SEC)
    kept = measured(path)
    (use,) = (tmp_path / "state").rglob("devices%2Fsim.json")
    used_sec = sum(json.loads(use.read_text()).values())

    start()
    eventually_sync(lambda: measured(path) == set(_WORKLOADS), timeout_sec=_WITHIN_SEC)

    assert kept
    assert sum(json.loads(use.read_text()).values()) > used_sec > 0


def test_a_used_share_ends_the_batches(fleet: Fleet, path: Path, tmp_path: Path, start: Start, script: Script) -> None:
    """A ten-thousandth of a day is four batches, and the work takes more."""
    names = "efghijklmnopqrstuvwx"
    script |= changed_workloads(fleet, path, names)
    process = start(0.0001)
    most_sec = 0.0001 * 86400

    def is_used() -> bool:
        return sum(float(str(end["held_sec"])) for end in lease_ends(tmp_path)) > most_sec - 2.5

    eventually_sync(is_used, timeout_sec=_WITHIN_SEC)
    process.kill()
    process.wait(timeout=60)
    count = len(lease_ends(tmp_path))
    (use,) = (tmp_path / "state").rglob("devices%2Fsim.json")
    assert sum(json.loads(use.read_text()).values()) <= most_sec
    assert measured(path, names) != set(names)
    assert count >= 3
