"""Serves the shared cost model to clients that cannot reach the library: an optimizer forwards the snapshots that
it reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fleet.base.network import address_of
from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.errors import InvalidRequest
from fleet.identity.credentials import Credentials
from fleet.library import Memory
from fleet.optimizer.trainer import follow
from fleet.v1 import cost_model_service_pb2
from fleet.wire import rpc
from fleet.wire.model_snapshots import model_snapshot_to_proto, serve_cost_model
from fleet.wire.peers import Guard, caller_of, server_security
from fleet.wire.stream_limits import StreamLimits

logger = logging.getLogger(__name__)

_STOP_GRACE_SEC = 0.5
_MOST_READERS, _MOST_OF_ONE = 256, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAddress:
    """Address of the snapshots' server."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""


class CostModelServicer:
    """fleet.v1.CostModelService."""

    def __init__(self, *, most_readers: int = _MOST_READERS, most_of_one: int = _MOST_OF_ONE) -> None:
        self._newest: ModelSnapshot | None = None
        self._changed = asyncio.Event()
        self._readers = StreamLimits(most_readers, most_of_one=most_of_one, what="read snapshots here")

    def publish(self, snapshot: ModelSnapshot) -> None:
        """Send a snapshot to all readers."""
        self._newest = snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def watch_snapshots(
        self, request: cost_model_service_pb2.WatchSnapshotsRequest, context: rpc.CallContext
    ) -> AsyncIterator[cost_model_service_pb2.WatchSnapshotsResponse]:
        if request.feature_version != FEATURE_VERSION:
            raise InvalidRequest(
                f"the snapshots here are for features {FEATURE_VERSION!r}, not {request.feature_version[:40]!r}; "
                "use the same version of tvm-fleet on both sides"
            )
        with self._readers.taken(caller_of(context).key_id):
            known = request.known_digest
            while True:
                changed = self._changed
                if self._newest is not None and self._newest.digest != known:
                    known = self._newest.digest
                    yield cost_model_service_pb2.WatchSnapshotsResponse(snapshot=model_snapshot_to_proto(self._newest))
                await changed.wait()


@asynccontextmanager
async def serving_snapshots(
    memory: Memory, where: ServingAddress, credentials: Callable[[], Credentials], guard: Guard
) -> AsyncIterator[str]:
    """Serve a library's snapshots to users of a fleet while the block runs; yield "host:port".

    Args:
        credentials: returns those of this account in that fleet.
        guard: authenticates its members.

    Raises:
        ConfigError: the port is in use.
    """
    servicer, server = CostModelServicer(), rpc.make_server(rpc.MAX_REQUEST_BYTES)
    serve_cost_model(server, servicer, guard)
    port = rpc.bind(server, where.host, where.port, server_security(credentials), what="the optimizer")
    watching = guard.connections.watch(port)
    await server.start()
    following = asyncio.create_task(follow(memory, servicer.publish), name="follow snapshots for others")
    address = address_of(where.host, port)
    logger.info("snapshots served", extra={"address": address})
    try:
        yield address
    finally:
        for task in (following, watching):
            task.cancel()
        await asyncio.wait([following, watching])
        await server.stop(_STOP_GRACE_SEC)
