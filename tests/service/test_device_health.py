"""Marks of devices' health at a running tracker: the RPC, its roles, the audit log, and the commands."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import grpc.aio
import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.base.moments import parse_moment
from fleet.cli.main import app
from fleet.client.identity_calls import IdentityCalls
from fleet.client.tracker_calls import TrackerCalls
from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseClass
from fleet.errors import InvalidRequest, LeaseRevoked, NoMatchingDevice, NotAllowed, TrackerUnavailable, WaitTimeout
from fleet.identity.store import CredentialStore
from fleet.testing import FakeClock, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof
from fleet.tracker.journal.file import Journal
from fleet.v1 import device_pb2, lease_service_pb2
from fleet.wire.health import mark_from_proto
from fleet.wire.rpc import from_rpc_error
from tests.service.identity_parts import user

DEVICES = ["devices/a", "devices/b"]


async def test_a_drained_board_is_shown_and_serves_nobody_until_it_resumes() -> None:
    """The holder of a batch lease receives the reason, and so does a waiting request."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        held = await client.acquire_device("name=a", lease_class=LeaseClass.BATCH)

        assert await client.set_health("simulated", HealthState.DRAINING, "new switch") == DEVICES
        await eventually(lambda: held.yield_wanted is not None)
        assert held.yield_wanted is not None
        assert held.yield_wanted.reason == "its device is draining: new switch"
        await held.release()
        with pytest.raises(WaitTimeout):
            await client.acquire_device("simulated", wait_timeout_sec=0.2)
        reasons: list[str] = []
        waiting = asyncio.create_task(
            client.acquire_device("simulated", on_queued=lambda request: reasons.append(request.reason))
        )
        await eventually(lambda: reasons)
        assert reasons[0] == "2 boards suit, all draining"
        (shown, _) = (await client.snapshot()).devices
        assert (shown.mark.state, shown.mark.reason) == (HealthState.DRAINING, "new switch")
        assert shown.mark.by

        await client.set_health("name=b", HealthState.GOOD, "done")
        device = await waiting
        assert device.name == "devices/b"


async def test_a_lease_that_outlasts_its_notice_is_revoked() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        held = await client.acquire_device("name=a")
        clock = served.tracker.engine.clock
        await client.set_health("name=a", HealthState.MAINTENANCE, "SD card", until_sec=clock.now_sec() + 0.5)

        await eventually(lambda: held.ended is not None)

        assert isinstance(held.ended, LeaseRevoked)
        assert "its device is maintenance: SD card" in str(held.ended)


async def test_bad_judgements_are_refused_by_client_and_tracker() -> None:
    """A client that checks nothing gets the same errors."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        with pytest.raises(InvalidRequest, match="control characters"):
            await client.set_health("name=a", HealthState.RETIRED, "\x1b[31mred")
        with pytest.raises(NoMatchingDevice):
            await client.set_health("gpu", HealthState.RETIRED, "old")
        calls = TrackerCalls(served.address)
        stub = await calls.leases()
        for state, reason in ((device_pb2.HEALTH_STATE_RETIRED, "\x1b[31mred"), (99, "old"), (0, "old")):
            request = lease_service_pb2.SetHealthRequest(selector="name=a", state=state, reason=reason)  # type: ignore[arg-type]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.set_health(request)
            assert isinstance(from_rpc_error(caught.value, TrackerUnavailable), InvalidRequest)
        await calls.close()
        assert not served.tracker.state.marks


async def test_only_admins_judge_devices_and_each_call_is_audited() -> None:
    async with serve_tracker() as served, SimulatedAgent(served.address, DEVICES):
        store, proof = CredentialStore(), account_proof(served.address)
        store.save(served.address, user())
        try:
            async with fleet.aio.connect(served.address) as client:
                with pytest.raises(NotAllowed, match="judging devices takes the role admin"):
                    await client.set_health("name=a", HealthState.QUARANTINED, "odd")
                with pytest.raises(NotAllowed, match="takes the role admin"):
                    await client.acquire_device("name=a", even_if=HealthState.QUARANTINED)
        finally:
            store.save(served.address, proof)
        async with fleet.aio.connect(served.address) as client:
            await client.set_health("name=a", HealthState.QUARANTINED, "odd")
            device = await client.acquire_device("name=a", even_if=HealthState.QUARANTINED)
            assert device.name == "devices/a"
        async with IdentityCalls(served.address) as admin:
            entries = [entry for entry in await admin.audit_entries(100) if entry.action == "LeaseService.SetHealth"]

    assert [(entry.role, entry.outcome) for entry in entries] == [("user", "NotAllowed"), ("admin", "ok")]
    assert "odd" in entries[1].subject


async def test_the_commands_mark_devices_by_name_or_selector() -> None:
    async with serve_tracker() as served, SimulatedAgent(served.address, DEVICES):

        async def run(*words: str) -> tuple[int, str, str]:
            done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--tracker", served.address])
            return done.exit_code, done.stdout, done.stderr

        drained = await run("devices", "drain", "a", "--reason", "fan", "--by", "2h")
        shown = await run("devices")
        details = await run("devices", "show", "a")
        kept = await run("devices", "maintain", "a", "--reason", "card")
        resumed = await run("devices", "resume", "simulated", "--reason", "done", "--json")
        refused = await run("devices", "retire", "a", "--reason", "two\nlines")

    assert (drained[:2], kept[:2]) == ((0, ""), (0, ""))
    assert "1 device draining: a\n" in drained[2]  # gRPC may log there: two event loops share its poller
    assert "1 device in maintenance: a\n" in kept[2]
    assert "draining" in shown[1]
    assert "fan" in details[1]
    expected = {"schema": 1, "devices": DEVICES, "state": "good", "reason": "done", "until_sec": None}
    assert json.loads(resumed[1]) == expected
    assert refused[0] == 2
    assert "the reason has control characters" in refused[2]


def test_a_moment_is_a_time_of_day_a_date_or_a_duration() -> None:
    """A time of day that has passed is tomorrow's."""
    noon = datetime(2026, 11, 25, 12, 0, tzinfo=UTC).timestamp()

    assert parse_moment("14:00", noon, UTC) == noon + 2 * 3600
    assert parse_moment("11:00", noon, UTC) == noon + 23 * 3600
    assert parse_moment("12:00", noon + 59.9, UTC) == noon
    assert parse_moment("2026-11-27 12:00", noon, UTC) == noon + 2 * 86400
    assert parse_moment("90m", noon, UTC) == noon + 5400
    for text in ("", "25:00", "tomorrow", "2026-13-01 10:00", "-2h"):
        with pytest.raises(InvalidRequest, match="is no moment"):
            parse_moment(text, noon, UTC)


