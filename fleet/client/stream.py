"""The one stream between a client and its tracker: reconnected for ever, through all outages of the tracker.

`TrackerStream.run` is one task. It opens the stream, sends the lease table's events, feeds the answers back to
the table, and reopens a broken stream after a jittered pause. A broken stream never ends a lease: leases live by their
tokens, and end when those run out or the tracker says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

import grpc
import grpc.aio

from fleet.base.clock import Clock
from fleet.base.text import sendable
from fleet.base.version import package_version
from fleet.client.booking_notices import BookingNotices
from fleet.client.leases import Acquire, Cancel, ClientEvent, LeaseTable, Release, Renew
from fleet.domain.jobs import JobState, JobStatus, OptimizerStatus
from fleet.errors import (
    ConfigError,
    FleetError,
    InvalidRequest,
    KeyRevoked,
    LeaseError,
    NotJoined,
    TrackerUnavailable,
    error_classes,
)
from fleet.v1 import lease_service_pb2
from fleet.wire.bookings import booking_from_proto
from fleet.wire.devices import device_from_proto
from fleet.wire.leases import (
    acquire_to_proto,
    lease_end_from_proto,
    lease_from_proto,
    request_from_proto,
    yield_from_proto,
)
from fleet.wire.rpc import from_rpc_error, read_next
from fleet.wire.snapshots import job_to_proto, optimizer_to_proto
from fleet.wire.stubs import LeaseServiceStub

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SEC = 0.1
_LONGEST_PAUSE_SEC = 2.0
_DOUBT_SEC = 3.0
"""Time without any message after a request, a renewal or a release: the fleet's other tracker may have taken over."""

_QUIET_SEC = 3.0
"""Time without any message after which a waiting request is repeated if the fleet has another tracker: a frozen one
keeps its connections.
"""
_LONGEST_DOUBT_SEC = 5.0
_LOOK_SEC = 0.5
_STRAY_GRACE_SEC = 1.0
"""A lease listed at the welcome may belong to a request with a repeated answer that is still on its way."""

_TOLD_AGAIN_SEC = 600.0
"""Time in which an ended job is reported to a returning tracker: trackers show it as long."""

_MESSAGE_EVENTS = 500
"""Most events in one message: trackers take messages of at most 1 MiB."""

_FATAL = (
    *(grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED),
)
"""Errors that end the attempt before the first welcome: the peer is not our tracker, or refuses this account."""


_Call: TypeAlias = (
    "grpc.aio.StreamStreamCall[lease_service_pb2.OpenLeasesRequest, lease_service_pb2.OpenLeasesResponse]"
)

_Status: TypeAlias = JobStatus | OptimizerStatus


