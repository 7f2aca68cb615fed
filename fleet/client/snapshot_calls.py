"""Snapshots of the shared cost model from an optimizer, for clients that cannot reach its library.

async with aclosing(watch_snapshots("optimizer:9390", FEATURE_VERSION)) as snapshots:
    async for snapshot in snapshots:
        ...
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

import grpc.aio

from fleet.base.network import host_and_port
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.errors import InvalidRequest, NotJoined, OptimizerUnavailable
from fleet.identity.credentials import MEMBER_NAME, Proof
from fleet.identity.store import CredentialStore
from fleet.v1 import cost_model_service_pb2
from fleet.wire.model_snapshots import model_snapshot_from_proto
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import cost_model_service_stub, snapshot_service_stub

logger = logging.getLogger(__name__)

_PAUSE_SEC = 1.0
"""Pause before an unreachable optimizer is tried again."""

_DIAL_SEC = 10.0


async def watch_snapshots(
    address: str, feature_version: str, *, pause_sec: float = _PAUSE_SEC
) -> AsyncGenerator[ModelSnapshot, None]:
    """Yield the snapshot in use, and each later one; while the optimizer is unreachable, wait for it.

    Args:
        address: "host:port" of an optimizer.
        feature_version: of the features that will be asked about.

    Raises:
        InvalidRequest: the optimizer has snapshots of other features only.
        FleetError: it serves none.
    """
    known, is_away = "", False
    while not await _answers(address):
        if not is_away:
            logger.warning("no snapshots at the moment", extra={"address": address, "error": "nobody answers"})
        is_away = True
        await asyncio.sleep(pause_sec)
    channel = make_channel(address, await _proof_for(address), MEMBER_NAME)
    try:
        stub, former = cost_model_service_stub(channel), snapshot_service_stub(channel)
        while True:
            request = cost_model_service_pb2.WatchSnapshotsRequest(feature_version=feature_version, known_digest=known)
            call = stub.watch_snapshots(request)
            try:
                async for response in call:
                    is_away = False
                    found = _accepted(response, address)
                    if found is not None:
                        known = found.digest
                        yield found
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED and stub is not former:
                    stub = former  # an optimizer of an older release
                    continue
                problem = from_rpc_error(error, OptimizerUnavailable)
                if not problem.is_retryable and error.code() is not grpc.StatusCode.CANCELLED:
                    raise problem from error
                if not is_away:
                    logger.warning("no snapshots at the moment", extra={"address": address, "error": str(problem)})
                is_away = True
            finally:
                call.cancel()
            await asyncio.sleep(pause_sec)
    finally:
        await channel.close()


async def _answers(address: str) -> bool:
    """Tell whether anything listens there. Uses no thread: many waiting jobs would exhaust them."""
    with contextlib.suppress(OSError, UnicodeError):  # also TimeoutError; invalid names
        async with asyncio.timeout(_DIAL_SEC):
            _, writer = await asyncio.open_connection(*host_and_port(address))
        writer.close()
        return True
    return False


async def _proof_for(address: str) -> Proof:
    """Return this account's credentials for the fleet that an optimizer belongs to.

    Raises:
        NotJoined: there are none.
    """
    from fleet.wire.joining import find_member_proof  # takes 20 ms to import

    proof = await find_member_proof(address, CredentialStore())
    if proof is None:
        raise NotJoined(
            f"nothing at {address} shows a fleet that this account has joined; is that the --port of a "
            "fleet optimizer serve? fleet login joins its fleet"
        )
    return proof


def _accepted(response: cost_model_service_pb2.WatchSnapshotsResponse, address: str) -> ModelSnapshot | None:
    try:
        return model_snapshot_from_proto(response.snapshot)
    except InvalidRequest as error:
        logger.warning("snapshot refused", extra={"address": address, "error": str(error)})
        return None