def test_a_state_of_a_newer_tracker_is_read_as_quarantined() -> None:
    message = device_pb2.HealthMark(state=77)  # type: ignore[arg-type]
    message.at.seconds = 5

    assert mark_from_proto(message).state is HealthState.QUARANTINED


async def test_marks_and_use_are_in_the_journal_of_a_running_tracker(tmp_path: Path) -> None:
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
        client.acquire("name=a"),
    ):
        await client.set_health("name=b", HealthState.RETIRED, "broken")

    journal = Journal(tmp_path / "journal.sqlite")
    durable = journal.open(0.0)
    journal.close()
    assert [(name, health.mark.state, health.mark.reason) for name, health in durable.health] == [
        ("devices/b", HealthState.RETIRED, "broken")
    ]
    assert durable.uses


async def test_a_quarantine_by_the_tracker_is_in_the_audit_log() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES) as agent,
        fleet.aio.connect(served.address) as client,
    ):
        device = served.tracker.state.devices["devices/a"]
        for _ in range(3):
            async with client.acquire("name=a"):
                agent.report("devices/a", is_healthy=False, reason="GPU hangs")
                await eventually(lambda: not device.is_healthy)
            agent.report("devices/a", is_healthy=True)
            await eventually(lambda: device.is_healthy)
        async with IdentityCalls(served.address) as admin:
            entries = [entry for entry in await admin.audit_entries(100) if entry.action == "Device.Mark"]

    assert [(entry.name, entry.role) for entry in entries] == [("tracker", "tracker")]
    assert "GPU hangs" in entries[0].subject


async def test_a_slow_board_becomes_suspect_and_good_again() -> None:
    """Its siblings stay good. Both marks are the tracker's own."""
    clock = FakeClock()
    async with serve_tracker(clock=clock) as served:
        names = [f"devices/{name}" for name in "abcd"]
        async with SimulatedAgent(served.address, names) as agent:
            devices = [served.tracker.state.devices[name] for name in names]
            for device in devices:
                device.description = device_pb2.Inventory(device_model="Pi 4").SerializeToString()
            readings = served.tracker.engine.observers
            for reference_sec, expected in ((1.3e-3, HealthState.SUSPECT), (1e-3, HealthState.GOOD)):
                for minutes in (0, 31):
                    for name in names:
                        slow = name == names[-1]
                        telemetry = device_pb2.Telemetry(reference_sec=reference_sec if slow else 1e-3)
                        readings.on_telemetry(name, telemetry, clock.now_sec() + 60 * minutes)
                await eventually(lambda expected=expected: devices[-1].mark.state is expected)  # type: ignore[misc]
                clock.advance(3600.0)
            assert [device.mark.by for device in devices] == [""] * 4
            assert {device.mark.state for device in devices} == {HealthState.GOOD}
            agent.report_all()
