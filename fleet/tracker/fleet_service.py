"""Serves snapshots, the history and the use of the fleet: fleet.v1.FleetService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from fleet.domain.usage import LONGEST_SEC, Usage
from fleet.errors import InvalidRequest, NotFound
from fleet.tracker.engine import Engine
from fleet.tracker.history import History
from fleet.tracker.history_file import read_usage
from fleet.tracker.view import FleetView
from fleet.v1 import fleet_service_pb2
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.rpc import encoded
from fleet.wire.stream_limits import StreamLimits
from fleet.wire.times import duration_sec
from fleet.wire.usage import usage_key_from_proto, usage_to_proto


class FleetServicer:
    """fleet.v1.FleetService."""

    def __init__(self, engine: Engine, view: FleetView, history: History, lease_history: Path) -> None:
        """Args:
        lease_history: file of ended leases.
        """
        self._engine = engine
        self._view = view
        self._history = history
        self._lease_history = lease_history
        limits = engine.queries.limits
        self._watchers = StreamLimits(
            limits.max_watchers, most_of_one=limits.max_watchers_per_user, what="watch the fleet"
        )
        self._is_closed = asyncio.Event()

    async def get_fleet(self, _: fleet_service_pb2.GetFleetRequest, __: object) -> fleet_service_pb2.GetFleetResponse:
        return encoded(fleet_service_pb2.GetFleetResponse, (await self._view.encoded_snapshot()).content)

    async def get_history(
        self, request: fleet_service_pb2.GetHistoryRequest, _: object
    ) -> fleet_service_pb2.GetHistoryResponse:
        name = request.device_name
        if self._engine.queries.device(name) is None:
            raise NotFound(f"there is no device {name[:200]!r}; 'fleet devices' lists those there are")
        samples = self._history.samples(name, self._engine.clock.now_sec())
        return fleet_service_pb2.GetHistoryResponse(samples=samples)

    async def get_usage(
        self, request: fleet_service_pb2.GetUsageRequest, _: object
    ) -> fleet_service_pb2.GetUsageResponse:
        by = usage_key_from_proto(request.by)
        age_sec = duration_sec(request.since) if request.HasField("since") else LONGEST_SEC
        if not 0 < age_sec <= LONGEST_SEC:
            raise InvalidRequest(f"the history has the last {LONGEST_SEC / 86_400:.0f} days; ask for a part of them")
        since_sec = self._engine.clock.now_sec() - age_sec
        rows = await asyncio.to_thread(read_usage, self._lease_history, by, since_sec)
        return usage_to_proto(Usage(since_sec=since_sec, rows=tuple(rows)))

    async def check_selector(
        self, request: fleet_service_pb2.CheckSelectorRequest, _: object
    ) -> fleet_service_pb2.CheckSelectorResponse:
        return fleet_service_pb2.CheckSelectorResponse(device_count=self._engine.queries.match_count(request.selector))

    async def watch_fleet(
        self, request: fleet_service_pb2.WatchFleetRequest, context: CallContext
    ) -> AsyncIterator[fleet_service_pb2.WatchFleetResponse]:
        interval_sec = duration_sec(request.min_interval) if request.HasField("min_interval") else 1.0
        interval_sec = min(max(interval_sec, 0.1), 60.0)
        shown_version = -1
        with self._watchers.taken(caller_of(context).key_id):
            while not self._is_closed.is_set():
                if self._view.version != shown_version:
                    latest = await self._view.encoded_snapshot()
                    shown_version = latest.version
                    yield encoded(fleet_service_pb2.WatchFleetResponse, latest.content)
                try:
                    async with asyncio.timeout(interval_sec):
                        await self._is_closed.wait()
                except TimeoutError:
                    continue

    def close(self) -> None:
        """End all streams."""
        self._is_closed.set()
