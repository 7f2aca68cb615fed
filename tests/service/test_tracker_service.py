"""The tracker through real gRPC: streams, tokens, fences, restarts, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from fleet.base.machine import account_name
from fleet.domain.tokens import TokenVerifier
from fleet.errors import AlreadyExists, InvalidRequest, NoMatchingDevice, NotFound, TrackerUnavailable
from fleet.testing import FakeClock, LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_channel
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import TrackerLimits
from fleet.v1 import (
    agent_service_pb2,
    device_pb2,
    fleet_service_pb2,
    job_pb2,
    lease_service_pb2,
)
from fleet.wire import rpc
from fleet.wire.times import duration, timestamp_sec
from fleet.wire.tokens import verify_token
from tests.full_disk import full_disk

LEASES = lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"]
FLEET = fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"]
AGENTS = agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"]
LIMITS = TrackerLimits(grace_sec=0.3, min_ttl_sec=0.05)


@pytest.fixture
async def served() -> AsyncIterator[ServedTracker]:
    async with serve_tracker(limits=LIMITS) as served:
        yield served


@pytest.fixture
async def timeless() -> AsyncIterator[ServedTracker]:
    """A tracker without passing time, so that no lease expires while a busy machine stalls."""
    async with serve_tracker(clock=FakeClock()) as served:
        yield served


async def snapshot(address: str) -> fleet_service_pb2.Snapshot:
    async with account_channel(address) as channel:
        response = await rpc.Stub(channel, FLEET).get_fleet(fleet_service_pb2.GetFleetRequest())
        return response.snapshot


async def test_grant_carries_a_token_that_the_agent_can_check(served: ServedTracker) -> None:
    """The token is signed with the key that agents got, and agrees with the lease."""
    async with (
        SimulatedAgent(served.address, ["devices/a"], address=":77") as agent,
        LeaseStream(served.address, "c") as stream,
    ):
        granted = await stream.grant("r1", "simulated")

        claims = verify_token(granted.token.SerializeToString(), TokenVerifier(agent.public_key))
        assert (claims.lease_name, claims.device_name) == (granted.lease.name, "devices/a")
        assert claims.epoch == granted.lease.epoch > agent.fences["devices/a"]
        assert claims.expires_at_sec == timestamp_sec(granted.lease.expires_at)
        assert granted.device.address == "127.0.0.1:77"
        assert granted.device.state == device_pb2.DEVICE_STATE_LEASED


async def test_release_fences_the_agent_and_serves_the_next(served: ServedTracker) -> None:
    """The second client gets its position and the reason, and then the device; the agent learns of the end."""
    async with (
        SimulatedAgent(served.address, ["devices/a"]) as agent,
        LeaseStream(served.address, "one", holder="alice@lab") as one,
        LeaseStream(served.address, "two") as two,
    ):
        first = await one.grant("r1", "simulated")
        two.acquire("r1", "simulated")
        queued = await eventually(lambda: two.queued.get("r1"))

        one.release(first.lease.name)

        second = await eventually(lambda: two.granted.get("r1"))
        await eventually(lambda: agent.fences["devices/a"] == first.lease.epoch)
        assert queued.position == 0
        assert queued.reason.startswith(f"devices/a is held by {account_name()} (alice@lab) for ")
        assert second.lease.epoch > first.lease.epoch
        ended = await eventually(lambda: one.ended.get(first.lease.name))
        assert ended.end == lease_service_pb2.LEASE_END_RELEASED


@pytest.mark.slow
async def test_queue_position_updates_are_sent(served: ServedTracker) -> None:
    """Waiting clients see themselves move up."""
    async with (
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "one") as one,
        LeaseStream(served.address, "two") as two,
    ):
        first = await one.grant("r1", "simulated")
        one.acquire("r2", "simulated")
        await eventually(lambda: "r2" in one.queued)
        two.acquire("r1", "simulated")
        await eventually(lambda: two.queued.get("r1") and two.queued["r1"].position == 1)

        one.release(first.lease.name)

        await eventually(lambda: two.queued["r1"].position == 0)


async def test_renewal_gives_a_token_that_lasts_longer(served: ServedTracker) -> None:
    """The token has the same epoch and a later end."""
    async with SimulatedAgent(served.address, ["devices/a"]) as agent, LeaseStream(served.address, "c") as stream:
        granted = await stream.grant("r1", "simulated", ttl_sec=5.0)

        stream.renew(granted.lease.name)

        renewed = await eventually(lambda: stream.renewed.get(granted.lease.name))
        claims = verify_token(renewed.token.SerializeToString(), TokenVerifier(agent.public_key))
        assert claims.epoch == granted.lease.epoch
        assert claims.expires_at_sec > timestamp_sec(granted.lease.expires_at)


async def test_lease_that_is_not_renewed_expires(served: ServedTracker) -> None:
    """The holder gets the expiry, the device is free again, and a renewal reports the same end."""
    async with SimulatedAgent(served.address, ["devices/a"]), LeaseStream(served.address, "c") as stream:
        granted = await stream.grant("r1", "simulated", ttl_sec=0.1)
        ended = await eventually(lambda: stream.ended.get(granted.lease.name))
        stream.ended.clear()

        stream.renew(granted.lease.name)

        again = await eventually(lambda: stream.ended.get(granted.lease.name))
        assert ended.end == again.end == lease_service_pb2.LEASE_END_EXPIRED
        await stream.grant("r2", "simulated")


async def test_a_refusal_lists_the_existing_devices(served: ServedTracker) -> None:
    """A selector that no device can ever satisfy fails at once."""
    async with SimulatedAgent(served.address, ["devices/a"]), LeaseStream(served.address, "c") as stream:
        stream.acquire("r1", "cuda")

        refused = await eventually(lambda: stream.refused.get("r1"))

        assert refused.error_class == "NoMatchingDevice"
        assert "devices/a (simulated)" in refused.message


@pytest.mark.slow
async def test_lost_client_is_cleaned_up_after_the_grace_time() -> None:
    """Its waiting request leaves at once, its lease a little later."""
    clock = FakeClock()
    async with (
        serve_tracker(limits=LIMITS, clock=clock) as served,
        SimulatedAgent(served.address, ["devices/a"]),
    ):
        stream = LeaseStream(served.address, "c")
        await stream.open()
        await stream.grant("r1", "simulated")
        stream.acquire("r2", "simulated")
        await eventually(lambda: "r2" in stream.queued)

        await stream.close()

        await eventually(lambda: not len(served.tracker.state.waiting))
        assert served.tracker.state.leases
        clock.advance(LIMITS.grace_sec)
        await eventually(lambda: not served.tracker.state.leases)
        assert not served.tracker.state.clients


async def test_newer_stream_of_a_client_replaces_the_older(served: ServedTracker) -> None:
    """The older stream ends, the lease goes on with the newer."""
    async with SimulatedAgent(served.address, ["devices/a"]), LeaseStream(served.address, "c") as older:
        granted = await older.grant("r1", "simulated")

        async with LeaseStream(served.address, "c") as newer:
            await eventually(lambda: older.error)
            assert newer.welcome
            assert [lease.name for lease in newer.welcome.leases] == [granted.lease.name]
            newer.release(granted.lease.name)
            await eventually(lambda: granted.lease.name in newer.ended)


class SlowDisk(FakeClock):
    """A clock that advances while a tracker opens its files."""

    next_stall_sec = 0.0
    """Duration of the next reading of the clock."""

    def now_sec(self) -> float:
        now_sec, stall_sec = super().now_sec(), self.next_stall_sec
        self.next_stall_sec = 0.0
        self.advance(stall_sec)
        return now_sec


async def test_a_slow_disk_does_not_shorten_the_grace_period() -> None:
    """Clients have their whole grace period even if the tracker's files took a minute to open."""
    clock = SlowDisk()
    async with (
        serve_tracker(limits=LIMITS, clock=clock) as served,
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "c") as stream,
    ):
        await stream.grant("held", "simulated")
        stream.acquire("next", "simulated")
        await eventually(lambda: "next" in stream.queued)
        await served.stop()
        clock.next_stall_sec = 60.0
        await served.start()
        await served.tracker.engine.ask(ev.Tick())

        assert [request.request_id for request in served.tracker.engine.queries.requests_named("next")] == ["next"]


