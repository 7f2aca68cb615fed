"""Leases at the agent: admission, eviction, and no processes left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents.drivers.simulated import SimulatedDriver
from fleet.base.digests import digest_of
from fleet.domain.tokens import TokenSigner
from fleet.errors import LeaseExpired, LeaseRevoked, TrackerUnavailable, Unauthenticated
from fleet.testing import eventually
from fleet.v1.measurement_pb2 import Measurement
from tests.programs import is_alive
from tests.service.agent_bench import (
    DEVICE,
    SIMULATED,
    Bench,
    Holder,
    StubTracker,
    kind_of,
    request_for,
    serve_bench,
)

pytestmark = pytest.mark.slow
T = TypeVar("T")


async def in_a_short_lease(use: Callable[[float], Awaitable[T]]) -> T:
    """Use a device in a lease of one second, or in a longer one if the machine stalled; return the result."""
    with contextlib.suppress(LeaseExpired):
        return await use(1.0)
    return await use(15.0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path) as served:
        yield served


async def test_a_good_token_opens_a_session_and_runs_a_candidate(bench: Bench) -> None:
    """A holder gets a worker, and times with the state of the device around them."""
    holder = bench.holding(epoch=7)

    pid = await holder.open()
    measurement = await holder.run(b"latency_us:50", candidate_id="c-1")

    assert is_alive(pid)
    assert measurement.candidate_id == "c-1"
    assert kind_of(measurement) == "UNSPECIFIED", measurement.error_message
    assert measurement.run_secs[0] == pytest.approx(50e-6, rel=0.2)
    assert measurement.provenance.worker_pid == pid
    assert measurement.provenance.epoch == 7
    assert measurement.provenance.after.trials == 1


async def test_no_token_and_forged_tokens_are_refused(bench: Bench) -> None:
    """Only a token that this tracker signed for this device opens a session."""
    forger = TokenSigner(Ed25519PrivateKey.generate())
    for token, text in (
        (None, "acquire a lease"),
        (b"\xff\xff", "holds no token"),
        (bench.tracker.token(1, signer=forger), "not signed by this fleet's tracker"),
        (bench.tracker.token(1, device="devices/other"), "devices/other"),
    ):
        with pytest.raises(Unauthenticated, match=text):
            await bench.holder(token).open()


async def test_an_expired_token_is_refused(bench: Bench) -> None:
    """Time counts on the tracker's clock."""
    with pytest.raises(LeaseExpired, match="expired"):
        await bench.holding(epoch=1, ttl_sec=-0.5).open()


@pytest.mark.parametrize("ahead_sec", [30.0, -30.0])
async def test_a_wall_clock_that_is_off_neither_lengthens_nor_ends_a_lease(tmp_path: Path, ahead_sec: float) -> None:
    """With 30 s between the machine's clock and the tracker's, a fresh lease works and an old one does not."""
    async with serve_bench(tmp_path, clock_ahead_sec=ahead_sec) as bench:
        assert await bench.holding(epoch=1, ttl_sec=25.0).open() > 0
        with pytest.raises(LeaseExpired):
            await bench.holding(epoch=2, ttl_sec=-1.0).open()


async def test_an_agent_that_never_met_its_tracker_refuses(tmp_path: Path) -> None:
    """Without the tracker's key and clock no token can be verified, and the refusal says so."""
    tracker = StubTracker()
    await tracker.start()
    await tracker.stop()
    bench = Bench(tracker, tmp_path)
    try:
        await bench.start_agent(SIMULATED, attached=False)
        with pytest.raises(TrackerUnavailable, match="has not met its tracker"):
            await bench.holding(epoch=1).open()
    finally:
        await bench.close()


async def test_leases_work_and_end_while_the_tracker_is_down(bench: Bench) -> None:
    """The agent checks tokens and their time by itself."""
    await bench.tracker.stop()

    async def used(ttl_sec: float) -> tuple[Holder, int]:
        holder = bench.holding(epoch=1, ttl_sec=ttl_sec)
        assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"
        return holder, await holder.open()

    holder, pid = await in_a_short_lease(used)
    await eventually(lambda: not is_alive(pid))

    with pytest.raises(LeaseExpired):
        await holder.open()


