"""Joining a fleet in practice: two accounts of one machine, and the commands of the how-to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.testing import eventually_sync
from tests.programs import environment
from tests.system.fleet_processes import FLEET, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Account:
    """An account of this machine: its commands find its own credentials only. Without a folder, the tracker's own."""

    def __init__(self, tracker: str, folder: Path | None = None) -> None:
        own = {
            f"FLEET_{name.upper()}_DIR": str(folder / name) for name in ("credentials", "data") if folder is not None
        }
        self._environment = {**environment(), **own, "FLEET_TRACKER": tracker}

    def fleet(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [FLEET, *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=100, env=self._environment, check=False
        )

    @contextmanager
    def agent(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        command = [FLEET, "agent", "serve", "--driver", "simulated", *words]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def members(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.fleet("tracker", "members", "--json").stdout)["members"]
        return found

    def devices(self) -> list[str]:
        return [device["name"] for device in json.loads(self.fleet("devices", "--json").stdout)["devices"]]


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Server]:
    server = Server(
        ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "tracker")],
        "tracker",
        tmp_path / "tracker.log",
    ).start()
    yield server
    server.stop()


def test_another_account_gets_in_with_a_token_and_not_without(tracker: Server, tmp_path: Path) -> None:
    """An account without a token gets no access, a user may lease but not administer, an agent may serve, and the audit
    log names all three.
    """
    other = Account(tracker.address, tmp_path / "other")
    operator = Account(tracker.address)

    refused = other.fleet("devices", "--connect-timeout", "10")
    assert (2, True) == (refused.returncode, "fleet login --tracker" in refused.stderr)

    token = operator.fleet("tracker", "token", "create", "--role", "user", "--ttl", "5m").stdout.strip()
    assert other.fleet("login", stdin=token).returncode == 0
    assert other.devices() == []
    assert "takes the role admin" in other.fleet("audit").stderr
    assert "used, revoked or expired" in other.fleet("login", stdin=token).stderr

    for_agent = operator.fleet("tracker", "token", "create", "--role", "agent").stdout.strip()
    joined = other.fleet("agent", "join", stdin=for_agent)
    assert joined.returncode == 0, joined.stderr
    with other.agent():
        eventually_sync(other.devices)

    log = json.loads(operator.fleet("audit", "--json").stdout)
    entries = [(entry["role"], entry["action"], entry["outcome"]) for entry in log["deeds"]]
    assert ("stranger", "IdentityService.Join", "ok") in entries
    assert ("user", "IdentityService.ListAuditEntries", "NotAllowed") not in entries, "reading is not written down"
    assert ("agent", "AgentService.Attach", "ok") in entries
    assert token not in json.dumps(log)


def test_a_revoked_member_gets_the_reason_and_is_listed_as_revoked(tracker: Server, tmp_path: Path) -> None:
    """A user may not list members; an admin revokes by a prefix of the key; every later command of the member names the
    reason.
    """
    other, operator = Account(tracker.address, tmp_path / "other"), Account(tracker.address)
    token = operator.fleet("tracker", "token", "create", "--role", "user").stdout.strip()
    assert other.fleet("login", stdin=token).returncode == 0
    assert "takes the role admin" in other.fleet("tracker", "members").stderr
    (key,) = [member["key_id"] for member in operator.members() if member["role"] == "user"]

    done = operator.fleet("tracker", "revoke", key[:12], "--reason", "laptop lost")

    assert (0, True) == (done.returncode, "is no member any more" in done.stderr)
    refused = other.fleet("devices")
    assert (2, True) == (refused.returncode, "laptop lost" in refused.stderr)
    assert "laptop lost" in operator.fleet("tracker", "members").stdout
    (user,) = [member for member in operator.members() if member["role"] == "user"]
    assert user["revoked_at"] is not None


def two_machines(tracker: Server, tmp_path: Path) -> tuple[Account, Account, Account]:
    """Return two accounts that may run agents, and the tracker's own."""
    first, second = (Account(tracker.address, tmp_path / name) for name in ("first", "second"))
    operator = Account(tracker.address)
    for account in (first, second):
        token = operator.fleet("tracker", "token", "create", "--role", "agent").stdout.strip()
        assert account.fleet("agent", "join", stdin=token).returncode == 0
    return first, second, operator


def test_a_refused_agent_gives_the_reason_and_ends(tracker: Server, tmp_path: Path) -> None:
    """The second machine of one host name: exit code 2, the owner of the name, and both remedies."""
    first, second, operator = two_machines(tracker, tmp_path)

    with first.agent() as serving:
        assert serving.stdout is not None
        assert "listening" in serving.stdout.readline()
        (name,) = eventually_sync(operator.devices)
        with second.agent() as refused:
            _, said = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert f"{name} belongs to the agent with the key" in said
    assert f"fleet tracker unbind {name}" in said
    assert "another 'name' in agent.yaml" in said

    assert operator.fleet("tracker", "unbind", name).returncode == 0
    with second.agent() as admitted:
        assert admitted.stdout is not None
        assert "listening" in admitted.stdout.readline()


def test_an_agent_exits_when_a_late_tracker_refuses_it(tracker: Server, tmp_path: Path) -> None:
    """An agent that was waiting for the tracker ends when it is refused."""
    first, second, operator = two_machines(tracker, tmp_path)
    with first.agent():
        eventually_sync(operator.devices)
    tracker.stop()

    with second.agent() as refused:
        assert refused.stdout is not None
        assert ", waiting for the tracker at" in refused.stdout.readline()
        tracker.start()
        _, said = refused.communicate(timeout=60)

    assert refused.returncode == 2
    assert "belongs to the agent with the key" in said
