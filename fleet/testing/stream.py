"""The stream of a fake client or agent to the tracker."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self

import grpc.aio

from fleet.errors import FleetError, TrackerUnavailable
from fleet.testing.waiting import eventually
from fleet.wire import rpc


class TrackerStream(ABC):
    """A stream to the tracker as a context manager: `async with`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Why the stream ended, once it has."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; return when the tracker has answered.

        Raises:
            FleetError: the tracker refused; the class is the one that it raised.
        """
        self._task = asyncio.create_task(self._run(), name="tracker stream")
        await eventually(lambda: self._is_open or self.error)
        if self.error:
            await self.close()
            raise self.error

    async def close(self) -> None:
        """Disconnect abruptly, as a dying process does."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> None:
        try:
            await self._exchange()
            self.error = ConnectionError("the tracker ended the stream")
        except grpc.aio.AioRpcError as error:
            self.error = rpc.from_rpc_error(error, TrackerUnavailable)
        except FleetError as error:
            self.error = error

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """True once the tracker has answered."""

    @abstractmethod
    async def _exchange(self) -> None:
        """Send and record messages until the tracker ends the stream."""
