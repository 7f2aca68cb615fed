"""The client against the real tracker: the queue, lost leases, and a tracker that disappears and returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import fleet.aio
from fleet.base.clock import Clock
from fleet.client.aio import Fleet
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.leases import PendingRequest
from fleet.domain.measuring import Trial
from fleet.errors import (
    ConfigError,
    DeviceClosed,
    DeviceUnreachable,
    InvalidRequest,
    LeaseExpired,
    LeaseRevoked,
    NoMatchingDevice,
    NotFound,
    TrackerUnavailable,
    WaitTimeout,
)
from fleet.identity.roles import Role
from fleet.testing import FakeClock, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.tracker.core.records import TrackerLimits
from tests.service.client_fakes import SmallAgent, serving

TRIALS = [Trial(candidate_id=str(i), artifact_digest="sha256:0") for i in range(3)]


@contextlib.asynccontextmanager
async def one_device(
    limits: TrackerLimits | None = None, clock: Clock | None = None
) -> AsyncGenerator[tuple[ServedTracker, SmallAgent, Fleet], None]:
    """Serve a tracker with one device that has a small data path, and connect."""
    agent = SmallAgent()
    async with (
        serving(session=agent) as agent.address,
        serve_tracker(limits=limits, clock=clock) as tracker,
        SimulatedAgent(tracker.address, ["devices/one"], address=agent.address),
        fleet.aio.connect(tracker.address, clock=clock) as client,
    ):
        yield tracker, agent, client


async def test_a_waiting_client_gets_its_position_and_the_holder() -> None:
    """The second client gets its position and the holder before it, and then its turn."""
    told: list[PendingRequest] = []
    async with one_device() as (tracker, _, client), fleet.aio.connect(tracker.address, holder="bob@lab") as other:
        async with client.acquire("simulated", purpose="first"):
            waiting = asyncio.create_task(other.acquire_device("simulated", on_queued=told.append))
            await eventually(lambda: told)
            assert told[0].position == 0
            assert "devices/one" in told[0].reason
        device = await waiting
        assert device.lease.holder_note == "bob@lab"
        await device.release()


async def test_unsatisfiable_requests_have_specific_errors() -> None:
    """Selectors without a match, invalid selectors, and waits that time out each have their error."""
    async with one_device() as (_, _, client):
        with pytest.raises(NoMatchingDevice, match="one"):
            await client.acquire_device("name=two")
        with pytest.raises(InvalidRequest, match="character 1: expected a label"):
            await client.acquire_device("=!")
        with pytest.raises(InvalidRequest, match="longer than 0"):
            await client.acquire_device("simulated", ttl_sec=0)
        async with client.acquire("simulated"):
            with pytest.raises(WaitTimeout):
                await client.acquire_device("simulated", wait_timeout_sec=0.1)
        assert not (await client.snapshot()).requests


async def test_a_cancelled_wait_leaves_no_files_behind() -> None:
    """Cancelling an acquire removes it from the queue; a simultaneous grant is released."""
    async with one_device() as (_, _, client):
        async with client.acquire("simulated"):
            waiting = asyncio.create_task(client.acquire_device("simulated"))
            await eventually(lambda: _waits(client))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        for pause_sec in (0.0, 0.001, 0.002, 0.005):
            waiting = asyncio.create_task(client.acquire_device("simulated"))
            await asyncio.sleep(pause_sec)
            waiting.cancel()
            done = (await asyncio.gather(waiting, return_exceptions=True))[0]
            if not isinstance(done, BaseException):
                await done.release()
        await eventually(lambda: _is_idle(client))


async def test_an_error_in_the_block_gives_the_device_back() -> None:
    """Leaving the block by an exception closes the session and releases the lease."""
    async with one_device() as (_, agent, client):
        used = []

        async def fail() -> None:
            async with client.acquire("simulated") as device:
                used.append(device)
                await device.open()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert agent.is_closed
        await eventually(lambda: _is_idle(client))
        with pytest.raises(DeviceClosed):
            await used[0].open()


async def test_a_revoked_lease_stops_the_measurement_under_way() -> None:
    """The holder's calls fail with the operator's reason, and every later call does too."""
    async with one_device() as (_, agent, client), client.acquire("simulated") as device:
        agent.hold.clear()
        measuring = asyncio.create_task(_collect(device))
        await eventually(lambda: device.is_busy)
        await client.revoke(device.lease.name, "needed for the release")
        with pytest.raises(LeaseRevoked, match="needed for the release"):
            await measuring
        assert isinstance(device.ended, LeaseRevoked)
        with pytest.raises(LeaseRevoked):
            await device.open()
        with pytest.raises(NotFound):
            await client.revoke(device.lease.name)


@pytest.mark.slow
async def test_a_lease_is_renewed_and_its_session_extended() -> None:
    """A lease outlives its ttl while the client lives, and the agent sees newer tokens."""
    clock = FakeClock()
    async with (
        one_device(TrackerLimits(min_ttl_sec=0.5), clock) as (_, agent, client),
        client.acquire("simulated", ttl_sec=0.6) as device,
    ):
        await device.open()
        first = device.token

        def is_shown_newer_tokens() -> bool:
            clock.advance(0.001)  # each renewal gives another token, and no stall of the machine ends the lease
            return len(set(agent.opened_with)) > 3

        await eventually(is_shown_newer_tokens)
        assert device.ended is None
        assert device.token != first


@pytest.mark.slow
async def test_a_lease_survives_a_restart_of_the_tracker() -> None:
    """Measuring continues while the tracker is away, and the lease is renewed when it returns."""
    async with one_device() as (tracker, _, client), client.acquire("simulated") as device:
        before = device.token
        await tracker.stop()
        await eventually(lambda: not client.is_connected)
        assert [trial.candidate_id for trial in TRIALS] == await _collect(device)
        with pytest.raises(TrackerUnavailable, match=tracker.address):
            await client.snapshot()
        await tracker.start()
        await eventually(lambda: client.is_connected and device.token != before)
        assert device.ended is None
        snapshot = await client.snapshot()
        assert [lease.name for lease in snapshot.leases] == [device.lease.name]


@pytest.mark.slow
async def test_a_wait_survives_a_restart_of_the_tracker() -> None:
    """A request made before the restart is granted after it, once."""
    async with one_device() as (tracker, _, client):
        async with client.acquire("simulated"):
            waiting = asyncio.create_task(client.acquire_device("simulated"))
            await eventually(lambda: _waits(client))
            await tracker.restart()
            await eventually(lambda: client.is_connected)
            assert not waiting.done()
        # The agent of this test does not reconnect by itself as a real one does.
        async with SimulatedAgent(tracker.address, ["devices/one"]):
            device = await waiting
            snapshot = await client.snapshot()
            assert [lease.name for lease in snapshot.leases] == [device.lease.name]
            await device.release()


@pytest.mark.slow
async def test_a_lease_ends_by_its_own_clock_while_the_tracker_is_away() -> None:
    """The device is lost, with an explanation, once its token expires unrenewed, even if no message can reach the
    client.
    """
    clock = FakeClock()
    async with (
        one_device(TrackerLimits(min_ttl_sec=0.5), clock) as (tracker, agent, client),
        client.acquire("simulated", ttl_sec=0.6) as device,
    ):
        agent.hold.clear()
        measuring = asyncio.create_task(_collect(device))
        await eventually(lambda: device.is_busy)
        await tracker.stop()
        await eventually(lambda: not client.is_connected)
        clock.advance(0.6)
        with pytest.raises(LeaseExpired, match="no renewal came through"):
            await measuring
        assert isinstance(device.ended, LeaseExpired)


@pytest.mark.slow
async def test_a_wait_ends_in_time_while_the_tracker_is_away() -> None:
    """The client keeps its own watch over the wait that its caller allowed."""
    async with one_device() as (tracker, _, client):
        await tracker.stop()
        with pytest.raises(WaitTimeout, match="the tracker is away"):
            await client.acquire_device("simulated", wait_timeout_sec=0.1)


async def test_an_agent_that_is_gone_is_unreachable() -> None:
    """A call to a device whose agent died names the device and its address, and is retryable."""
    agent = SmallAgent()
    async with contextlib.AsyncExitStack() as serving_agent:
        agent.address = await serving_agent.enter_async_context(serving(session=agent))
        async with (
            serve_tracker() as tracker,
            SimulatedAgent(tracker.address, ["devices/one"], address=agent.address),
            fleet.aio.connect(tracker.address) as client,
            client.acquire("simulated") as device,
        ):
            agent.hold.clear()
            measuring = asyncio.create_task(_collect(device))
            await eventually(lambda: device.is_busy)
            await serving_agent.aclose()
            with pytest.raises(DeviceUnreachable, match=f"devices/one at {agent.address} does not answer") as caught:
                await measuring
            assert caught.value.is_retryable
            with pytest.raises(DeviceUnreachable):
                await device.open()


async def test_jobs_are_shown_to_others() -> None:
    """A published job appears in snapshots with its newest state."""
    async with one_device() as (_, _, client):
        for done in (1, 2, 3):
            client.publish(JobStatus(name="jobs/1", trials_done=done))

        async def is_shown() -> bool:
            return [job.trials_done for job in (await client.snapshot()).jobs] == [3]

        await eventually(is_shown)


@pytest.mark.slow
async def test_jobs_that_ended_long_ago_are_not_shown_again_by_a_tracker_that_is_back() -> None:
    """Only recently finished and running jobs are published again; a restart once showed hundreds of old ones as just
    ended.
    """
    clock = FakeClock()
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address, clock=clock) as client:
        client.publish(JobStatus(name="jobs/1", state=JobState.FINISHED))
        client.publish(JobStatus(name="jobs/2", state=JobState.RUNNING))
        clock.advance(500)
        client.publish(JobStatus(name="jobs/3", state=JobState.FINISHED))
        clock.advance(500)
        await tracker.stop()
        await eventually(lambda: not client.is_connected)
        await tracker.start()
        await eventually(lambda: client.is_connected)

        async def is_told() -> bool:
            return {job.name for job in (await client.snapshot()).jobs} == {"jobs/2", "jobs/3"}

        await eventually(is_told)


async def test_names_that_are_no_text_are_sent_all_the_same() -> None:
    """A model's file may have any name: the client went mute at one, and its leases ended."""
    name = os.fsdecode(b"caf\xe9.onnx")
    async with one_device() as (tracker, _, _), fleet.aio.connect(tracker.address, holder=name) as client:
        client.publish(JobStatus(name="jobs/1", title=name, holder=name, activity=name, decision=name))
        async with client.acquire("simulated", purpose=name) as device:
            assert (device.lease.holder_note, device.lease.purpose) == ("caf?.onnx", "caf?.onnx")

        async def is_shown() -> bool:
            return [job.title for job in (await client.snapshot()).jobs] == ["caf?.onnx"]

        await eventually(is_shown)


