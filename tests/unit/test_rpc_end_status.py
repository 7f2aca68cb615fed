"""The end of a call is recovered after gRPC reported a failed write first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from fleet.errors import CacheFull, TrackerUnavailable
from fleet.wire.rpc import ERROR_KEY, from_rpc_error
from fleet.wire.rpc_end_status import Ending

WRITE_FAILED = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata())


class Call:
    """A call after a failed write; the server's own status is not read yet."""

    def __init__(self) -> None:
        self._error = WRITE_FAILED

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def hear(self) -> None:
        """Read the server's status."""
        trailers = grpc.aio.Metadata((ERROR_KEY, CacheFull.__name__))
        self._error = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), trailers, "no room")

    async def code(self) -> grpc.StatusCode:
        return self._error.code()

    async def details(self) -> str | None:
        return self._error.details()

    async def trailing_metadata(self) -> Any:
        return self._error.trailing_metadata()


@pytest.mark.slow
async def test_a_server_status_is_read_after_a_stall() -> None:
    """The server's status lies in the socket, and reading it takes some turns of the event loop."""
    call, loop = Call(), asyncio.get_running_loop()
    ending = Ending(cast("grpc.aio.Call", call))

    def stand_still() -> None:
        time.sleep(1.1)
        loop.call_later(0.05, call.hear)

    loop.call_soon(stand_still)
    await ending.settle()

    assert isinstance(from_rpc_error(ending.error(WRITE_FAILED), TrackerUnavailable), CacheFull)
