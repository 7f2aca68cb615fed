"""A board without a token, as an account of its own: it asks to join, and an admin approves it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.testing import eventually_sync
from tests.programs import environment
from tests.system.fleet_processes import FLEET, Server, connect, run_fleet
from tests.system.networks import Network, joined_networks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

_CODE = re.compile(r"fleet agent approve (\S+) --tracker")


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Server]:
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "tracker")]
    server = Server(words, "tracker", tmp_path / "tracker.log").start()
    yield server
    server.stop()


@contextmanager
def board(tracker: Server, folder: Path, *more: str, around: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run an agent that knows nothing of this account's credentials."""
    (folder / "agent.yaml").write_text("devices: [{driver: simulated, name: sim}]\n")
    words = ["--tracker", tracker.address, "--state-dir", folder / "agent", "--config", folder / "agent.yaml", *more]
    given = {**environment(), "FLEET_CREDENTIALS_DIR": str(folder / "credentials of the board")}
    with (folder / "agent.log").open("a") as log:
        process = subprocess.Popen(
            [*around, sys.executable, "-m", "device_agents", *words],
            env=given,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def pending(tracker: Server) -> list[dict[str, str]]:
    done = run_fleet("agent", "pending", "--json", "--tracker", tracker.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["agents"]  # type: ignore[no-any-return]


def test_an_approved_board_serves_its_device_over_a_restart(tracker: Server, tmp_path: Path) -> None:
    """The admin sees the board's code; a tracker that was killed meanwhile is asked again, under another code."""
    with board(tracker, tmp_path) as agent:
        found = _CODE.search(line_of(agent))
        assert found is not None
        first = pending(tracker)
        with connect(tracker.address) as client:
            devices = client.snapshot().devices
        tracker.kill()
        tracker.start()
        (second,) = eventually_sync(lambda: pending(tracker), 60)
        wrong = run_fleet("agent", "approve", found[1], "--tracker", tracker.address)
        approved = run_fleet("agent", "approve", second["code"], "--name", "pi4", "--tracker", tracker.address)
        serving = line_of(agent)
    with board(tracker, tmp_path) as agent:
        again = line_of(agent)

    assert [each["code"] for each in first] == [found[1]]
    assert devices == ()
    assert wrong.returncode == 1
    assert "fleet agent pending" in wrong.stderr
    assert "agent pi4 (" in approved.stderr
    assert "serving devices/sim" in serving
    assert "serving devices/sim" in again


def test_a_refused_board_ends_with_the_reason(tracker: Server, tmp_path: Path) -> None:
    """Nobody has to read the tracker's log."""
    with board(tracker, tmp_path) as agent:
        found = _CODE.search(line_of(agent))
        assert found is not None
        words = ("agent", "refuse", found[1], "--reason", "not of this lab", "--tracker", tracker.address)
        done = run_fleet(*words)
        code = agent.wait(60)

    assert done.returncode == 0, done.stderr
    assert code == 2
    assert "not of this lab" in (tmp_path / "agent.log").read_text()
    assert pending(tracker) == []


def discovered(network: Network, credentials: Path | None = None) -> dict[str, tuple[str, list[str]]]:
    """Return state and addresses by kind, as `fleet discover` finds them in a network."""
    given = environment() if credentials is None else {**environment(), "FLEET_CREDENTIALS_DIR": str(credentials)}
    words = network.command(FLEET, "discover", "--json", "--for", "6")
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: (each["state"], each["addresses"]) for each in json.loads(done.stdout)["services"]}


def test_trackers_and_boards_are_discovered_with_their_state(tmp_path: Path) -> None:
    """Two machines with real multicast: a board that asks to join, that has joined, and as others see it."""
    with joined_networks(2) as (middle, outer):
        words = [
            "-m",
            "fleet.tracker",
            "--host",
            "0.0.0.0",
            "--allow-network",
            "--state-dir",
            str(tmp_path / "tracker"),
        ]
        tracker = Server(words, "tracker", tmp_path / "tracker.log", middle.command()).start()
        tracker.address = f"{middle.address}:{tracker.address.rpartition(':')[2]}"
        try:
            with board(tracker, tmp_path, "--allow-network", around=outer.command()) as agent:
                found = _CODE.search(line_of(agent))
                assert found is not None
                asking = eventually_sync(lambda: with_agent(middle, "pending"), 60)
                approve = middle.command(
                    FLEET, "agent", "approve", found[1], "--tracker", "127.0.0.1:" + tracker.address.rpartition(":")[2]
                )
                subprocess.run(approve, check=True, timeout=60)
                assert "serving devices/sim" in line_of(agent)
                joined = eventually_sync(lambda: with_agent(middle, "joined"), 60)
                elsewhere = discovered(outer, tmp_path / "nobody")
        finally:
            tracker.stop()

    assert asking["tracker"] == ("joined", [tracker.address])
    assert [address.rpartition(":")[0] for address in joined["agent"][1]] == [outer.address]
    assert (elsewhere["tracker"][0], elsewhere["agent"][0]) == ("other", "other")


def with_agent(network: Network, state: str) -> dict[str, tuple[str, list[str]]] | None:
    """Return the discovered services if the agent is in a state."""
    found = discovered(network)
    return found if found.get("agent", ("",))[0] == state else None