async def test_restart_keeps_leases_queue_and_epochs(timeless: ServedTracker) -> None:
    """After a restart on the same journal clients keep their leases, and waiting requests are served in order."""
    address = timeless.address
    async with SimulatedAgent(address, ["devices/a"]) as agent, LeaseStream(address, "one") as one:
        granted = await one.grant("r1", "simulated")
        async with LeaseStream(address, "two") as two:
            two.acquire("r1", "simulated")
            await eventually(lambda: "r1" in two.queued)
            await timeless.restart()
            await eventually(lambda: agent.error and one.error and two.error)

    async with (
        SimulatedAgent(address, ["devices/a"]) as agent,
        LeaseStream(address, "one") as one,
        LeaseStream(address, "two") as two,
    ):
        assert one.welcome
        assert [lease.name for lease in one.welcome.leases] == [granted.lease.name]
        assert agent.fences["devices/a"] == granted.lease.epoch - 1
        two.acquire("r1", "simulated")
        await eventually(lambda: "r1" in two.queued)
        one.release(granted.lease.name)
        second = await eventually(lambda: two.granted.get("r1"))
        assert second.lease.epoch > granted.lease.epoch


async def test_agent_that_detaches_leaves_its_device_offline(served: ServedTracker) -> None:
    """Snapshots show it as offline, and its lease continues."""
    async with LeaseStream(served.address, "c") as stream:
        async with SimulatedAgent(served.address, ["devices/a"]):
            granted = await stream.grant("r1", "simulated")

        await eventually(lambda: not served.tracker.state.devices["devices/a"].is_attached)

        shown = await snapshot(served.address)
        assert [device.state for device in shown.devices] == [device_pb2.DEVICE_STATE_OFFLINE]
        assert [lease.name for lease in shown.leases] == [granted.lease.name]


