"""Measuring over lost leases, against a real tracker and data paths that break, lie and never come to a result."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fleet.domain.measuring import ErrorKind
from fleet.errors import DeviceClosed, DeviceFaulted, DeviceUnreachable, MeasurementError, TrackerUnavailable
from fleet.v1 import measurement_pb2
from tests.service.odd_agent import artifact, bad, good, measured, seated


async def test_an_unreachable_device_ends_the_wait_with_an_error() -> None:
    """A device granted repeatedly at a dead address is an error after a few tries instead of an endless loop."""
    async with seated(address="127.0.0.1:9") as (_, seat, notices):
        with pytest.raises(DeviceUnreachable, match="does not answer"):
            await seat.device()
    assert len(notices) == 3


async def test_an_agent_that_has_just_started_is_waited_for(tmp_path: Path) -> None:
    """It has not met its tracker again: that ends no job."""
    async with seated() as (agent, seat, _):
        agent.refuses_open = [TrackerUnavailable("not yet"), TrackerUnavailable("not yet")]
        results = await measured(seat, artifact(tmp_path))
    assert [result.error for result in results] == [None, None]


async def test_an_artifact_that_is_always_missing_ends_the_batch(tmp_path: Path) -> None:
    """An agent that accepts artifacts and never has them is given up with its last error."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: bad(asked, measurement_pb2.ERROR_KIND_ARTIFACT_MISSING)
        with pytest.raises(DeviceUnreachable, match="no result in 3 tries: ARTIFACT_MISSING"):
            await measured(seat, artifact(tmp_path))


async def test_an_artifact_that_is_missing_once_is_put_again(tmp_path: Path) -> None:
    """One measurement for each trial, in order."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda count, asked: (
            bad(asked, measurement_pb2.ERROR_KIND_ARTIFACT_MISSING) if count == 2 else good(asked)
        )
        results = await measured(seat, artifact(tmp_path), 3)
    assert [(result.candidate_id, result.error) for result in results] == [("0", None), ("1", None), ("2", None)]


async def test_the_reason_behind_an_ended_session_is_heard(tmp_path: Path) -> None:
    """The job ends with the agent's final error after a few tries."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: bad(asked, measurement_pb2.ERROR_KIND_LEASE_ENDED)
        agent.last_word = DeviceFaulted("no worker can be started")
        with pytest.raises(DeviceUnreachable, match="no result in 3 tries: no worker can be started"):
            await measured(seat, artifact(tmp_path))


@pytest.mark.parametrize("times", [(math.nan,), (1e-6, -1e-6), (math.inf,), (0.0,), (1e-6, 1.7e9)])
async def test_times_that_are_none_are_an_error(tmp_path: Path, times: tuple[float, ...]) -> None:
    """A device that lies costs the candidate, not the job."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: good(asked, *times)
        (result,) = await measured(seat, artifact(tmp_path), 1)
    assert result.error is ErrorKind.RUN_FAILED
    assert not result.run_secs


async def test_mixed_up_answers_move_the_batch_to_another_agent(tmp_path: Path) -> None:
    """An agent that mixes up its answers is given up for another, which measures the batch."""
    async with seated() as (agent, seat, notices):
        agent.answer = lambda count, asked: (
            measurement_pb2.Measurement(candidate_id="another", run_secs=[1e-9]) if count == 2 else good(asked)
        )
        results = await measured(seat, artifact(tmp_path), 3)
    assert [(result.candidate_id, result.run_secs) for result in results] == [(name, (1e-6,)) for name in "012"]
    assert any("answered a trial that was not next" in notice for notice in notices)


async def test_a_call_puts_a_missing_artifact_again(tmp_path: Path) -> None:
    """An artifact that the agent lost is no fault of the candidate."""
    async with seated() as (agent, seat, _):
        agent.refuses_calls = [measurement_pb2.ERROR_KIND_ARTIFACT_MISSING]
        assert await seat.call(artifact(tmp_path), []) == []
    assert agent.calls == 2


async def test_a_possible_cause_of_a_crash_is_not_called_again(tmp_path: Path) -> None:
    """A candidate that is not trusted is called once; a trusted program again."""
    async with seated() as (agent, seat, _):
        agent.refuses_calls = [DeviceUnreachable("gone")]
        with pytest.raises(MeasurementError, match="not tried again") as caught:
            await seat.call(artifact(tmp_path), [], is_trusted=False)
        assert caught.value.kind == ErrorKind.DEVICE_FAULTED
        assert agent.calls == 1
        agent.refuses_calls = [DeviceUnreachable("gone")]
        assert await seat.call(artifact(tmp_path), []) == []


async def test_an_agent_that_shuts_down_is_waited_for(tmp_path: Path) -> None:
    """Restarting an agent in an orderly way ends no job, and blames no candidate."""
    async with seated() as (agent, seat, _):
        agent.refuses_measure = [DeviceClosed("the agent is shutting down")]
        results = await measured(seat, artifact(tmp_path))
    assert [result.error for result in results] == [None, None]


async def test_a_faulted_device_burns_no_trials(tmp_path: Path) -> None:
    """Trials that a faulted device refused are measured once it recovers, and count only then."""
    async with seated() as (agent, seat, notices):
        agent.answer = lambda count, asked: (
            bad(asked, measurement_pb2.ERROR_KIND_DEVICE_FAULTED) if count in (2, 3) else good(asked)
        )
        results = await measured(seat, artifact(tmp_path), 3)
    assert [(result.candidate_id, result.error) for result in results] == [("0", None), ("1", None), ("2", None)]
    assert any("could not run the program" in notice for notice in notices)


async def test_only_the_last_of_a_batch_ends_it(tmp_path: Path) -> None:
    """The agent checks the device after the last of a batch; to do so after each would cost too much."""
    ends: list[bool] = []

    def answer(_: int, asked: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
        ends.append(asked.ends_batch)
        return good(asked)

    async with seated() as (agent, seat, _):
        agent.answer = answer
        await measured(seat, artifact(tmp_path), 3)
    assert ends == [False, False, True]
