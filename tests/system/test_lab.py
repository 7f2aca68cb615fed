"""People, CI and tuning share one board: real processes over TLS."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.client.sync import Fleet as SyncFleet
from fleet.domain.devices import DeviceState
from fleet.domain.leases import LeaseClass
from fleet.errors import LeaseYielded, TrackerUnavailable
from fleet.library import Library, RecordKind
from fleet.testing import eventually_sync
from tests.system.fleet_processes import Fleet, Server, connect, run_fleet, running_fleet, start_fleet

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
    """`fleet acquire` gets the only board within 20 s while `fleet tune` measures on it, and the tune goes on
    afterwards.
    """
    library = tmp_path / "library.sqlite"
    words = (
        "tune",
        str(two_products),
        "--trials",
        str(_TRIALS),
        "--exhaust",
        "--batch",
        "8",
        "--library",
        str(library),
        "--json",
    )
    tuning = start_fleet(*words, "--tracker", fleet.address)
    eventually_sync(lambda: tuning.poll() is not None or stored_trials(library) >= 4, _WITHIN_SEC)
    assert tuning.poll() is None, tuning.communicate()[1]

    acquired = run_fleet(
        *("acquire", "cpu", "--class", "interactive", "--tracker", fleet.address, "--json", "--wait-timeout", "20"),
        *("--", "true"),
        timeout_sec=120,
    )
    out, err = tuning.communicate(timeout=_WITHIN_SEC)

    assert acquired.returncode == 0, acquired.stderr
    assert tuning.returncode == 0, err
    report = json.loads(out)
    assert report["trials"] == _TRIALS == sum(item["trials"] for item in report["workloads"])


def test_a_batch_lease_gives_way_to_a_tracker_killed_meanwhile(fleet: Fleet) -> None:
    """The holder ignores demands. The tracker makes its own anew after kill -9, and ends the lease at the grace."""
    with connect(fleet.address) as client:
        device = client.acquire_device("cpu", lease_class=LeaseClass.BATCH)
        command = ("acquire", "cpu", "--class", "interactive", "--tracker", fleet.address, "--wait-timeout", "120")
        acquiring = start_fleet(*command, "--", "true")
        eventually_sync(lambda: device.yield_wanted is not None, _WITHIN_SEC)
        fleet.tracker.kill()
        assert device.ended is None
        (fleet.tracker.log.parent / "tracker/tracker.yaml").write_text("yield_grace: 2s\n")
        fleet.tracker.start()

        eventually_sync(lambda: device.ended is not None, _WITHIN_SEC)
        assert isinstance(device.ended, LeaseYielded)
        with client.acquire("cpu", lease_class=LeaseClass.BATCH, continues=device.lease.name) as again:
            _, err = acquiring.communicate(timeout=_WITHIN_SEC)
            assert acquiring.returncode == 0, err
            assert again.name == device.name


_HELD_TOGETHER = (
    "import fleet, os\n"
    "with fleet.held_device() as one, fleet.held_device(2) as two:\n"
    "    print(one.name, two.name, one.ended, two.ended)\n"
)


def test_a_set_over_two_agents_is_granted_whole_by_a_tracker_killed_meanwhile(fleet: Fleet, tmp_path: Path) -> None:
    """One board is leased while the set waits, the tracker is killed, and both boards come with one grant."""
    config = tmp_path / "second.yaml"
    config.write_text("devices: [{driver: simulated, name: second}]\n")
    words = ("--tracker", fleet.address, "--state-dir", str(tmp_path / "second"), "--config", str(config))
    second = Server(["-m", "device_agents", *words], "agent", tmp_path / "second.log").start()
    try:
        with connect(fleet.address) as client:
            eventually_sync(lambda: len(client.devices()) == 2)
            with client.acquire("simulated"):
                command = (
                    "acquire",
                    "cpu",
                    "--and",
                    "simulated",
                    "--tracker",
                    fleet.address,
                    "--json",
                    "--wait-timeout",
                    "120",
                )
                acquiring = start_fleet(*command, "--", sys.executable, "-c", _HELD_TOGETHER)
                eventually_sync(lambda: bool(client.snapshot().requests))
                fleet.tracker.kill()
                fleet.tracker.start()
                eventually_sync(lambda: is_back(client))
                assert [lease.device_name for lease in client.snapshot().leases] == ["devices/second"]
        out, err = acquiring.communicate(timeout=_WITHIN_SEC)
    finally:
        second.stop()

    assert acquiring.returncode == 0, err
    held = json.loads(out)["set"]
    assert held[1]["device"] == "devices/second"
    assert f"{held[0]['device']} devices/second None None" in err


def is_back(client: SyncFleet) -> bool:
    """Return True if a restarted tracker has its agents, its leases and the request again."""
    try:
        snapshot = client.snapshot()
    except TrackerUnavailable:
        return False
    is_attached = all(device.state is not DeviceState.OFFLINE for device in snapshot.devices)
    return is_attached and len(snapshot.devices) == 2 and len(snapshot.requests) == 1 and client.is_connected


def test_a_drained_board_is_given_back_by_a_tune_that_goes_on_after_it_resumes(
    fleet: Fleet, two_products: Path, tmp_path: Path
) -> None:
    """The tracker is killed right after the drain: the mark and the demand to give way survive."""
    library = tmp_path / "library.sqlite"
    words = (
        "tune",
        str(two_products),
        "--trials",
        str(_TRIALS),
        "--exhaust",
        "--batch",
        "8",
        "--library",
        str(library),
        "--json",
    )
    tuning = start_fleet(*words, "--tracker", fleet.address)
    eventually_sync(lambda: tuning.poll() is not None or stored_trials(library) >= 4, _WITHIN_SEC)
    assert tuning.poll() is None, tuning.communicate()[1]

    drained = run_fleet("devices", "drain", "cpu", "--reason", "new fan", "--tracker", fleet.address, "--json")
    fleet.tracker.kill()
    fleet.tracker.start()

    assert drained.returncode == 0, drained.stderr
    eventually_sync(lambda: [each["state"] for each in devices(fleet)] == ["available"], _WITHIN_SEC)
    (device,) = devices(fleet)
    assert (device["health_mark"]["state"], device["health_mark"]["reason"]) == ("draining", "new fan")
    refused = run_fleet("acquire", "cpu", "--tracker", fleet.address, "--wait-timeout", "1", "--", "true")
    assert "1 board suits, draining" in refused.stderr
    assert refused.returncode != 0
    assert tuning.poll() is None

    resumed = run_fleet("devices", "resume", "cpu", "--reason", "new fan works", "--tracker", fleet.address)
    assert resumed.returncode == 0, resumed.stderr
    out, err = tuning.communicate(timeout=_WITHIN_SEC)
    assert tuning.returncode == 0, err
    assert json.loads(out)["trials"] == _TRIALS


def test_a_booked_board_is_free_at_its_time_although_the_tracker_was_killed(fleet: Fleet) -> None:
    """A batch lease holds the only board. It goes at the start, and a lease without an end does not get between."""
    words = ("acquire", "cpu", "--class", "batch", "--tracker", fleet.address)
    batch = start_fleet(*words, "--", sys.executable, "-c", "import time; time.sleep(600)")
    eventually_sync(lambda: [each["state"] for each in devices(fleet)] == ["leased"], _WITHIN_SEC)

    booked = run_fleet("book", "cpu", "--from", "25s", "--for", "1h", "--tracker", fleet.address, "--json")
    assert booked.returncode == 0, booked.stderr
    (booking,) = json.loads(booked.stdout)["bookings"]
    words = ("acquire", "--booking", booking["name"], "--tracker", fleet.address, "--wait-timeout", "120", "--json")
    waiting = start_fleet(*words, "--", "true")
    fleet.tracker.kill()
    fleet.tracker.start()
    eventually_sync(lambda: bookings(fleet) == [booking], _WITHIN_SEC)
    refused = run_fleet("acquire", "cpu", "--tracker", fleet.address, "--wait-timeout", "1", "--", "true")

    out, err = waiting.communicate(timeout=_WITHIN_SEC)
    _, batch_err = batch.communicate(timeout=_WITHIN_SEC)
    assert refused.returncode != 0
    assert waiting.returncode == 0, err
    assert json.loads(out)["device"] == booking["device_names"][0]
    assert batch.returncode != 0
    assert "booked" in batch_err
    assert [each["name"] for each in bookings(fleet)] == [booking["name"]]
    cancelled = run_fleet("bookings", "cancel", booking["name"], "--tracker", fleet.address)
    assert cancelled.returncode == 0, cancelled.stderr
    assert bookings(fleet) == []


def bookings(fleet: Fleet) -> list[dict[str, Any]]:
    found = run_fleet("bookings", "--tracker", fleet.address, "--json")
    return list(json.loads(found.stdout)["bookings"]) if found.returncode == 0 else []


def devices(fleet: Fleet) -> list[dict[str, Any]]:
    found: Any = fleet.snapshot()["devices"]
    return list(found)
