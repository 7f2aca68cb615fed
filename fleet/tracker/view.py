"""The fleet as people see it: snapshots, with readings and jobs, which are not worth a journal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleet.base.clock import Clock
from fleet.base.version import package_version
from fleet.errors import NoMatchingDevice, NotFound
from fleet.tracker.core.admission import checked_selector, no_match_message
from fleet.tracker.core.entries import Changes
from fleet.tracker.core.state import TrackerState
from fleet.tracker.history import History
from fleet.tracker.messages import device_to_proto, lease_to_proto, request_to_proto
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2, lease_pb2
from fleet.wire.times import timestamp

_SHOWN_REQUESTS = 1_000
_CHUNK = 250
"""Entries made or encoded between two chances for grants to go out; a snapshot of 10,000 devices takes tens of ms."""
_SHOWN_JOB_SEC = 600.0
_MAX_JOBS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The fleet at one moment."""

    version: int
    content: bytes
    """A GetFleetResponse, and a WatchFleetResponse as well: both have the snapshot as their first field.

    It is encoded once for all who watch: that, and a copy for each, took 14 ms of the loop with 10,000 devices.
    """


class FleetView:
    """Makes snapshots. Entries are cached until their device changes, the snapshot until anything does."""

    def __init__(self, state: TrackerState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._started_at_sec = clock.now_sec()
        self._telemetry: dict[str, device_pb2.Telemetry] = {}
        self._history = History()
        self._devices: dict[str, device_pb2.Device] = {}
        self._leases: dict[str, lease_pb2.Lease | None] = {}
        """By device."""
        self._jobs: dict[str, tuple[str, float, job_pb2.Job]] = {}
        """By name: client_id, when it was reported [s], and the job."""
        self._own_version = 0
        self._shown = Shown(version=-1, content=b"")
        self._making = asyncio.Lock()

    @property
    def version(self) -> int:
        """Grows with every change that a snapshot would show."""
        return self._state.version + self._own_version

    def forget(self, changes: Changes) -> None:
        """Drop the cached entries of changed devices; they are made again when needed."""
        for name in (*changes.devices, *changes.leases):
            self._devices.pop(name, None)
            self._leases.pop(name, None)
        for name, device in changes.devices.items():
            if device is None:
                self._telemetry.pop(name, None)
                self._history.forget(name)

    def set_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry) -> None:
        """Show these readings."""
        self._telemetry[device_name] = telemetry
        self._history.take(device_name, telemetry, self._clock.now_sec())
        self._devices.pop(device_name, None)
        self._own_version += 1

    def history(self, device_name: str) -> list[device_pb2.Telemetry]:
        """Return the last hour of a device's readings, oldest first.

        Raises:
            NotFound: there is no such device.
        """
        if device_name not in self._state.devices:
            raise NotFound(f"there is no device {device_name[:200]!r}; 'fleet devices' lists those there are")
        return self._history.samples(device_name, self._clock.now_sec())

    def match_count(self, selector: str) -> int:
        """Return how many devices a selector matches, attached or not.

        Raises:
            InvalidRequest: it cannot be read.
            NoMatchingDevice: none; the text says what there is.
        """
        count = self._state.queue.match_count(checked_selector(selector))
        if not count:
            raise NoMatchingDevice(no_match_message(selector, self._state.devices))
        return count

    def set_job(self, client_id: str, job: job_pb2.Job) -> None:
        """Show a job of this client."""
        if not job.name:
            return
        self._jobs.pop(job.name, None)
        self._jobs[job.name] = (client_id, self._clock.now_sec(), job)
        if len(self._jobs) > _MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        self._own_version += 1

    def lose_client(self, client_id: str) -> None:
        """Show the running jobs of a client that is gone as interrupted."""
        now = self._clock.now_sec()
        for name, (owner, _, job) in self._jobs.items():
            if owner == client_id and job.state == job_pb2.JOB_STATE_RUNNING:
                ended = job_pb2.Job()
                ended.CopyFrom(job)
                ended.state = job_pb2.JOB_STATE_INTERRUPTED
                self._jobs[name] = (owner, now, ended)
                self._own_version += 1

    async def shown(self) -> Shown:
        """Return the fleet at one moment."""
        async with self._making:
            if self._shown.version != self.version:
                await self._warm_up()
                self._shown = await self._make_snapshot()
            return self._shown

    async def _warm_up(self) -> None:
        """Make missing entries in small portions, so that few are left for the snapshot, which must not pause."""
        for count, name in enumerate(list(self._state.devices)):
            if name in self._state.devices:
                self._device(name)
                self._lease(name)
            if count % _CHUNK == 0:
                await asyncio.sleep(0)

    async def _make_snapshot(self) -> Shown:
        """Encode this moment, in parts: protobuf joins the repeated fields of messages that follow each other."""
        state = self._state
        names = sorted(state.devices)
        devices = [self._device(name) for name in names]
        leases = [lease for lease in map(self._lease, names) if lease]
        requests, jobs = list(state.queue.first(_SHOWN_REQUESTS)), self._shown_jobs()
        version = self.version
        first = fleet_service_pb2.Snapshot(
            version=version,
            taken_at=timestamp(self._clock.now_sec()),
            request_count=len(state.queue) + sum(len(client.parked) for client in state.clients.values()),
            tracker_version=package_version(),
            started_at=timestamp(self._started_at_sec),
            grant_count=state.grant_count,
        )
        leases.sort(key=lambda lease: lease.name)
        parts = [_encoded(first)]
        for start in range(0, len(names), _CHUNK):
            await asyncio.sleep(0)
            chunk = slice(start, start + _CHUNK)
            parts.append(_encoded(fleet_service_pb2.Snapshot(devices=devices[chunk], leases=leases[chunk])))
        for start in range(0, len(requests), _CHUNK):
            await asyncio.sleep(0)
            found = [
                request_to_proto(state, each, state.queue.position(each)) for each in requests[start : start + _CHUNK]
            ]
            parts.append(_encoded(fleet_service_pb2.Snapshot(requests=found)))
        for start in range(0, len(jobs), _CHUNK):
            await asyncio.sleep(0)
            parts.append(_encoded(fleet_service_pb2.Snapshot(jobs=jobs[start : start + _CHUNK])))
        return Shown(version=version, content=b"".join(parts))

    def _device(self, name: str) -> device_pb2.Device:
        message = self._devices.get(name)
        if message is None:
            device = self._state.devices[name]
            message = self._devices[name] = device_to_proto(device, self._telemetry.get(name))
        return message

    def _lease(self, device_name: str) -> lease_pb2.Lease | None:
        if device_name not in self._leases:
            lease = self._state.devices[device_name].lease
            self._leases[device_name] = lease_to_proto(lease) if lease else None
        return self._leases[device_name]

    def _shown_jobs(self) -> list[job_pb2.Job]:
        oldest_sec = self._clock.now_sec() - _SHOWN_JOB_SEC
        shown = [
            job
            for _, told_at_sec, job in self._jobs.values()
            if job.state == job_pb2.JOB_STATE_RUNNING or told_at_sec > oldest_sec
        ]
        return sorted(shown, key=lambda job: (job.started_at.seconds, job.started_at.nanos, job.name), reverse=True)


def _encoded(part: fleet_service_pb2.Snapshot) -> bytes:
    return fleet_service_pb2.GetFleetResponse(snapshot=part).SerializeToString()