async def test_a_request_that_cannot_be_sent_costs_itself_only() -> None:
    """The caller gets the reason; other requests go on."""
    async with one_device() as (_, _, client):
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            await client.acquire_device("simulated", priority=0.5)  # type: ignore[arg-type]
        async with client.acquire("simulated"):
            pass


async def test_watching_gives_a_snapshot_at_once_and_after_each_change() -> None:
    """The first snapshot comes without a change, the next shows the lease."""
    async with one_device() as (_, _, client), contextlib.aclosing(client.watch(0.1)) as snapshots:
        assert not (await anext(snapshots)).leases
        async with client.acquire("simulated"):
            async for snapshot in snapshots:
                if snapshot.leases:
                    break


async def test_bad_addresses_are_refused_before_anything_is_tried() -> None:
    """An address that is no host:port is a configuration error that shows a good one."""
    for address in ("localhost", "http://x:1", "a:b", "a:99999", "a:1:2"):
        with pytest.raises(ConfigError, match=r"write it like 127\.0\.0\.1:9290"):
            fleet.aio.connect(address)


async def test_another_service_at_the_address_is_reported() -> None:
    """The errors distinguish another server from no server."""
    async with serving(session=SmallAgent(), role=Role.TRACKER) as address:
        with pytest.raises(TrackerUnavailable, match="is no tracker of tvm-fleet"):
            await fleet.aio.connect(address)