async def test_a_newer_lease_ends_the_older_session_first(bench: Bench) -> None:
    """The holder of an older epoch runs nothing more, and its worker is dead when the newer one begins."""
    older = bench.holding(epoch=1)
    pid = await older.open()

    await bench.holding(epoch=2).open()

    assert not is_alive(pid)
    with pytest.raises(LeaseRevoked, match="superseded"):
        await older.open()


async def test_a_lease_that_expires_in_the_middle_of_a_measurement_ends_it(bench: Bench) -> None:
    """Running and waiting candidates get LEASE_ENDED, the call fails, the worker is dead, and the next holder starts
    clean.
    """
    former = bench.holding(epoch=1)
    digests = [await former.put(content) for content in (b"latency_us:50", b"hang", b"latency_us:60")]
    requests = [request_for(digest, candidate_id=digest, timeout_sec=60.0) for digest in digests]

    async def measured(ttl_sec: float) -> list[Measurement]:
        results: list[Measurement] = []
        with pytest.raises(LeaseExpired) as caught:
            await bench.holding(epoch=2, ttl_sec=ttl_sec).measure_into(results, requests)
        if not results or kind_of(results[0]) == "LEASE_ENDED":
            raise caught.value  # before the first one ran
        return results

    results = await in_a_short_lease(measured)

    assert [kind_of(result) for result in results] == ["UNSPECIFIED", "LEASE_ENDED", "LEASE_ENDED"]
    assert [result.candidate_id for result in results] == digests
    await eventually(lambda: not is_alive(results[0].provenance.worker_pid))
    next_holder = bench.holding(epoch=3)
    assert kind_of((await next_holder.measure([request_for(digests[0])]))[0]) == "UNSPECIFIED"


async def test_a_newer_token_of_the_same_lease_extends_the_session(bench: Bench) -> None:
    """Renewing keeps worker and measurement."""

    async def extend(holder: Holder) -> list[int]:
        pid = await holder.open()
        holder.token = bench.tracker.token(1)
        return [pid, await holder.open()]

    async def extended(ttl_sec: float) -> list[int]:
        holder = bench.holding(epoch=1, ttl_sec=ttl_sec)
        digest = await holder.put(f"sleep:{ttl_sec + 0.5}".encode())
        measuring = holder.measure([request_for(digest, timeout_sec=60.0)])
        (result,), pids = await asyncio.gather(measuring, extend(holder))
        assert kind_of(result) == "UNSPECIFIED"
        return [*pids, await holder.open()]

    assert len(set(await in_a_short_lease(extended))) == 1


async def test_an_older_token_of_the_same_lease_does_not_shorten_it(bench: Bench) -> None:
    """Tokens may arrive out of order."""
    holder = bench.holding(epoch=1)
    pid = await holder.open()

    async def show_an_older_one(ttl_sec: float) -> bytes:
        await bench.holding(epoch=1, ttl_sec=ttl_sec).open()
        return f"sleep:{ttl_sec + 0.3}".encode()

    digest = await holder.put(await in_a_short_lease(show_an_older_one))

    assert kind_of((await holder.measure([request_for(digest, timeout_sec=60.0)]))[0]) == "UNSPECIFIED"
    assert await holder.open() == pid


async def test_a_fence_of_the_tracker_ends_the_session_at_once(bench: Bench) -> None:
    """Revoking takes effect in the middle of a measurement."""
    holder = bench.holding(epoch=3)
    digest = await holder.put(b"hang")
    results = []
    running = asyncio.create_task(holder.measure_into(results, [request_for(digest, timeout_sec=60.0)]))
    pid = await holder.open()

    bench.tracker.fence(DEVICE, 3)

    with pytest.raises(LeaseRevoked, match="ended by the tracker"):
        await running
    assert [kind_of(result) for result in results] == ["LEASE_ENDED"]
    await eventually(lambda: not is_alive(pid))
    with pytest.raises(LeaseRevoked):
        await holder.open()