async def test_unhealthy_device_is_shown_as_faulted(served: ServedTracker) -> None:
    """The snapshot has the agent's reason and its readings."""
    async with SimulatedAgent(served.address, ["devices/a"]) as agent:
        agent.report("devices/a", is_healthy=False, reason="fan broken", temp_c=99.0)

        await eventually(lambda: not served.tracker.state.devices["devices/a"].is_healthy)

        (device,) = (await snapshot(served.address)).devices
        assert (device.state, device.reason) == (device_pb2.DEVICE_STATE_FAULTED, "fan broken")
        assert device.telemetry.temp_c == 99.0


async def test_second_agent_with_the_same_device_is_refused(served: ServedTracker) -> None:
    """Device names are unique among attached agents."""
    async with SimulatedAgent(served.address, ["devices/a"], agent_id="one"):
        with pytest.raises(AlreadyExists, match="devices/a"):
            await SimulatedAgent(served.address, ["devices/a"], agent_id="two").open()


@pytest.mark.parametrize(
    ("names", "kind", "address"),
    [
        (["pi4"], "cpu", ":1"),
        (["devices/../x"], "cpu", ":1"),
        (["devices/a", "devices/a"], "cpu", ":1"),
        (["devices/a"], "CPU!", ":1"),
        (["devices/a"], "cpu", "nowhere"),
        (["devices/a"], "cpu", "host:99999"),
    ],
)
async def test_malformed_agent_is_refused(served: ServedTracker, names: list[str], kind: str, address: str) -> None:
    """Names, kinds and addresses are checked before anything is taken in."""
    with pytest.raises(InvalidRequest):
        await SimulatedAgent(served.address, names, kind=kind, address=address).open()

    assert not served.tracker.state.devices


async def test_stream_without_hello_is_refused(served: ServedTracker) -> None:
    """A client or agent without an id is refused."""
    with pytest.raises(InvalidRequest, match="client_id"):
        await LeaseStream(served.address, "").open()
    with pytest.raises(InvalidRequest, match="agent_id"):
        await SimulatedAgent(served.address, [], agent_id="").open()


async def test_revoked_lease_is_over_for_its_holder(served: ServedTracker) -> None:
    """The operator gets the revoked lease, the holder the reason; a second revocation is not found."""
    async with (
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "c") as stream,
        account_channel(served.address) as channel,
    ):
        granted = await stream.grant("r1", "simulated")
        request = lease_service_pb2.RevokeLeaseRequest(lease_name=granted.lease.name, reason="repair")
        stub = rpc.Stub(channel, LEASES)

        response = await stub.revoke_lease(request)

        ended = await eventually(lambda: stream.ended.get(granted.lease.name))
        assert response.lease.name == granted.lease.name
        assert ended.end == lease_service_pb2.LEASE_END_REVOKED
        assert "repair" in ended.message
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.revoke_lease(request)
        assert isinstance(rpc.from_rpc_error(caught.value, TrackerUnavailable), NotFound)


