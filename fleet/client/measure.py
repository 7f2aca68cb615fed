"""Many candidates through one stream: requests go ahead while results come back, so a link's delay is paid once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

import grpc.aio

from fleet.errors import DeviceUnreachable
from fleet.rpc import EOF
from fleet.v1 import measurement_pb2

_AHEAD = 256
"""Requests sent and not answered: enough for any link, bounded so that an endless source does not fill the agent."""


class Pipeline:
    """Feeds requests into one Measure stream and hands out its results."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Any],
        requests: Iterable[measurement_pb2.MeasureRequest] | AsyncIterable[measurement_pb2.MeasureRequest],
    ) -> None:
        self._call = call
        self._requests = requests
        self._slots = asyncio.Semaphore(_AHEAD)
        self._sent_count = 0
        self._source_error: Exception | None = None
        self._feeder: asyncio.Task[None] | None = None

    async def results(self) -> AsyncGenerator[measurement_pb2.Measurement, None]:
        """Yield one result per request. What the source of requests raises is raised here."""
        self._feeder = asyncio.create_task(self._feed(), name="fleet measure feeder")
        received_count = 0
        try:
            response: Any
            while (response := await self._call.read()) is not EOF:
                received_count += 1
                self._slots.release()
                yield response.measurement
        except asyncio.CancelledError:
            if self._source_error is not None:
                raise self._source_error from None
            raise
        if received_count < self._sent_count:
            raise DeviceUnreachable(
                f"the agent ended the stream after {received_count} of {self._sent_count} results; try again"
            )

    async def close(self) -> None:
        """Stop feeding."""
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.gather(self._feeder, return_exceptions=True)

    async def _feed(self) -> None:
        try:
            if isinstance(self._requests, AsyncIterable):
                async for request in self._requests:
                    await self._send(request)
            else:
                for request in self._requests:
                    await self._send(request)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader hears of it too, and says why
        except Exception as error:  # noqa: BLE001 - the source is the caller's code: handed over to the caller
            self._source_error = error
            self._call.cancel()

    async def _send(self, request: measurement_pb2.MeasureRequest) -> None:
        await self._slots.acquire()
        await self._call.write(request)
        self._sent_count += 1
