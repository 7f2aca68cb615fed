"""Snapshots of the fleet, including readings and jobs, which are not in the journal.

A snapshot shows one moment and blocks nobody: the encoded part of each device is cached, and after changes encoded
again, a portion at a time. Once few are left, these are encoded at once, and all parts are collected. They are joined
later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice
from typing import TypeAlias

from sortedcontainers import SortedSet

from fleet.base.clock import Clock
from fleet.base.version import package_version
from fleet.domain.waits import Forecast
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import Changes, RequestEntry
from fleet.tracker.job_table import JobTable
from fleet.tracker.messages import (
    PORTION_OF_BOOKINGS,
    bookings_to_proto,
    device_to_proto,
    lease_of,
    request_to_proto,
)
from fleet.tracker.observers import Observer
from fleet.tracker.pace import Pace, portions
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2
from fleet.wire.leases import lease_to_proto
from fleet.wire.times import timestamp

_SHOWN_REQUESTS = 1_000
_SHOWN_OPTIMIZERS = 200
_PORTION = 64
"""Devices or jobs that are encoded at once: 10 us for each, more for a device that says much of itself."""
_PORTION_REQUESTS = 16
"""Waiting requests encoded at once: 50 us for each, with the leases before it."""
_PORTION_KEPT = 2_000
"""Entries put together at once that are encoded already."""
_MOST_PORTIONS = 10
"""Factor on the initial number of stale portions: if remaking that many portions leaves as many stale as before,
the snapshot is made nevertheless.
"""

_ForecastOf: TypeAlias = Callable[[RequestEntry], Forecast | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSnapshot:
    """The fleet at one moment, encoded."""

    version: int
    content: bytes
    """A GetFleetResponse, and a WatchFleetResponse as well: both have the snapshot as their first field.

    It is encoded once for all watchers: that, and a copy for each, took 14 ms of the loop with 10,000 devices.
    """


class FleetView(Observer):
    """Makes snapshots. Each part is cached until its content changes, the snapshot until anything does."""

    def __init__(self, queries: Queries, clock: Clock, pace: Pace, forecast_of: _ForecastOf = lambda _: None) -> None:
        self._forecast_of = forecast_of
        self._queries = queries
        self._clock = clock
        self._pace = pace
        self._started_at_sec = clock.now_sec()
        self._telemetry: dict[str, device_pb2.Telemetry] = {}
        self._names = SortedSet(queries.device_names())
        self._stale: dict[str, None] = dict.fromkeys(queries.device_names())
        """Devices with parts to remake."""
        self._devices: dict[str, bytes] = {}
        """Parts of a snapshot, encoded."""
        self._leases: dict[str, tuple[str, bytes]] = {}
        """By device: name of its lease, and the encoded lease."""
        self._jobs = JobTable()
        self._optimizers: dict[str, job_pb2.Optimizer] = {}
        """By client."""
        self._own_version = 0
        self._shown = EncodedSnapshot(version=-1, content=b"")
        self._making = asyncio.Lock()

    @property
    def version(self) -> int:
        """Grows with every change that a snapshot would show."""
        return self._queries.version + self._own_version

    def on_change(self, changes: Changes) -> None:
        """Mark the parts of changed devices as stale."""
        for name in chain(changes.devices, changes.leases):
            if self._queries.device(name) is not None:
                self._stale[name] = None
                self._names.add(name)
            else:
                self._forget_device(name)

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        """Store these readings for the next snapshot."""
        self._telemetry[device_name] = telemetry
        if self._queries.device(device_name) is not None:
            self._stale[device_name] = None
        self._own_version += 1

    def set_job(self, user: str, client_id: str, job: job_pb2.Job) -> None:
        """Add or replace a job of this user's client."""
        if job.name:
            self._jobs.put(user, client_id, job, self._clock.now_sec())
            self._own_version += 1

    def set_optimizer(self, client_id: str, optimizer: job_pb2.Optimizer) -> None:
        """Show a client as an optimizer, until it disconnects."""
        self._optimizers[client_id] = optimizer
        self._own_version += 1

    def lose_client(self, client_id: str) -> None:
        """Show the running jobs of a disconnected client as interrupted, and no optimizer."""
        optimizer = self._optimizers.pop(client_id, None)
        if self._jobs.lose_client(client_id, self._clock.now_sec()) or optimizer is not None:
            self._own_version += 1

    async def encoded_snapshot(self) -> EncodedSnapshot:
        """Return an encoded snapshot. Yields to the event loop first: sending a large one takes gRPC 3 ms."""
        async with self._making:
            if self._shown.version != self.version:
                await self._catch_up()
                self._shown = await self._make_snapshot()
            shown = self._shown
        await self._pace.turn()
        return shown

    async def _catch_up(self) -> None:
        """Remake parts until few stale ones are left for the moment of the snapshot; more become stale meanwhile."""
        for _ in range(_MOST_PORTIONS * (1 + len(self._stale) // _PORTION)):
            if len(self._stale) <= _PORTION:
                return
            await self._pace.turn()
            self._make_parts(_PORTION)

    def _make_parts(self, most: int) -> None:
        for name in list(islice(self._stale, most)):
            del self._stale[name]
            if (device := self._queries.device(name)) is None:
                continue
            message = device_to_proto(device, self._telemetry.get(name))
            self._devices[name] = _encoded(fleet_service_pb2.Snapshot(devices=[message]))
            if device.lease is None:
                self._leases.pop(name, None)
            else:
                shown = fleet_service_pb2.Snapshot(leases=[lease_to_proto(lease_of(device.lease))])
                self._leases[name] = device.lease.name, _encoded(shown)

    async def _make_snapshot(self) -> EncodedSnapshot:
        """Assemble the current snapshot: protobuf joins the repeated fields of concatenated messages."""
        await self._pace.turn()
        queries = self._queries
        self._make_parts(len(self._stale))
        names, devices, leases = list(self._names), self._devices.copy(), list(self._leases.values())
        requests, jobs = queries.first_requests(_SHOWN_REQUESTS), self._jobs.recent(self._clock.now_sec())
        bookings = queries.bookings()
        optimizers = nsmallest(_SHOWN_OPTIMIZERS, self._optimizers.values(), key=lambda one: one.name)
        version = self.version
        first = fleet_service_pb2.Snapshot(
            version=version,
            taken_at=timestamp(self._clock.now_sec()),
            request_count=queries.request_count,
            tracker_version=package_version(),
            started_at=timestamp(self._started_at_sec),
            grant_count=queries.grant_count,
            optimizers=optimizers,
        )
        parts = [_encoded(first)]
        for kept in portions(names, _PORTION_KEPT):
            await self._pace.turn()
            parts += map(devices.__getitem__, kept)
        parts += [part for _, part in await self._sorted(leases)]
        for waiting in portions(requests, _PORTION_REQUESTS):
            await self._pace.turn()
            found = [request_to_proto(each, queries.standing(each), self._forecast_of(each)) for each in waiting]
            parts.append(_encoded(fleet_service_pb2.Snapshot(requests=found)))
        for shown in portions(jobs, _PORTION):
            await self._pace.turn()
            parts.append(_encoded(fleet_service_pb2.Snapshot(jobs=shown)))
        for booked in portions(bookings, PORTION_OF_BOOKINGS):
            await self._pace.turn()
            parts.append(_encoded(fleet_service_pb2.Snapshot(bookings=bookings_to_proto(booked, queries))))
        return EncodedSnapshot(version=version, content=b"".join(parts))

    async def _sorted(self, leases: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Sort by name, portion by portion first: Python's sort is fast on presorted parts."""
        runs: list[tuple[str, bytes]] = []
        for portion in portions(leases, _PORTION_KEPT):
            await self._pace.turn()
            runs += sorted(portion)
        await self._pace.turn()
        return sorted(runs)

    def _forget_device(self, name: str) -> None:
        self._names.discard(name)
        for kept in (self._stale, self._devices, self._leases, self._telemetry):
            kept.pop(name, None)


def _encoded(part: fleet_service_pb2.Snapshot) -> bytes:
    return fleet_service_pb2.GetFleetResponse(snapshot=part).SerializeToString()
