"""The client against a small tracker and agent: its whole contract without failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import TensorSpec, Trial
from fleet.errors import InvalidRequest, MeasurementError
from fleet.testing import eventually
from tests.service.client_fakes import leased, small_fleet


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    path = tmp_path / "a.so"
    path.write_bytes(b"content" * 300_000)
    return Artifact.of_file(path)


async def test_a_device_is_granted_used_and_given_back(artifact: Artifact) -> None:
    """One block covers acquire, upload, measure, close and release."""
    async with small_fleet() as (address, tracker, agent), fleet.aio.connect(address) as client:
        async with client.acquire("simulated", purpose="test") as device:
            await device.ensure([artifact])
            await device.ensure([artifact])
            trials = [Trial(candidate_id=str(i), artifact_digest=artifact.digest) for i in range(500)]
            ids = [measurement.candidate_id async for measurement in device.measure(trials)]

        assert [str(i) for i in range(500)] == ids
        assert agent.stored[artifact.digest] == artifact.path.read_bytes()
        assert agent.puts == 1
        assert agent.is_closed
        await eventually(lambda: tracker.leases == {})  # its client waits no longer than two seconds for that
        assert tracker.kinds() == ["acquire", "release"]


async def test_calls_take_and_return_arrays(artifact: Artifact) -> None:
    """Numbers go out and come back with their shape and dtype."""
    values = np.arange(6, dtype="float16").reshape(2, 3)
    async with leased() as device:
        module = device.load(artifact)
        doubled = await module(values)
        both = await module(values, values.T)
        with pytest.raises(MeasurementError, match="CRASHED by signal 11") as caught:
            await module(values, function="crash")

    np.testing.assert_array_equal(doubled, 2 * values)
    assert doubled.dtype == np.float16  # type: ignore[union-attr]
    assert isinstance(both, tuple)
    np.testing.assert_array_equal(both[1], 2 * values.T)
    assert caught.value.kind == "CRASHED"


async def test_known_outputs_are_not_passed(artifact: Artifact) -> None:
    """An artifact that knows its arguments takes inputs and returns outputs."""
    specs = (TensorSpec((4,), "float32"), TensorSpec((4,), "float32"), TensorSpec((4,), "float32", is_output=True))
    known = Artifact.of_file(artifact.path, args=specs)
    ones = np.ones(4, "float32")
    async with leased() as device:
        module = device.load(known)
        result = await module(ones, ones)
        timing = await module.time(min_repeat_ms=1)
        with pytest.raises(InvalidRequest, match=r"argument 1 of main: expected float32\[4\], given float64\[4\]"):
            await module(ones, np.ones(4))
        with pytest.raises(InvalidRequest, match="takes 2 arguments"):
            await module(ones)

    np.testing.assert_array_equal(result, 4 * ones)
    assert timing.median_sec == 1e-6


async def test_async_sources_are_measured_as_they_come(artifact: Artifact) -> None:
    """Results do not wait for the source of trials to end."""
    first_result = asyncio.Event()

    async def source() -> object:
        yield Trial(candidate_id="0", artifact_digest=artifact.digest)
        await first_result.wait()
        yield Trial(candidate_id="1", artifact_digest=artifact.digest)

    async with leased() as device:
        ids = []
        async for measurement in device.measure(source()):  # type: ignore[arg-type]
            ids.append(measurement.candidate_id)
            first_result.set()

    assert ids == ["0", "1"]


async def test_an_error_of_the_source_reaches_the_caller(artifact: Artifact) -> None:
    """An error of the source of trials ends the measuring with that error."""

    def source() -> object:
        yield Trial(candidate_id="0", artifact_digest=artifact.digest)
        raise ZeroDivisionError

    async with leased() as device:
        with pytest.raises(ZeroDivisionError):
            async for _ in device.measure(source()):  # type: ignore[arg-type]
                pass
