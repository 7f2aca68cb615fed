"""Boards behind an address translator, by a relay: real processes in networks of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.relay import rss_growth_mb
from fleet.testing import eventually_sync
from tests.needs import is_absent
from tests.programs import here
from tests.system.fleet_processes import FLEET, Server
from tests.system.networks import Network, hidden_network, joined_networks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

_CONFIG = """
devices:
- {driver: simulated, name: hidden, time_scale: 0}
relay: RELAY
jail: none
"""
_MIB = 1024 * 1024


class Client:
    """A client in a network of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def use(self, size_bytes: int) -> dict[str, Any]:
        """Upload an artifact of this size to the held device and time it; 0 gives the device back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{size_bytes}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        return dict(json.loads(line))


@dataclass(frozen=True, kw_only=True)
class Site:
    """A tracker and a relay in the middle, a client beside them, and an agent behind a translator."""

    relay: Server
    agent: Server
    client: Client
    home: Network
    """The client's network."""

    tracker: str

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices as the command line shows them to the client."""
        words = self.home.command(FLEET, "devices", "--json", "--tracker", self.tracker)
        shown = subprocess.run(words, capture_output=True, text=True, check=True, env=here(), timeout=60)
        return list(json.loads(shown.stdout)["devices"])

    def log_of(self, server: Server) -> str:
        return server.log.read_text()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with joined_networks(3) as (hub, home, translator), hidden_network(translator) as hidden, ExitStack() as stack:

        def start(name: str, around: Network, *words: str) -> Server:
            server = Server([*words, "--allow-network"], name, tmp_path / f"{name}.log", around.command()).start()
            stack.callback(server.stop)
            return server

        state = ("--state-dir", str(tmp_path / "tracker"))
        tracker = start("tracker", hub, "-m", "fleet.tracker", "--no-discovery", "--host", hub.address, *state)
        at = ("--tracker", tracker.address)
        relay = start("relay", hub, "-m", "fleet", "relay", "serve", *at, "--host", hub.address)
        config = tmp_path / "agent.yaml"
        config.write_text(_CONFIG.replace("RELAY", relay.address))
        state = ("--state-dir", str(tmp_path / "agent"))
        agent = start("agent", hidden, "-m", "device_agents", *at, "--config", str(config), *state)
        words = home.command(sys.executable, "-m", "tests.system.relay_client", tracker.address)
        process = stack.enter_context(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here())
        )
        stack.callback(process.kill)
        yield Site(relay=relay, agent=agent, client=Client(process), home=home, tracker=tracker.address)


def reaches(client: Network, address: str) -> bool:
    """Tell whether a TCP connection to an address succeeds."""
    host, _, port = address.rpartition(":")
    script = f"import socket; socket.create_connection(({host!r}, {port}), timeout=2)"
    words = client.command(sys.executable, "-c", script)
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.skipif(is_absent("iptables"), reason="iptables is not installed")
def test_a_board_behind_a_translator_is_used_by_the_relay(site: Site) -> None:
    """Lease, upload and run. The end of the relay or of the agent costs connections; both come back by themselves."""
    (device,) = site.devices()
    used = site.client.use(2 * _MIB)

    assert device["relay_address"] == site.relay.address
    assert not reaches(site.home, device["address"])
    assert used.get("latency_us") == pytest.approx(100, rel=0.1), (used, site.log_of(site.relay))

    site.relay.kill()
    lost = site.client.use(1000)
    site.relay.start()
    again = eventually_sync(lambda: _done(site.client.use(_MIB)), 60)

    assert lost["error"] == "DeviceUnreachable"
    assert again["lease"] == used["lease"], "the lease outlived the relay"

    site.agent.kill()
    lost = site.client.use(1000)
    site.agent.start()
    again = eventually_sync(lambda: _done(site.client.use(_MIB)), 60)

    assert lost["error"] == "DeviceUnreachable"
    assert again["latency_us"] == pytest.approx(100, rel=0.1)


def _done(answer: dict[str, Any]) -> dict[str, Any] | None:
    return None if "error" in answer else answer


@pytest.fixture
def own_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """A tracker and its relay on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "tracker")]
    tracker = Server(words, "tracker", tmp_path / "tracker.log").start()
    words = ["-m", "fleet", "relay", "serve", "--tracker", tracker.address]
    relay = Server(words, "relay", tmp_path / "relay.log").start()
    yield tracker, relay
    relay.stop()
    tracker.stop()


def test_clients_that_do_not_read_cost_no_memory(own_relay: tuple[Server, Server]) -> None:
    """A sender is slowed down to its receiver: the relay holds little for either, and ends in order."""
    tracker, relay = own_relay
    grown_mb = asyncio.run(rss_growth_mb(tracker.address, relay.address, relay.process.pid, 16))

    assert grown_mb < 20
    assert relay.stop() == 0