async def _collect(device: fleet.aio.Device) -> list[str]:
    return [measurement.candidate_id async for measurement in device.measure(TRIALS)]


async def _waits(client: Fleet) -> bool:
    return bool((await client.snapshot()).requests)


async def _is_idle(client: Fleet) -> bool:
    snapshot = await client.snapshot()
    return not snapshot.requests and not snapshot.leases


async def test_a_lease_at_its_longest_is_not_renewed_any_more() -> None:
    """Renewals at a third of an ever shorter rest would never end, and would extend nothing."""
    renewals: list[bool] = []
    async with one_device() as (_, _, client):
        device = await client.acquire_device("simulated", max_sec=0.5)
        device.watch(on_end=lambda: None, on_renew=lambda: renewals.append(True))
        await eventually(lambda: device.ended)
        await device.release()
    assert isinstance(device.ended, LeaseExpired)
    assert not renewals


async def test_a_lease_goes_on_at_another_address_of_the_tracker(tmp_path: Path) -> None:
    """The client moves to the address that answers; single calls do, too."""
    state = tmp_path / "state"
    async with serve_tracker(state_dir=state) as first:
        unused = first.address
    async with serve_tracker(state_dir=state) as second:
        both = f"{unused},{second.address}"
        async with SimulatedAgent(second.address, ["devices/one"]), fleet.aio.connect(both) as client:
            lease = (await client.acquire_device("simulated")).lease
            await second.stop()
            await eventually(lambda: not client.is_connected)
            await first.start()
            try:
                await eventually(lambda: client.is_connected)
                (device,) = (await client.snapshot()).devices
                assert device.lease_name == lease.name
            finally:
                await first.stop()
