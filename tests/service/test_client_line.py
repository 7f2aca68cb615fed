"""Batches that follow each other on one device, through one stream, on a real data path that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.client.line import TrialLine
from fleet.domain.measuring import ErrorKind, Trial
from fleet.errors import DeviceUnreachable
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.service.odd_agent import OddAgent, artifact, good, seated

ErrorsById = dict[str, ErrorKind | None]


def batch(built: Artifact, names: str) -> list[Trial]:
    return [Trial(candidate_id=name, artifact_digest=built.digest) for name in names]


async def errors_of(line: TrialLine, built: Artifact, names: str) -> ErrorsById:
    async with aclosing(line.measure([built], batch(built, names))) as results:
        return {found.candidate_id: found.error async for found in results}


async def side_by_side(line: TrialLine, built: Artifact, batches: Sequence[str]) -> list[ErrorsById]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*(errors_of(line, built, names) for names in batches))


async def test_batches_are_measured_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Each has its own results, and the last trial of each is marked as such."""
    built = artifact(tmp_path)
    async with seated() as (agent, device, _):
        ends: list[str] = []

        def answer(_: int, asked: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
            ends.extend([asked.candidate_id] if asked.ends_batch else [])
            return good(asked)

        agent.answer = answer
        found = await side_by_side(TrialLine(device), built, ["abc", "de", "f"])

    assert [list(results) for results in found] == [list("abc"), list("de"), ["f"]]
    assert (agent.measured, ends) == (list("abcdef"), list("cef"))


async def test_only_the_first_trial_without_a_result_is_to_blame(tmp_path: Path) -> None:
    """A batch sent behind the failed one is measured when the device returns."""
    built = artifact(tmp_path)
    async with seated() as (agent, device, _):

        def answer(count: int, asked: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
            if count == 2:
                raise DeviceUnreachable("gone")
            return good(asked)

        agent.answer = answer
        found = await side_by_side(TrialLine(device), built, ["ab", "cd"])

    assert found == [{"a": None, "b": ErrorKind.DEVICE_FAULTED}, {"c": None, "d": None}]
    assert agent.measured == list("abcd")


async def test_an_abandoned_batch_does_not_block_others(tmp_path: Path) -> None:
    """An abandoned batch's trials leave the line, and the stream begins anew."""
    built = artifact(tmp_path)
    async with seated() as (_, device, _):
        line = TrialLine(device)
        async with aclosing(line.measure([built], batch(built, "abc"))) as given_up:
            first = await anext(given_up)
            other = asyncio.create_task(errors_of(line, built, "de"))
        async with asyncio.timeout(60):
            found = await other

    assert first.candidate_id == "a"
    assert found == {"d": None, "e": None}


async def test_a_device_that_never_answers_fails_all_batches(tmp_path: Path) -> None:
    """Each learns why, and the line can be used again."""
    built = artifact(tmp_path)
    async with seated() as (agent, device, _):
        line = TrialLine(device)
        agent.refuses_open = [DeviceUnreachable("away")] * 4
        errors = await asyncio.gather(*(errors_of(line, built, names) for names in ("ab", "c")), return_exceptions=True)
        found = await side_by_side(line, built, ["d"])

    assert [type(error) for error in errors] == [DeviceUnreachable] * 2
    assert found == [{"d": None}]


class Halting(OddAgent):
    """Delays the answer to the first trial until a test allows it."""

    def __init__(self, *, ends_sessions: bool) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self._ends_sessions = ends_sessions

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        async for request in requests:
            self.measured.append(request.candidate_id)
            await self.goes_on.wait()
            yield measurement_pb2.MeasureResponse(measurement=good(request))

    async def close_session(self, request: Any, context: Any) -> session_service_pb2.CloseSessionResponse:
        if not self._ends_sessions:
            raise DeviceUnreachable("gone")
        return await super().close_session(request, context)


@pytest.mark.parametrize("ends_sessions", [True, False])
async def test_trials_of_a_lease_ended_elsewhere_move_to_the_next_lease(tmp_path: Path, ends_sessions: bool) -> None:
    """If, for example, a check releases a lost device, no trial is blamed, whether the agent knows of the end or
    not.
    """
    built, agent = artifact(tmp_path), Halting(ends_sessions=ends_sessions)
    async with seated(agent=agent) as (_, device, _):
        measuring = asyncio.create_task(side_by_side(TrialLine(device), built, ["ab", "c"]))
        await eventually(lambda: agent.measured)
        await device.give_back()
        agent.goes_on.set()
        found = await measuring

    assert found == [{"a": None, "b": None}, {"c": None}]