async def test_a_cancelled_request_waits_no_more(served: ServedTracker) -> None:
    """The operator gets the cancelled request, its client the reason; the next one moves up; a second cancellation is
    not found.
    """
    async with (
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "c") as stream,
        account_channel(served.address) as channel,
    ):
        granted = await stream.grant("r1", "simulated")
        for name in ("r2", "r3"):
            stream.acquire(name, "simulated")
        await eventually(lambda: len(stream.queued) == 2)
        request = lease_service_pb2.CancelRequestRequest(request_id="r2", reason="repair")
        stub = rpc.Stub(channel, LEASES)

        response = await stub.cancel_request(request)

        refused = await eventually(lambda: stream.refused.get("r2"))
        assert (response.request.request_id, response.request.position) == ("r2", 0)
        assert refused.error_class == "Cancelled"
        assert refused.message.startswith("request 'r2' was cancelled by ")
        assert refused.message.endswith(": repair")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.cancel_request(request)
        assert isinstance(rpc.from_rpc_error(caught.value, TrackerUnavailable), NotFound)
        stream.release(granted.lease.name)
        await eventually(lambda: stream.granted.get("r3"))
        await served.restart()
        assert not served.tracker.engine.queries.requests_named("r2")


async def test_a_selector_is_checked_by_the_tracker(served: ServedTracker) -> None:
    """The answer counts matching devices, busy and detached ones included; without a match it lists the devices;
    nonsense is refused.
    """
    async with (
        LeaseStream(served.address, "c") as stream,
        account_channel(served.address) as channel,
    ):
        stub = rpc.Stub(channel, FLEET)

        async def check(selector: str) -> int:
            try:
                answer = await stub.check_selector(fleet_service_pb2.CheckSelectorRequest(selector=selector))
            except grpc.aio.AioRpcError as error:
                raise rpc.from_rpc_error(error, TrackerUnavailable) from None
            return int(answer.device_count)

        async with SimulatedAgent(served.address, ["devices/a", "devices/b"]):
            await stream.grant("r1", "name=a")
            assert await check("simulated") == 2
        assert await check("name=a") == 1
        with pytest.raises(NoMatchingDevice, match=r"'kind=cuda' \(kind=cuda: none of 2\); there are devices/a"):
            await check("kind=cuda")
        for nonsense in ("kind==", "kind=\x1b[31m", "name=" + "a" * 1_000):
            with pytest.raises(InvalidRequest):
                await check(nonsense)


async def test_snapshot_shows_the_whole_fleet(served: ServedTracker) -> None:
    """Devices sorted by name, live leases, the queue with positions and reasons, counts."""
    async with SimulatedAgent(served.address, ["devices/b", "devices/a"]), LeaseStream(served.address, "c") as stream:
        await stream.grant("r1", "name=a")
        for i in range(3):
            stream.acquire(f"w{i}", "name=a")
        await eventually(lambda: len(stream.queued) == 3)

        shown = await snapshot(served.address)

        assert [device.name for device in shown.devices] == ["devices/a", "devices/b"]
        assert [device.holder for device in shown.devices] == [account_name(), ""]
        assert [device.holder_note for device in shown.devices] == ["tester@here", ""]
        assert [request.position for request in shown.requests] == [0, 1, 2]
        assert (shown.request_count, shown.grant_count, len(shown.leases)) == (3, 1, 1)


async def test_watcher_sees_changes(served: ServedTracker) -> None:
    """The first snapshot comes at once, the next one after a change, with a larger version."""
    async with account_channel(served.address) as channel:
        request = fleet_service_pb2.WatchFleetRequest(min_interval=duration(0.1))
        call = rpc.Stub(channel, FLEET).watch_fleet(request)
        first = (await call.read()).snapshot

        async with SimulatedAgent(served.address, ["devices/a"]):
            second = (await call.read()).snapshot

        assert (len(first.devices), len(second.devices)) == (0, 1)
        assert second.version > first.version
        call.cancel()


