"""Measures many trials through one stream: they are sent ahead of their results, so the link's latency is paid once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import TypeAlias

import grpc.aio

from fleet.domain.measuring import Measurement, Trial
from fleet.errors import DeviceUnreachable
from fleet.v1 import measurement_pb2
from fleet.wire.chunks import cut
from fleet.wire.measurements import measurement_from_proto, trial_to_proto
from fleet.wire.options import MAX_REQUEST_BYTES
from fleet.wire.rpc import read_next

_AHEAD = 256
"""Most trials sent but not answered: enough for any link, and an endless source cannot flood the agent."""

_Call: TypeAlias = "grpc.aio.StreamStreamCall[measurement_pb2.MeasureRequest, measurement_pb2.MeasureResponse]"


class MeasureStream:
    """Sends trials through one Measure call and returns their results."""

    def __init__(
        self,
        call: _Call,
        trials: Iterable[Trial] | AsyncIterable[Trial],
        takes_chunks: Callable[[], Awaitable[bool]],
    ) -> None:
        """Send nothing yet.

        Args:
            takes_chunks: returns whether the agent accepts requests in chunks. Called only for large requests.
        """
        self._call = call
        self._takes_chunks = takes_chunks
        self._trials = trials
        self._slots = asyncio.Semaphore(_AHEAD)
        self._sent_count = 0
        self._source_error: Exception | None = None
        self._feeder: asyncio.Task[None] | None = None

    async def results(self) -> AsyncGenerator[Measurement, None]:
        """Yield one result per trial. Errors from the source of trials are raised here."""
        self._feeder = asyncio.create_task(self._feed(), name="fleet measure feeder")
        received_count = 0
        try:
            while (response := await read_next(self._call)) is not None:
                received_count += 1
                self._slots.release()
                yield measurement_from_proto(response.measurement)
        except asyncio.CancelledError:
            if self._source_error is not None:
                raise self._source_error from None
            raise
        if received_count < self._sent_count:
            raise DeviceUnreachable(
                f"the agent ended the stream after {received_count} of {self._sent_count} results; try again"
            )

    async def close(self) -> None:
        """Stop sending trials."""
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.gather(self._feeder, return_exceptions=True)

    async def _feed(self) -> None:
        try:
            if isinstance(self._trials, AsyncIterable):
                async for trial in self._trials:
                    await self._send(trial)
            else:
                for trial in self._trials:
                    await self._send(trial)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader gets the error too, and reports it
        except Exception as error:  # noqa: BLE001 - the source is the caller's code, so the caller gets its error
            self._source_error = error
            self._call.cancel()

    async def _send(self, trial: Trial) -> None:
        await self._slots.acquire()
        request = trial_to_proto(trial)
        if request.ByteSize() > MAX_REQUEST_BYTES and await self._takes_chunks():
            for chunk in cut([request.SerializeToString()], _chunk):
                await self._call.write(chunk)
        else:
            await self._call.write(request)
        self._sent_count += 1


def _chunk(size_bytes: int, chunk: bytes) -> measurement_pb2.MeasureRequest:
    return measurement_pb2.MeasureRequest(size_bytes=size_bytes, piece=chunk)
