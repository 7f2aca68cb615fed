"""Recover the server's status after a failed write (grpc#36066)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar, cast

import grpc
import grpc.aio

T = TypeVar("T")

_LOOK_AGAIN_SEC = 0.01
_LOOKS = 100


class Ending:
    """Records the status with which the server ended a call that this side may still write to.

    If a write fails because the server has ended the call, grpc.aio reports INTERNAL instead of the server's own error
    (https://github.com/grpc/grpc/issues/36066). That error arrived earlier and is kept here, or arrives a moment later.
    """

    def __init__(self, call: grpc.aio.Call) -> None:
        """Watch a call from its start."""
        self._call = call
        self._server_error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep)

    async def settle(self) -> None:
        """Wait for the server's own error after a write has failed, but no longer than it may take to arrive."""
        # a number of checks, not a time: this process may stall, and reads pending input afterwards
        for _ in range(_LOOKS):
            if self._server_error is not None and not _is_of_this_side(self._server_error):
                return
            await asyncio.sleep(_LOOK_AGAIN_SEC)
            self._keep(self._call)

    def error(self, raised: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error that the server ended the call with, in place of the one that was raised here."""
        return self._server_error or raised

    def _keep(self, call: grpc.aio.Call) -> None:
        code, details = _at_once(call.code()) or grpc.StatusCode.UNKNOWN, _at_once(call.details()) or ""
        trailers = _at_once(call.trailing_metadata())
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNAVAILABLE, "the server ended the call before it had heard all"
        nothing = grpc.aio.Metadata()
        self._server_error = grpc.aio.AioRpcError(
            code, nothing, trailers or nothing, details=details, debug_error_string=None
        )


def _is_of_this_side(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether grpc.aio generated an error for a failed write: a server's own has trailers."""
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def _at_once(answer: Coroutine[object, None, T]) -> T | None:
    """Return the answer of a completed call without waiting."""
    try:
        answer.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    answer.close()
    return None
