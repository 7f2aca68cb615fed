"""Works around a gRPC bug by which a peer can end a server with a malformed method name.

Since 1.84 grpc.aio reads the name of each call's method as UTF-8 in the loop that takes calls: one with other bytes
ended that loop, and the server closed its port for good (seen with 1.84 and 1.85, in `_server_main_loop`). A call to a
method that was registered beforehand is taken by that method's name, as it stands here. So ours are registered, and all
other calls are taken under one name of ours, whatever theirs is: they end with UNIMPLEMENTED.

Before, each call's name was read in a task of its own, and cost nobody else anything (seen with ten versions from 1.60
to 1.83): there, a server is as grpc.aio makes them. Of a version to come that is neither, the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined] # it is compiled

_NOWHERE, _OTHERS = "nowhere", "Others"
_PATH = f"/{_NOWHERE}/{_OTHERS}".encode()
_HAS_HOOK = hasattr(cygrpc.AioServer, "_make_request_call_future")
_FIRST_WITH_HOOK = (1, 84)

logger = logging.getLogger(__name__)


class _SturdyServer(cygrpc.AioServer):  # type: ignore[misc] # gRPC's inner class has no types
    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is None:
            return asyncio.get_running_loop().create_future()  # never done: those calls are handled below
        future: asyncio.Future[Any] = super()._make_request_call_future(None if method == _PATH else method)
        return future


def make_server(options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
    """Return a server with these options, to which services are added by `add_methods`."""
    if not _HAS_HOOK:
        if needs_hook(grpc.__version__):
            logger.warning(
                "this version of grpcio is not known: peers may be able to end its servers",
                extra={"version": grpc.__version__},
            )
        return grpc.aio.server(options=options)
    usual, cygrpc.AioServer = cygrpc.AioServer, _SturdyServer
    try:
        server = grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = usual
    _register(server, _NOWHERE, {_OTHERS: grpc.stream_unary_rpc_method_handler(_refuse)})
    return server


def needs_hook(version: str) -> bool:
    """Tell whether a method's name can end a server of this version of grpcio without the workaround."""
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) >= _FIRST_WITH_HOOK


def add_methods(server: grpc.aio.Server, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
    """Add the methods of a service to a server made by `make_server`, or to any other."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
    if isinstance(getattr(server, "_server", None), _SturdyServer):
        _register(server, service, handlers)


def _register(server: Any, service: str, handlers: Mapping[str, object]) -> None:
    server.add_registered_method_handlers(service, dict(handlers))


async def _refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method here")
