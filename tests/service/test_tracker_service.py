"""Leases through real gRPC: streams, tokens, fences, restarts, a slow and a full disk."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

from fleet.base.machine import account_name
from fleet.domain.tokens import TokenVerifier
from fleet.errors import InvalidRequest, NoMatchingDevice, NotFound, TrackerUnavailable
from fleet.testing import FakeClock, LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_channel
from fleet.tracker.core import events as ev
from fleet.v1 import device_pb2, fleet_service_pb2, lease_pb2, lease_service_pb2
from fleet.wire import rpc
from fleet.wire.times import timestamp_sec
from fleet.wire.tokens import verify_token
from tests.full_disk import full_disk
from tests.service.served_tracker import FLEET, LEASES, LIMITS
from tests.service.served_tracker import served as served
from tests.service.served_tracker import timeless as timeless


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


@pytest.mark.slow
async def test_a_changed_reason_is_sent(served: ServedTracker) -> None:
    """It arrives as data: the lease before the request is another's after the first has ended."""
    async with (
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "one") as one,
        LeaseStream(served.address, "two") as two,
    ):
        first = await one.grant("r1", "simulated")
        two.acquire("r1", "simulated")
        await eventually(lambda: "r1" in two.queued)
        (before,) = two.queued["r1"].wait.leases
        assert (before.device_name, before.holder) == ("devices/a", first.lease.holder)
        assert two.queued["r1"].wait.reason == lease_pb2.WAIT_REASON_LEASED

        one.acquire("r2", "simulated", lease_class=lease_pb2.LEASE_CLASS_INTERACTIVE)
        await eventually(lambda: "r2" in one.queued)
        one.release(first.lease.name)

        def is_behind_another() -> bool:
            leases = two.queued["r1"].wait.leases
            return bool(leases) and leases[0].lease_class == lease_pb2.LEASE_CLASS_INTERACTIVE

        await eventually(is_behind_another)


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


@pytest.mark.parametrize("reason", ["red \x1b[31m", "x" * 501])
async def test_a_bad_reason_ends_neither_lease_nor_request(served: ServedTracker, reason: str) -> None:
    async with (
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "c") as stream,
        account_channel(served.address) as channel,
    ):
        granted = await stream.grant("r1", "simulated")
        stream.acquire("r2", "simulated")
        await eventually(lambda: stream.queued)
        stub = rpc.Stub(channel, LEASES)

        for call in (
            stub.revoke_lease(lease_service_pb2.RevokeLeaseRequest(lease_name=granted.lease.name, reason=reason)),
            stub.cancel_request(lease_service_pb2.CancelRequestRequest(request_id="r2", reason=reason)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert isinstance(rpc.from_rpc_error(caught.value, TrackerUnavailable), InvalidRequest)
        assert not stream.ended
        assert not stream.refused


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
