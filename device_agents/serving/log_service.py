"""Logs of leases for their holders and admins: implements fleet.v1.LeaseLogService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from device_agents.serving.lease_logs import LeaseLogs
from device_agents.serving.revoked_callers import RevokedCallers
from fleet.base.text import sanitize
from fleet.errors import NotFound
from fleet.identity.policy import check_owner
from fleet.v1 import lease_log_service_pb2 as pb
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.stream_limits import StreamLimits

_MOST_READERS, _MOST_OF_ONE = 32, 8
_LOOK_SEC = 0.2
_MOST_NAME_CHARS = 100


class LeaseLogService:
    """Serves logs."""

    def __init__(self, logs: LeaseLogs, revoked: RevokedCallers) -> None:
        self._logs = logs
        self._revoked = revoked
        self._readers = StreamLimits(_MOST_READERS, most_of_one=_MOST_OF_ONE, what="read logs here")

    async def watch_lease_log(
        self, request: pb.WatchLeaseLogRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchLeaseLogResponse]:
        caller, name = caller_of(context), request.lease_name
        await self._revoked.refuse(caller)
        owner = self._logs.owner(name)
        if owner is None:
            raise NotFound(f"no output of {sanitize(name, _MOST_NAME_CHARS)} is kept by this agent")
        check_owner("LeaseLogService.WatchLeaseLog", caller, owner.holder_key_id, what=f"the output of {name}")
        with self._readers.taken(caller.key_id):
            yield pb.WatchLeaseLogResponse()
            position = 0
            while True:
                is_live = self._logs.is_live(
                    name
                )  # before the last look, so that nothing written until the end is missed
                for chunk in self._logs.chunks(name, position):
                    position += len(chunk)
                    yield pb.WatchLeaseLogResponse(content=chunk)
                if not (request.follow and is_live):
                    return
                await asyncio.sleep(_LOOK_SEC)
