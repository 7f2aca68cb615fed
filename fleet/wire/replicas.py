"""Calls to the trackers of a fleet about which of them grants."""

from __future__ import annotations

import grpc
import grpc.aio

from fleet.errors import FleetError, TrackerUnavailable
from fleet.identity.credentials import Proof
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import replica_service_stub

_ANSWER_SEC = 2.0
_PROMOTION_SEC = 60.0


async def ask_tracker(address: str, proof: Proof, term_proof: bytes = b"") -> pb.GetTrackerResponse:
    """Return the part of a tracker in its fleet, and tell it the caller's term.

    Raises:
        TrackerUnavailable: it does not answer.
        FleetError: it refuses, or is of an older release.
    """
    async with make_channel(address, proof) as channel:
        request = pb.GetTrackerRequest(proof=term_proof)
        try:
            return await replica_service_stub(channel).get_tracker(request, timeout=_ANSWER_SEC)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TrackerUnavailable(f"the tracker at {address} is silent") from error
            raise from_rpc_error(error, TrackerUnavailable) from error


async def grants(address: str, proof: Proof) -> bool:
    """Tell whether a tracker answers and grants. Those of older releases always grant."""
    try:
        return not (await ask_tracker(address, proof)).is_standby
    except TrackerUnavailable:
        return False
    except FleetError:
        return True


async def promote(address: str, proof: Proof) -> int:
    """Have a standby take over; return its term.

    Raises:
        TrackerUnavailable: it does not answer.
        FleetError: it grants already, or lacks a whole snapshot.
    """
    async with make_channel(address, proof) as channel:
        try:
            call = replica_service_stub(channel).promote(pb.PromoteRequest(), timeout=_PROMOTION_SEC)
            return (await call).term
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, TrackerUnavailable) from error