async def test_epochs_outlive_the_agent(bench: Bench) -> None:
    """After a restart of the agent an old token stays out."""
    await bench.holding(epoch=5).open()
    bench.tracker.fence(DEVICE, 5)
    await eventually(
        lambda: '"devices/sim": 5' in (bench.state_dir / "private" / "epochs.json").read_text().partition("fenced")[2]
    )

    await bench.stop_agent()
    await bench.start_agent(SIMULATED)

    for epoch in (4, 5):
        with pytest.raises(LeaseRevoked):
            await bench.holding(epoch=epoch).open()
    assert await bench.holding(epoch=6).open() > 0


async def test_a_holder_that_cancels_can_go_on(bench: Bench) -> None:
    """Cancelling a measurement kills its candidate, not the session."""
    holder = bench.holding(epoch=1)
    pid = await holder.open()
    digest = await holder.put(b"hang")

    async def is_cancelled_in_the_middle() -> bool:
        running = asyncio.create_task(holder.measure([request_for(digest, timeout_sec=60.0)]))
        await asyncio.wait((running,), timeout=0.3)  # on a busy machine it may not run yet
        running.cancel()
        return not is_alive(pid)

    await eventually(is_cancelled_in_the_middle, 30.0)
    assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"


async def test_closing_a_session_kills_its_workers_and_removes_their_directories(bench: Bench) -> None:
    """The workers for candidates and for the reference kernel are gone, with their directories, on return of close."""
    holder = bench.holding(epoch=1)
    pid = await holder.open()
    assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"
    assert bench.agent is not None
    workers = bench.agent.worker_pids
    rooms = bench.state_dir / "workers"
    assert pid in workers
    assert len(workers) == len(list(rooms.iterdir())) == 2

    await holder.close_session()

    assert not any(map(is_alive, workers))
    assert list(rooms.iterdir()) == []


async def test_worker_output_is_streamed_to_the_holder(bench: Bench) -> None:
    """The worker's output reaches its holder, until the session ends."""
    holder = bench.holding(epoch=1)
    await holder.open()
    pieces: list[str] = []

    async def watch() -> None:
        from fleet.v1 import session_service_pb2

        request = session_service_pb2.WatchLogsRequest()
        async for piece in holder.stub.watch_logs(request, metadata=holder.metadata):
            pieces.append(piece.text)  # noqa: PERF401 - read while it grows

    watching = asyncio.create_task(watch())

    async def is_heard() -> bool:
        await holder.run(b"say:hello from the kernel")
        return "hello from the kernel" in "".join(pieces)

    await eventually(is_heard)
    await holder.close_session()
    await asyncio.wait_for(watching, 30)


async def test_devices_of_one_agent_run_side_by_side(tmp_path: Path) -> None:
    """Simulated devices share no resources: a hanging one does not delay another."""
    config = {"devices": [{"driver": "simulated", "name": "sim", "count": 2, "time_scale": 0.0}]}
    async with serve_bench(tmp_path, config) as bench:
        first, second = (bench.holding(epoch=1, device=f"devices/sim-{index}") for index in range(2))
        digest = await first.put(b"hang")
        hanging = asyncio.create_task(first.measure([request_for(digest, timeout_sec=30.0)]))

        assert kind_of(await second.run(b"latency_us:50")) == "UNSPECIFIED"

        assert not hanging.done()
        hanging.cancel()


class SameCoresDriver(SimulatedDriver):
    """All of them on the same cores."""

    @property
    def resource(self) -> str:
        return "one set of cores"