class TrackerStream:
    """Owns the stream and the lease table behind it."""

    def __init__(
        self,
        stub: Callable[[], Awaitable[LeaseServiceStub]],
        holder: str,
        clock: Clock,
        *,
        on_failure: Callable[[], None] = lambda: None,
        on_other: Callable[[str, int], None] = lambda address, term: None,
        await_successor: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Args:
        on_failure: called before each further attempt.
        on_other: called with the address of the fleet's other tracker, and the term of the one in use.
        await_successor: waits until the other tracker has taken over, and has the next attempt go there.
        """
        self.table = LeaseTable(send=self.send, clock=clock)
        self.bookings = BookingNotices()
        self.is_up = False
        self.fleet_id = ""
        self.account = ""
        self.may_ask_for_others = False
        self.most_set_devices = 0
        self.was_up = asyncio.Event()
        """Set at the first welcome, or when there can never be one: see `fatal`."""

        self.fatal: FleetError | None = None
        """Reason for giving up: the peer is no tracker of ours, or refuses this account."""

        self.not_joined: NotJoined | None = None
        """Set while this account has no credentials for the tracker: one that starts writes them."""

        self.last_error = ""
        self._stub = stub
        self._on_failure = on_failure
        self._on_other = on_other
        self._await_successor = await_successor or _never
        self._unanswered_sec: float | None = None
        """Time since when no message has followed on one that has an answer, on the loop's clock."""
        self._heard_sec = 0.0
        """Time of the last message, on the loop's clock."""
        self._has_other = False
        self._hello = lease_service_pb2.ClientHello(
            client_id=secrets.token_hex(16), holder=sendable(holder), version=package_version()
        )
        self._outgoing: list[ClientEvent] = []
        self._published: dict[str, tuple[float, _Status]] = {}
        """Newest state of each job, and of this optimizer, with its time on the client's clock."""

        self._unsent: dict[str, _Status] = {}
        self._has_outgoing = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()

    def send(self, event: ClientEvent) -> None:
        """Send an event if a stream is open; after a reconnect, the table repeats the relevant ones."""
        if self.is_up:
            self._outgoing.append(event)
            self._wake()

    def publish(self, status: _Status) -> None:
        """Report the state of a job, or of an optimizer; only the newest state of each is sent."""
        self._forget_old_jobs()
        self._published[status.name] = (self.table.clock.monotonic_sec(), status)
        if self.is_up:
            self._unsent[status.name] = status
            self._wake()

    async def flush(self) -> None:
        """Wait until all events so far have been passed to the network, or the stream broke."""
        await self._flushed.wait()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        pause_sec = _FIRST_PAUSE_SEC
        while True:
            is_superseded = False
            try:
                is_superseded = await self._run_once()
                self.last_error = "another tracker has taken over" if is_superseded else "the tracker closed the stream"
            except grpc.aio.AioRpcError as error:
                self.last_error = error.details() or error.code().name
                found = from_rpc_error(error, TrackerUnavailable)
                if isinstance(found, KeyRevoked) or (not self.was_up.is_set() and error.code() in _FATAL):
                    self._give_up(found)
                    return
            except NotJoined as error:
                self.last_error, self.not_joined = str(error), error
            except TrackerUnavailable as error:
                self.last_error = str(error)
            except ConfigError as error:
                self.last_error = str(error)
                if not self.was_up.is_set():
                    self._give_up(error)
                    return
                logger.warning("cannot dial the tracker", extra={"reason": self.last_error})
            except Exception as error:  # outermost loop: if it ended, no lease would be renewed
                self.last_error = str(error)
                logger.exception("tracker stream failed")
            if self.is_up:
                self._went_down()
                pause_sec = _FIRST_PAUSE_SEC
            if not is_superseded:
                self._on_failure()
            await asyncio.sleep(pause_sec * random.uniform(0.5, 1.0))
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)

    async def _run_once(self) -> bool:
        """Serve a stream until it ends; return True if another tracker has taken over meanwhile."""
        call = (await self._stub()).open_leases(None)
        self.not_joined = None
        reader = asyncio.create_task(self._read(call), name="fleet tracker reader")
        takeover = asyncio.create_task(self._await_takeover(), name="fleet tracker takeover")
        try:
            await asyncio.wait((reader, takeover), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                takeover.result()
                return True
            reader.result()
            return False
        finally:
            call.cancel()
            reader.cancel()
            takeover.cancel()
            await asyncio.gather(reader, takeover, return_exceptions=True)

    async def _await_takeover(self) -> None:
        """Wait until another tracker has taken over from a silent one."""
        while True:
            await asyncio.sleep(_LOOK_SEC)
            self._probe_if_quiet()
            if self._unanswered_sec is None or _now_sec() - self._unanswered_sec < _DOUBT_SEC:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_DOUBT_SEC):
                    await self._await_successor()
                    return

    def _probe_if_quiet(self) -> None:
        """Repeat a waiting request, which is always answered, after a long silence."""
        waiting = next(iter(self.table.waiting.values()), None)
        if waiting is None or not self._has_other or self._unanswered_sec is not None:
            return
        if _now_sec() - self._heard_sec >= _QUIET_SEC:
            self.send(Acquire(waiting.request_id, waiting.terms, waiting.continues))

    async def _read(self, call: _Call) -> None:
        writer: asyncio.Task[None] | None = None
        try:
            self._unanswered_sec = _now_sec()
            await call.write(lease_service_pb2.OpenLeasesRequest(hello=self._hello))
            while (response := await read_next(call)) is not None:
                self._unanswered_sec, self._heard_sec = None, _now_sec()
                for event in response.events:
                    if event.WhichOneof("kind") == "welcome":
                        self._welcome(event.welcome)
                        writer = writer or asyncio.create_task(self._write(call), name="fleet tracker writer")
                    else:
                        self._handle(event)
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def _handle(self, event: lease_service_pb2.TrackerEvent) -> None:
        try:
            self._tell_book(event)
        except Exception:  # a callback failed, or a newer tracker sent something unknown: continue
            logger.exception("event of the tracker failed", extra={"kind": event.WhichOneof("kind")})

    def _tell_book(self, event: lease_service_pb2.TrackerEvent) -> None:
        match event.WhichOneof("kind"):
            case "queued":
                self.table.queued(request_from_proto(event.queued))
            case "granted":
                granted = event.granted
                device, lease = device_from_proto(granted.device), lease_from_proto(granted.lease)
                token = granted.token.SerializeToString()
                self.table.granted(granted.request_id, device, lease, token, granted.member)
            case "refused":
                error = error_classes().get(event.refused.error_class, LeaseError)(event.refused.message)
                self.table.refused(event.refused.request_id, error)
            case "renewed":
                self.table.renewed(lease_from_proto(event.renewed.lease), event.renewed.token.SerializeToString())
            case "yield_wanted":
                self.table.yield_wanted(yield_from_proto(event.yield_wanted))
            case "outbid":
                self.table.outbid(event.outbid.lease_name, event.outbid.bid)
            case "booking_changed":
                self.bookings.changed(booking_from_proto(event.booking_changed.booking))
            case "other_tracker":
                self._has_other = True
                self._on_other(event.other_tracker.address, event.other_tracker.term)
            case "lease_ended":
                ended = event.lease_ended
                self.table.ended(ended.lease_name, lease_end_from_proto(ended.end), ended.message)
            case _:  # unknown event of a newer tracker
                return

    async def _write(self, call: _Call) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            said, self._outgoing = self._outgoing, []
            states, self._unsent = self._unsent, {}
            if self._unanswered_sec is None and any(isinstance(event, Acquire | Renew | Release) for event in said):
                self._unanswered_sec = _now_sec()
            events = [made for event in (*said, *states.values()) if (made := self._said(event)) is not None]
            for start in range(0, len(events), _MESSAGE_EVENTS):
                portion = events[start : start + _MESSAGE_EVENTS]
                await call.write(lease_service_pb2.OpenLeasesRequest(events=portion))
            if not self._has_outgoing.is_set():
                self._flushed.set()

    def _said(self, event: ClientEvent | _Status) -> lease_service_pb2.ClientEvent | None:
        """Return an event's message, or None if it cannot be encoded, which loses only that event."""
        try:
            return _message(event)
        except Exception as error:  # must not end the stream, which carries other requests
            logger.exception("an event cannot be sent")
            if isinstance(event, Acquire):
                self.table.refused(event.request_id, InvalidRequest(f"the request cannot be sent: {error}"))
            return None

    def _welcome(self, welcome: lease_service_pb2.Welcome) -> None:
        self.is_up = True
        self.fleet_id = welcome.fleet_id
        self.account, self.may_ask_for_others = welcome.account, welcome.may_ask_for_others
        self.most_set_devices = welcome.most_set_devices
        if self.was_up.is_set():
            logger.warning("the tracker is back", extra={"tracker_id": welcome.tracker_id})
        self.was_up.set()
        self._outgoing = self.table.reopen()
        self.bookings.reopen()
        self._forget_old_jobs()
        self._unsent = {name: status for name, (_, status) in self._published.items()}
        self._wake()
        known = self.table.held.keys() | self.table.releasing.keys()
        strays = [lease.name for lease in welcome.leases if lease.name not in known]
        if strays:
            asyncio.get_running_loop().call_later(_STRAY_GRACE_SEC, self.table.release_strays, strays)

    def _forget_old_jobs(self) -> None:
        """Forget jobs that ended long ago: an optimizer runs many, and a tracker would show all of them as new."""
        oldest_sec = self.table.clock.monotonic_sec() - _TOLD_AGAIN_SEC
        self._published = {
            name: (told_sec, status)
            for name, (told_sec, status) in self._published.items()
            if isinstance(status, OptimizerStatus) or status.state is JobState.RUNNING or told_sec > oldest_sec
        }

    def _went_down(self) -> None:
        self.is_up = False
        self._outgoing.clear()
        self._unsent.clear()
        self._flushed.set()
        logger.warning("lost the tracker", extra={"cause": self.last_error})

    def _give_up(self, error: FleetError) -> None:
        if self.is_up:
            self._went_down()
        self.fatal = error
        self.table.fail(error)
        self.was_up.set()

    def _wake(self) -> None:
        self._flushed.clear()
        self._has_outgoing.set()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def _now_sec() -> float:
    return asyncio.get_running_loop().time()


def _message(event: ClientEvent | _Status) -> lease_service_pb2.ClientEvent:
    match event:
        case Acquire(request_id, terms, continues):
            return lease_service_pb2.ClientEvent(acquire=acquire_to_proto(request_id, terms, continues))
        case Cancel(request_id):
            return lease_service_pb2.ClientEvent(cancel=lease_service_pb2.Cancel(request_id=request_id))
        case Renew(lease_name):
            return lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name=lease_name))
        case Release(lease_name):
            return lease_service_pb2.ClientEvent(release=lease_service_pb2.Release(lease_name=lease_name))
        case JobStatus():
            return lease_service_pb2.ClientEvent(job=job_to_proto(event))
        case OptimizerStatus():
            return lease_service_pb2.ClientEvent(optimizer=optimizer_to_proto(event))
    assert_never(event)
