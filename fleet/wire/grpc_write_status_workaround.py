"""Works around a gRPC bug that replaces a server's error with INTERNAL (https://github.com/grpc/grpc/issues/36066).

If a server ends a call while this side writes to it, the write fails. grpc.aio then sets the call's status to "Internal
error from Core", even if the server's own status has arrived. Half of the calls that a server refuses at once end like
that (seen with 1.85).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_INNER = "_cython_call"


class _ServerStatus:
    """Proxy for the compiled part of a call that keeps the server's status."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, _: str) -> None:
        """Do nothing: grpc.aio next waits for the status, and the server's arrives after each failed write."""


def keep_server_status(make_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a multicallable with a stream of requests, so that its calls end with the server's status."""

    @functools.wraps(make_call, updated=())
    def make_keeping(*args: Any, **options: Any) -> Any:
        call = make_call(*args, **options)
        if hasattr(call, _INNER):  # a later version may lack it
            setattr(call, _INNER, _ServerStatus(getattr(call, _INNER)))
        return call

    return make_keeping
