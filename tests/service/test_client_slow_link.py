"""The client over a link with a long round trip."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Trial
from tests.service.client_fakes import SmallAgent, SmallTracker, serving

ONE_WAY_SEC = 0.01
COUNT = 64


@contextlib.asynccontextmanager
async def delayed(address: str) -> AsyncGenerator[str, None]:
    """Forward a port, delaying every byte by a fixed time."""
    host, _, port = address.rpartition(":")
    pipes: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while piece := await reader.read(65536):
            loop.call_later(ONE_WAY_SEC, writer.write, piece)
        loop.call_later(ONE_WAY_SEC, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writers.extend((writer, far_writer))
        pipes.add(asyncio.create_task(pump(reader, far_writer)))
        pipes.add(asyncio.create_task(pump(far_reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@pytest.mark.measures
@pytest.mark.slow
async def test_a_batch_does_not_pay_the_round_trip_per_trial(tmp_path: Path) -> None:
    """Uploading and measuring 64 candidates over 20 ms costs a few round trips, not one each."""
    artifacts = []
    for number in range(COUNT):
        path = tmp_path / f"{number}.so"
        path.write_bytes(f"library {number}".encode() * 1000)
        artifacts.append(Artifact.of_file(path))
    trials = [Trial(candidate_id=artifact.path.stem, artifact_digest=artifact.digest) for artifact in artifacts]
    agent = SmallAgent()
    async with serving(session=agent) as near, delayed(near) as far:
        tracker = SmallTracker(far)
        async with (
            serving(lease=tracker) as address,
            fleet.aio.connect(address) as client,
            client.acquire("simulated") as device,
        ):
            await device.open()
            started_sec = time.monotonic()
            await device.ensure(artifacts)
            measurements = [measurement async for measurement in device.measure(trials)]
            per_trial_sec = (time.monotonic() - started_sec) / COUNT

    assert [trial.candidate_id for trial in trials] == [measurement.candidate_id for measurement in measurements]
    assert agent.puts == COUNT
    assert per_trial_sec < ONE_WAY_SEC, f"{per_trial_sec * 1e3:.2f} ms per trial"
    print(f"{per_trial_sec * 1e3:.2f} ms per trial over {2e3 * ONE_WAY_SEC:.0f} ms round trip")
