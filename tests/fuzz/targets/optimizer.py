"""An optimizer that serves the shared cost model's snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio

from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.identity.roles import Role
from fleet.optimizer.serving.cost_model_service import CostModelServicer
from fleet.testing.identity import credentials
from fleet.v1 import cost_model_service_pb2
from fleet.wire.model_snapshots import serve_cost_model
from fleet.wire.peers import Guard
from tests.fuzz.calls import BETWEEN, Caller, Server
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target

_WAIT_SEC = 0.02


async def open_optimizer(stack: AsyncExitStack, server: grpc.aio.Server, guard: Guard | None = None) -> None:
    """Have a server answer with a snapshot."""
    servicer = CostModelServicer()
    servicer.publish(_SNAPSHOT)
    serve_cost_model(server, servicer, guard)


class _Optimizer:
    """The service in this process."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None
        self._stack = AsyncExitStack()
        self._server = Server()

    def call(self, content: bytes) -> float:
        if self._loop is None:
            self._loop = ServerLoop()
            self._loop.run(open_optimizer(self._stack, self._server))  # type: ignore[arg-type]
        caller = Caller(proof=credentials(Role.USER))
        rpc = "fleet.v1.CostModelService/WatchSnapshots"
        return self._loop.run(self._ask(self._server.call(rpc, content.split(BETWEEN), caller, most_answers=1)))

    async def _ask(self, call: Coroutine[Any, Any, None]) -> None:
        """Wait a moment for an answer: a caller that has the newest snapshot gets none before there is another."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SEC):
                await call

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None


_SNAPSHOT = ModelSnapshot(
    digest=f"sha256:{hashlib.sha256(b'a').hexdigest()}",
    content=b"a",
    feature_version=FEATURE_VERSION,
    target_kinds=("llvm",),
    record_count=1,
    made_at_sec=1.0,
)


def _calls() -> list[bytes]:
    return [cost_model_service_pb2.WatchSnapshotsRequest(feature_version=FEATURE_VERSION).SerializeToString()]


_called = _Optimizer()
OPTIMIZER = [
    Target(
        name="optimizer_calls",
        run=_called.call,
        close=_called.close,
        seeds=_calls,
        words=(FEATURE_VERSION.encode(), _SNAPSHOT.digest.encode()),
    )
]
