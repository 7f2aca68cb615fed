"""The tracker's snapshot and its changes through real gRPC, for clients that read them and one that never does."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from fleet.base.machine import account_name
from fleet.testing import LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_channel
from fleet.v1 import fleet_service_pb2, job_pb2, lease_service_pb2
from fleet.wire import rpc
from fleet.wire.times import duration
from tests.service.served_tracker import FLEET, LEASES, LIMITS, snapshot
from tests.service.served_tracker import served as served


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
