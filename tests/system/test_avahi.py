"""Avahi, the usual mDNS of Linux, sees a fleet's processes, and `fleet discover` sees services of Avahi."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet.testing import eventually_sync
from tests.system.avahi import Avahi, is_installed, running_avahi
from tests.system.fleet_processes import FLEET, Server
from tests.system.networks import Network, joined_networks
from tests.system.test_approval import board

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not is_installed(), reason="needs the packages avahi-daemon, avahi-utils and dbus"),
]

TRACKER, AGENT = "_tvm-fleet._tcp", "_tvm-fleet-agent._tcp"


@pytest.fixture
def networks() -> Iterator[list[Network]]:
    with joined_networks(2) as both:
        yield both


def resolved(avahi: Avahi, service_type: str) -> list[str] | None:
    """Return address, port and TXT of the service of a type on the wire, once it has a fact."""
    found = [each[6:] for each in avahi.browse(service_type) if each[:2] == ["eth0", "IPv4"]]
    return found[0] if found and found[0][2] else None


def test_avahi_resolves_a_tracker_and_an_agent(networks: list[Network], tmp_path: Path) -> None:
    """On another machine, with their addresses, ports and facts. The agent waits for approval."""
    middle, outer = networks
    words = ["-m", "fleet.tracker", "--host", "0.0.0.0", "--allow-network", "--state-dir", str(tmp_path / "tracker")]
    with ExitStack() as stack:
        avahi = stack.enter_context(running_avahi(outer, tmp_path / "avahi"))
        tracker = Server(words, "tracker", tmp_path / "tracker.log", middle.command()).start()
        stack.callback(tracker.stop)
        port = tracker.address.rpartition(":")[2]
        tracker.address = f"127.0.0.1:{port}"
        stack.enter_context(board(tracker, tmp_path, "--allow-network", around=middle.command()))
        found = eventually_sync(lambda: resolved(avahi, TRACKER), 60)
        agent = eventually_sync(lambda: resolved(avahi, AGENT), 60)

    assert found[:2] == [middle.address, port]
    assert re.fullmatch('"fleet=[0-9a-f]{16}"', found[2])
    assert (agent[0], agent[2]) == (middle.address, '"asks=1"')


PUBLISHED = {
    "plain": (TRACKER, 9290, ["fleet=0123456789abcdef"]),
    'a "quoted"; name': (TRACKER, 9291, ["fleet=\x1b]0;owned\x07abc", "asks=1\x1b[2J"]),
    "long": (AGENT, 9292, [f"fleet={'f' * 240}", *(f"k{number}={'x' * 240}" for number in range(4))]),
    "odd": (AGENT, 65535, ["fleet", "key=\n\t", "=nothing", b"key=\xff\xfe", "fleet=second"]),
}


def test_fleet_discover_lists_services_of_avahi(networks: list[Network], tmp_path: Path) -> None:
    """Long, odd and hostile facts are cut and sanitized. A service with control characters in its name is left out."""
    middle, outer = networks
    with ExitStack() as stack:
        avahi = stack.enter_context(running_avahi(middle, tmp_path / "avahi"))
        stack.enter_context(avahi.published("red \x1b[31m", TRACKER, 9293, []))
        for name, (service_type, port, facts) in PUBLISHED.items():
            stack.enter_context(avahi.published(name, service_type, port, facts))
        found = eventually_sync(lambda: discovered(outer), 60)
        words = outer.command(FLEET, "discover")
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

    quoted, plain, long, odd = found
    assert [each["addresses"] for each in found] == [
        [f"{middle.address}:{port}"] for port in (9291, 9290, 9292, 65535)
    ]  # Avahi offers no IPv4 address over IPv6
    assert (quoted["name"], quoted["fleet"], quoted["state"]) == ('a "quoted"; name', "]0;ownedabc", "pending")
    assert (plain["fleet"], plain["state"]) == ("0123456789abcdef", "other")
    assert long["fleet"] == "f" * 64
    assert (odd["fleet"], odd["state"]) == ("", "unjoined")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown.stdout)
    assert shown.stderr == "looking for 3 s\n"


def discovered(network: Network) -> list[dict[str, object]] | None:
    """Return the rows of `fleet discover`, once it lists everything."""
    words = network.command(FLEET, "discover", "--json")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)["services"]
    return found if len(found) == len(PUBLISHED) else None