async def test_job_of_a_lost_client_is_shown_as_interrupted(served: ServedTracker) -> None:
    """A running job is shown while its client is connected, and as interrupted afterwards."""
    running = job_pb2.Job(name="jobs/1", state=job_pb2.JOB_STATE_RUNNING)
    finished = job_pb2.Job(name="jobs/2", state=job_pb2.JOB_STATE_FINISHED)

    async def states() -> dict[str, int]:
        return {job.name: job.state for job in (await snapshot(served.address)).jobs}

    async def are_shown() -> bool:
        return await states() == {"jobs/1": job_pb2.JOB_STATE_RUNNING, "jobs/2": job_pb2.JOB_STATE_FINISHED}

    async with LeaseStream(served.address, "c") as stream:
        stream.say(*(lease_service_pb2.ClientEvent(job=job) for job in (running, finished)))
        await eventually(are_shown)

    async def is_interrupted() -> bool:
        return (await states())["jobs/1"] == job_pb2.JOB_STATE_INTERRUPTED

    await eventually(is_interrupted)
    assert (await states())["jobs/2"] == job_pb2.JOB_STATE_FINISHED


@pytest.mark.slow
async def test_client_that_never_reads_loses_its_stream() -> None:
    """Its backlog is bounded: the client is cut off and forgotten, and others are served as before."""
    async with (
        serve_tracker(limits=LIMITS, max_unsent=2_000) as served,
        SimulatedAgent(served.address, ["devices/a"]),
        account_channel(served.address) as channel,
    ):
        call = rpc.Stub(channel, LEASES).open_leases()
        hello = lease_service_pb2.ClientHello(client_id="deaf", holder="x" * 1000)
        await call.write(lease_service_pb2.OpenLeasesRequest(hello=hello))
        # Every renewal of an unknown lease is answered; the name makes the answers large enough to fill all buffers.
        events = [
            lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name=f"leases/{i}{'x' * 2000}"))
            for i in range(500)
        ]
        writer = asyncio.create_task(_write_for_ever(call, events))

        def waiting() -> int:
            return sum(map(len, served.tracker.lease_servicer.outboxes.values()))

        await eventually(lambda: waiting() >= 500)
        most = 0
        for _ in range(50):
            most = max(most, waiting())
            await asyncio.sleep(0.005)

        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        assert most <= 2_000
        async with LeaseStream(served.address, "other") as stream:
            await stream.grant("r1", "simulated")
        call.cancel()
        await eventually(lambda: "deaf" not in served.tracker.lease_servicer.outboxes)


async def _write_for_ever(call: grpc.aio.StreamStreamCall, events: list[lease_service_pb2.ClientEvent]) -> None:  # type: ignore[type-arg]
    while True:
        await call.write(lease_service_pb2.OpenLeasesRequest(events=events))


@pytest.mark.slow
async def test_full_disk_refuses_grants_and_loses_no_data(tmp_path: Path) -> None:
    """While the journal cannot grow, leases continue and new ones are refused with the reason; then grants work
    again.
    """
    async with serve_tracker(state_dir=tmp_path) as served:
        names = [f"devices/d{i}" for i in range(400)]
        async with SimulatedAgent(served.address, names), LeaseStream(served.address, "c") as stream:
            held = await stream.grant("r0", "simulated")

            with full_disk(tmp_path / "journal.sqlite-wal", free_bytes=100_000):
                for i in range(1, 400):
                    stream.acquire(f"r{i}", "simulated")
                refused = await eventually(lambda: next(iter(stream.refused.values()), None))
                stream.renew(held.lease.name)
                await eventually(lambda: held.lease.name in stream.renewed)
                told = dict(stream.granted)
            await eventually(lambda: not served.tracker.state.journal_trouble)
            await stream.grant("after", "simulated")

            assert refused.error_class == "DiskFull"
            assert str(tmp_path) in refused.message
            live = {device.lease.request_id for device in served.tracker.state.devices.values() if device.lease}
            assert live == told.keys() | {"after"}
            await stream.close()
            await served.restart()
            assert {lease.request_id for lease in served.tracker.state.leases.values()} == live
