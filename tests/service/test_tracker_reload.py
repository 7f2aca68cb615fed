"""tracker.yaml at a running tracker: read at the start, and again by ReloadTracker over TLS."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.cli.main import app
from fleet.client.identity_calls import IdentityCalls
from fleet.domain.leases import LeaseClass
from fleet.errors import ConfigError, NotAllowed
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof
from fleet.tracker.options import TrackerOptions
from fleet.tracker.server import Tracker
from tests.service.identity_parts import user

ONE_LEASE = "classes: {normal: {leases: 1}}\n"


async def test_changed_quotas_serve_waiting_requests_at_once(tmp_path: Path) -> None:
    """The file is read at the start. A request that its quota held back gets its free board by the reload."""
    file = tmp_path / "tracker.yaml"
    file.write_text(ONE_LEASE)
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
        LeaseStream(served.address, "alice", proof=user()) as alice,
        fleet.aio.connect(served.address) as admin,
    ):
        await alice.grant("1", "simulated")
        alice.acquire("2", "simulated")
        await eventually(lambda: "2" in alice.queued)

        file.write_text("half_life: 2h\nclasses: {normal: {leases: 2}}\naccounts: {ci: {weight: 3}}\n")
        found = await admin.reload_tracker()

        await eventually(lambda: "2" in alice.granted)
        assert (found.path, found.half_life_sec, found.starvation_sec) == (str(file), 7_200.0, 43_200.0)
        assert (found.account_count, found.changed_account_count, found.class_count) == (1, 1, 2)
        assert found.is_changed
        assert not (await admin.reload_tracker()).is_changed


async def test_an_invalid_file_leaves_the_former_quotas_in_force(tmp_path: Path) -> None:
    """The error has the file, the line and the nearest key, and arrives as the class that it was raised with."""
    file = tmp_path / "tracker.yaml"
    file.write_text(ONE_LEASE)
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
        LeaseStream(served.address, "alice", proof=user()) as alice,
        fleet.aio.connect(served.address) as admin,
    ):
        file.write_text("half_life: 1h\nclases: {}\n")
        with pytest.raises(ConfigError, match=f"{file}: line 2: unknown key 'clases'; did you mean 'classes'"):
            await admin.reload_tracker()

        assert served.tracker.state.accounts.policy.half_life_sec == 6 * 3_600.0
        await alice.grant("1", "simulated")
        alice.acquire("2", "simulated")
        await eventually(lambda: "2" in alice.queued)

        file.unlink()
        assert (await admin.reload_tracker()).is_changed  # without the file the defaults hold
        await eventually(lambda: "2" in alice.granted)


async def test_only_an_admin_reloads_and_each_call_is_audited(tmp_path: Path) -> None:
    async with serve_tracker(state_dir=tmp_path) as served:
        (tmp_path / "tracker.yaml").write_text("half_life: 1h\n")
        store, proof = CredentialStore(), account_proof(served.address)
        store.save(served.address, user())
        try:
            async with fleet.aio.connect(served.address) as client:
                with pytest.raises(NotAllowed, match="shares and quotas takes the role admin"):
                    await client.reload_tracker()
        finally:
            store.save(served.address, proof)
        assert served.tracker.state.accounts.policy.half_life_sec == 6 * 3_600.0
        async with fleet.aio.connect(served.address) as client:
            await client.reload_tracker()

        assert served.tracker.state.accounts.policy.half_life_sec == 3_600.0
        async with IdentityCalls(served.address) as admin:
            entries = [
                entry for entry in await admin.audit_entries(100) if entry.action == "LeaseService.ReloadTracker"
            ]
        assert [(entry.role, entry.outcome) for entry in entries] == [("user", "NotAllowed"), ("admin", "ok")]


@pytest.mark.parametrize(("content", "message"), [("half_life: x\n", "line 1: half_life"), (None, "No such file")])
async def test_a_tracker_does_not_start_with_an_invalid_file(tmp_path: Path, content: str | None, message: str) -> None:
    """A file named by --config must exist, and nothing is made before it is valid."""
    config = tmp_path / "rules.yaml"
    if content is not None:
        config.write_text(content)
    state_dir = tmp_path / "state"
    options = TrackerOptions(port=0, state_dir=state_dir, is_discoverable=False, config=config)

    with pytest.raises(ConfigError, match=f"rules.yaml.*{message}"):
        await Tracker(options).open()

    assert not state_dir.exists()


async def test_a_tracker_takes_its_quotas_from_the_named_file(tmp_path: Path) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text("classes: {batch: {leases: 7}}\n")
    options = TrackerOptions(port=0, state_dir=tmp_path / "state", is_discoverable=False, is_plain=True, config=config)

    async with Tracker(options) as tracker:
        assert tracker.state.accounts.policy.quotas("x")[LeaseClass.BATCH].leases == 7


async def test_the_command_shows_the_rules_in_force_or_the_error(tmp_path: Path) -> None:
    file = tmp_path / "tracker.yaml"
    async with serve_tracker(state_dir=tmp_path) as served:
        command = ["tracker", "reload", "--tracker", served.address]
        file.write_text("accounts:\n  ci: {weight: 3}\n")
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        again = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--json"])
        file.write_text("accounts:\n  ci: {weight: -3}\n")
        refused = await asyncio.to_thread(CliRunner().invoke, app, command)

    assert done.exit_code == 0
    assert (
        done.stderr
        == f"{file}: 1 account changed; 1 account with own rules, half-life 6 h 00 min, starvation 12 h 00 min\n"
    )
    assert (json.loads(again.stdout)["account_count"], json.loads(again.stdout)["is_changed"]) == (1, False)
    assert refused.exit_code == 2
    assert f"error: {file}: line 2: accounts: ci: weight: expected a number from 0.001" in refused.stderr