async def test_devices_that_share_hardware_take_turns(tmp_path: Path) -> None:
    """Two devices on the same cores are never measured at the same time: each would spoil the other's times."""
    values = {"name": "sim", "count": 2, "time_scale": 0.0}
    drivers = SameCoresDriver.from_config(values, where="test", host_name="here")
    async with serve_bench(tmp_path, drivers=drivers) as bench:
        holders = [bench.holding(epoch=1, device=f"devices/sim-{index}") for index in range(2)]
        for holder in holders:
            await holder.open()

        found = await asyncio.gather(*(holder.run(b"sleep:0.3") for holder in holders))

    spans = sorted(
        (measurement.provenance.before.read_at.ToNanoseconds(), measurement.provenance.after.read_at.ToNanoseconds())
        for measurement in found
    )
    assert spans[0][1] <= spans[1][0]


async def test_an_artifact_that_was_not_put_is_reported_missing(bench: Bench) -> None:
    """A candidate without its artifact gets a result, and the next one runs."""
    holder = bench.holding(epoch=1)
    good = await holder.put(b"latency_us:50")

    results = await holder.measure([request_for(digest_of(b"never put")), request_for(good)])

    assert [kind_of(result) for result in results] == ["ARTIFACT_MISSING", "UNSPECIFIED"]


async def test_reports_reach_the_tracker(bench: Bench) -> None:
    """The tracker learns the served devices and their health."""
    hello = bench.tracker.hellos[0]

    assert [device.name for device in hello.devices] == [DEVICE]
    assert hello.address == f"127.0.0.1:{bench.agent.port}"
    await eventually(lambda: bench.tracker.reports[DEVICE].is_healthy)


async def test_the_agent_attaches_again_after_a_tracker_restart(bench: Bench) -> None:
    """It redials indefinitely, and the tracker recognizes it as the same agent."""
    await bench.tracker.stop()
    await bench.tracker.start()

    await eventually(lambda: len(bench.tracker.hellos) == 2)
    assert len({hello.agent_id for hello in bench.tracker.hellos}) == 1


async def test_leases_of_a_replaced_tracker_are_over(bench: Bench) -> None:
    """A tracker with another key does not know them, and may grant the device at once, from epoch 1."""
    older = bench.holding(epoch=5)
    pid = await older.open()
    await bench.tracker.stop()
    bench.tracker.signer = TokenSigner(Ed25519PrivateKey.generate())
    await bench.tracker.start()

    await eventually(lambda: not is_alive(pid))
    with pytest.raises(Unauthenticated):
        await older.open()
    assert await bench.holding(epoch=1).open() > 0


async def test_ending_while_the_worker_starts_cleans_up(bench: Bench) -> None:
    """A partial start is completed and ended, whenever the session's end arrives."""
    for epoch in range(1, 11):
        holder = bench.holding(epoch=epoch)
        opening = asyncio.create_task(holder.open())
        # A little later every time, across all that an opening does.
        await asyncio.wait((opening,), timeout=0.0005 * epoch)
        bench.tracker.fence(DEVICE, epoch)
        await asyncio.gather(opening, return_exceptions=True)

    folder = bench.state_dir / "workers"
    await eventually(lambda: not list(folder.iterdir()) and not bench.agent.family_pids())


async def test_a_device_that_stops_answering_is_reported_and_comes_back(tmp_path: Path) -> None:
    """Candidates get DEVICE_FAULTED while the device is away; the tracker learns of both changes."""
    settings = {"driver": "simulated", "name": "sim", "time_scale": 0.0, "disconnect_after": 2, "reconnect_sec": 12.0}
    async with serve_bench(tmp_path, {"devices": [settings]}) as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(b"latency_us:50")

        results = await holder.measure([request_for(digest)] * 3)

        assert [kind_of(result) for result in results] == ["UNSPECIFIED", "UNSPECIFIED", "DEVICE_FAULTED"]
        await eventually(lambda: not bench.tracker.reports[DEVICE].is_healthy)
        await eventually(lambda: bench.tracker.reports[DEVICE].is_healthy)
        assert kind_of((await holder.measure([request_for(digest)]))[0]) == "UNSPECIFIED"
