"""Calls to the trackers of a fleet about which of them grants."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping

import grpc
import grpc.aio

from fleet.domain.terms import claimed_term
from fleet.errors import FleetError, TrackerUnavailable
from fleet.identity.credentials import Proof
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire.rpc import Channel, from_rpc_error, make_channel
from fleet.wire.stubs import replica_service_stub

_ANSWER_SEC = 2.0
_PROMOTION_SEC = 60.0
_REST_SEC = 0.5
_PROBE_SEC = 0.5
_NO_TERM = -1


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


async def granting_terms(trackers: Mapping[str, Proof]) -> dict[str, int]:
    """Return the terms of the trackers that grant, by address. Once one has answered, the others have half a second."""
    asked = {address: asyncio.create_task(_granting_term(address, proof)) for address, proof in trackers.items()}
    try:
        await asyncio.wait(asked.values(), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(asked.values(), timeout=_REST_SEC)
        return {address: task.result() for address, task in asked.items() if task.done() and task.result() != _NO_TERM}
    finally:
        for task in asked.values():
            task.cancel()
        await asyncio.gather(*asked.values(), return_exceptions=True)


async def _granting_term(address: str, proof: Proof) -> int:
    try:
        answer = await ask_tracker(address, proof)
    except TrackerUnavailable:
        return _NO_TERM
    except FleetError:  # one of an older release always grants
        return 0
    return _NO_TERM if answer.is_standby else claimed_term(answer.proof)


async def find_successor(trackers: Mapping[str, Proof], term: int) -> str:
    """Wait until one of these trackers grants with a larger term than the silent one's; return its address.

    Args:
        trackers: credentials by address of the fleet's other trackers. Without any, the wait has no end.
    """
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(make_channel(*other)) for other in trackers.items()]
        while True:
            for address, found in zip(trackers, await asyncio.gather(*map(_term_after, channels)), strict=True):
                if found > term:
                    return address
            await asyncio.sleep(_PROBE_SEC * random.uniform(0.5, 1.5))  # thousands of clients doubt at once


async def _term_after(channel: Channel) -> int:
    """Return the term of a tracker, and tell it that the other one is silent."""
    request = pb.GetTrackerRequest(is_other_silent=True)
    try:
        answer = await replica_service_stub(channel).get_tracker(request, timeout=_ANSWER_SEC)
    except grpc.aio.AioRpcError:
        return _NO_TERM
    return _NO_TERM if answer.is_standby else claimed_term(answer.proof)


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
