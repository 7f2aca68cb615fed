"""A data path that breaks, lies and hangs, behind a real tracker, and a device kept across its failures."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import LeaseClass, make_terms
from fleet.domain.measuring import Measurement, Trial
from fleet.testing import SimulatedAgent, serve_tracker
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.service.client_fakes import SmallAgent, serving

Answer = Callable[[int, measurement_pb2.MeasureRequest], measurement_pb2.Measurement]


class OddAgent(SmallAgent):
    """A small data path that counts its calls; a test sets its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = 0
        self.measured: list[str] = []
        self.calls = 0
        self.refuses_open: list[Exception] = []
        self.answer: Answer | None = None
        self.last_word: Exception | None = None
        self.refuses_calls: list[Any] = []
        self.before_call: Callable[[], Awaitable[object]] | None = None
        self.refuses_measure: list[Exception] = []

    async def open_session(self, request: Any, context: Any) -> session_service_pb2.OpenSessionResponse:
        self.opens += 1
        if self.refuses_open:
            raise self.refuses_open.pop(0)
        return await super().open_session(request, context)

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        if self.refuses_measure:
            raise self.refuses_measure.pop(0)
        async for request in requests:
            self.measured.append(request.candidate_id)
            answer = self.answer or (lambda _, asked: good(asked))
            yield measurement_pb2.MeasureResponse(measurement=answer(len(self.measured), request))
        if self.last_word is not None:
            raise self.last_word

    async def call(self, request: Any, context: Any) -> session_service_pb2.CallResponse:
        self.calls += 1
        if self.before_call is not None:
            await self.before_call()
        if self.refuses_calls:
            refusal = self.refuses_calls.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return session_service_pb2.CallResponse(error=refusal, error_message="no")
        return await super().call(request, context)


def good(request: measurement_pb2.MeasureRequest, *run_secs: float) -> measurement_pb2.Measurement:
    return measurement_pb2.Measurement(candidate_id=request.candidate_id, run_secs=run_secs or [1e-6])


def bad(request: measurement_pb2.MeasureRequest, error: Any) -> measurement_pb2.Measurement:
    return measurement_pb2.Measurement(candidate_id=request.candidate_id, error=error)


@contextlib.asynccontextmanager
async def seated(
    address: str = "",
    agent: OddAgent | None = None,
    *,
    pauses_sec: Sequence[float] = (0.0, 0.01, 0.01),
    lease_class: LeaseClass = LeaseClass.NORMAL,
) -> AsyncGenerator[tuple[OddAgent, SteadyDevice, list[str]], None]:
    """Serve a tracker with one odd device, found at `address` if given, and acquire the device."""
    agent, notices = agent or OddAgent(), list[str]()
    async with (
        serving(session=agent) as agent.address,
        serve_tracker() as tracker,
        SimulatedAgent(tracker.address, ["devices/odd"], address=address or agent.address),
        fleet.aio.connect(tracker.address) as client,
        SteadyDevice(
            client,
            make_terms("simulated", lease_class=lease_class, purpose="test"),
            pauses_sec=pauses_sec,
            notice=notices.append,
        ) as seat,
    ):
        yield agent, seat, notices


def artifact(folder: Path) -> Artifact:
    path = folder / "a.so"
    path.write_bytes(b"content")
    return Artifact(path=path, digest=digest_of(b"content"))


async def measured(seat: SteadyDevice, built: Artifact, count: int = 2) -> list[Measurement]:
    trials = [Trial(candidate_id=str(number), artifact_digest=built.digest) for number in range(count)]
    async with aclosing(seat.measure([built], trials)) as results:
        return [result async for result in results]
