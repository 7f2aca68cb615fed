"""Receives the requests of a Measure stream, and joins requests that arrive in chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from device_agents.serving.intake import Intake
from device_agents.workers.contents import TRIAL_CONTENT, without_contents
from fleet.errors import FleetError, InvalidRequest
from fleet.v1.measurement_pb2 import MeasureRequest
from fleet.wire.chunks import Joining

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and its time of arrival."""

    request: MeasureRequest
    arrived_sec: float
    """Arrival by the monotonic clock [s]; the waiting time starts here."""

    size_bytes: int
    content: bytearray | None = None
    """Serialised request if it arrived in chunks, else None. `request` then lacks the contents of its arrays."""


class Arrivals:
    """Requests of one stream. A request in chunks holds its session's `carrying` lock until it is finished."""

    def __init__(self, requests: AsyncIterator[MeasureRequest], intake: Intake) -> None:
        self._requests = requests
        self._intake = intake
        self._is_carrying = False

    async def each(self) -> AsyncIterator[Arrival]:
        """Yield the requests in order of arrival.

        Raises:
            FleetError: a message is not a valid request.
        """
        try:
            async for request in self._requests:
                if request.size_bytes:
                    yield await self._joined(request)
                else:
                    yield Arrival(request=request, arrived_sec=time.monotonic(), size_bytes=request.ByteSize())
        except FleetError:
            raise
        except Exception:  # outermost loop: serve the requests that arrived before the stream broke
            logger.exception("request stream broke")

    def finish(self, arrival: Arrival) -> None:
        """Allow the session's next large request."""
        if arrival.content is not None:
            self.close()

    def close(self) -> None:
        """Release the session's `carrying` lock if held. Idempotent."""
        if self._is_carrying:
            self._is_carrying = False
            self._intake.carrying.release()

    async def _joined(self, first: MeasureRequest) -> Arrival:
        await self._intake.carrying.acquire()
        self._is_carrying = True
        joining = Joining(first, self._intake.most_bytes)
        while not joining.is_whole:
            try:
                joining.take(await anext(self._requests))
            except StopAsyncIteration:
                raise InvalidRequest("a request in chunks ended before its last chunk") from None
        try:
            request = MeasureRequest.FromString(without_contents(joining.content, TRIAL_CONTENT))
        except DecodeError as error:
            raise InvalidRequest(f"a request that cannot be read: {error}") from None
        return Arrival(
            request=request,
            arrived_sec=time.monotonic(),
            size_bytes=len(joining.content),
            content=joining.content,
        )
