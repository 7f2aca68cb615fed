"""Reads the output of a lease's workers from the agent that keeps it.

The tracker knows the device of a live lease only. After the lease's end all agents are asked, a few at a time.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import TypeAlias

import grpc
import grpc.aio

from fleet.base.text import printable, sanitize
from fleet.client.reach import AgentWay
from fleet.domain.devices import DeviceState, DeviceStatus
from fleet.domain.snapshot import Snapshot
from fleet.errors import DeviceUnreachable, LimitReached, NotAllowed, NotFound, TrackerUnavailable
from fleet.identity.credentials import Proof
from fleet.v1 import lease_log_service_pb2 as pb
from fleet.wire.rpc import from_rpc_error, read_next
from fleet.wire.stubs import lease_log_service_stub

_AT_ONCE = 16
_ANSWER_SEC = 10.0
_MOST_NAMED = 5

_Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.WatchLeaseLogRequest, pb.WatchLeaseLogResponse]"


async def read_log(snapshot: Snapshot, lease_name: str, proof: Proof, *, follow: bool) -> AsyncGenerator[str, None]:
    """Yield the output, without control characters.

    Raises:
        NotFound: no agent keeps output of this lease.
        NotAllowed: the lease is another's.
        DeviceUnreachable: the agent went away.
    """
    request = pb.WatchLeaseLogRequest(lease_name=lease_name, follow=follow)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    async with AsyncExitStack() as stack:
        call = await _find(stack, _agents(snapshot, lease_name), request, proof)
        try:
            while (response := await read_next(call)) is not None:
                if text := printable(decoder.decode(response.content)):
                    yield text
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, DeviceUnreachable) from error


def _agents(snapshot: Snapshot, lease_name: str) -> list[DeviceStatus]:
    """Return one device of each agent that may have the log."""
    holding = {lease.device_name for lease in snapshot.leases if lease.name == lease_name}
    online = [device for device in snapshot.devices if device.state is not DeviceState.OFFLINE and device.address]
    known = [device for device in online if device.name in holding] or online
    return list({(device.address, device.agent_key_id): device for device in known}.values())


async def _find(
    stack: AsyncExitStack, agents: Sequence[DeviceStatus], request: pb.WatchLeaseLogRequest, proof: Proof
) -> _Call:
    """Return an open call to the agent that keeps the log."""
    silent: list[str] = []
    for start in range(0, len(agents), _AT_ONCE):
        group = agents[start : start + _AT_ONCE]
        found = await asyncio.gather(*(_open(stack, agent, request, proof, silent) for agent in group))
        for call in found:
            if call is not None:
                return call
    raise NotFound(_absence(sanitize(request.lease_name), silent))


async def _open(
    stack: AsyncExitStack,
    agent: DeviceStatus,
    request: pb.WatchLeaseLogRequest,
    proof: Proof,
    silent: list[str],
) -> _Call | None:
    """Call an agent. Return None if it has no such log, or does not answer; then it is added to `silent`."""
    way = AgentWay(agent, proof)
    stack.push_async_callback(way.close)
    call = lease_log_service_stub(await way.channel()).watch_lease_log(request)
    stack.callback(call.cancel)
    try:
        async with asyncio.timeout(_ANSWER_SEC):
            await read_next(call)  # empty: there is a log
    except grpc.aio.AioRpcError as error:
        failure = from_rpc_error(error, DeviceUnreachable)
        if isinstance(failure, NotAllowed | LimitReached | TrackerUnavailable):
            raise failure from error
        if not isinstance(failure, NotFound):
            silent.append(agent.address)
        return None
    except TimeoutError:
        silent.append(agent.address)
        return None
    return call


def _absence(lease_name: str, silent: Sequence[str]) -> str:
    reasons = "its workers wrote nothing, it ended more than seven days ago, or its agent is away"
    asked = f"; no answer from {', '.join(map(sanitize, silent[:_MOST_NAMED]))}" if silent else ""
    more = f" and {len(silent) - _MOST_NAMED} others" if len(silent) > _MOST_NAMED else ""
    return f"no agent keeps output of {lease_name}: {reasons}{asked}{more}"
