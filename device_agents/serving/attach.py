"""The agent's stream to its tracker: the agent reconnects for ever; open sessions do not depend on it.

The agent sends a hello, then reports: on every change of health, and at least every 5 s. The tracker sends its clock,
its key, and fences. When devices are added, or the tracker's last time may be stale, a new stream with a new hello
replaces the old one. That ends only once the tracker has answered on the new one: leases go on, and no device is away
even for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import grpc.aio

from device_agents.serving.admission import Fence
from device_agents.serving.device import DeviceReport, ServedDevice
from device_agents.serving.membership import Membership
from device_agents.serving.poison import PoisonList
from device_agents.serving.sessions import SessionTable
from device_agents.serving.timing import USUAL, Timing
from device_agents.serving.tracker_clock import TrackerClock
from fleet.base.text import sendable
from fleet.domain.devices import Inventory
from fleet.domain.poison import DIGEST
from fleet.domain.terms import claimed_term
from fleet.errors import FleetError, NotAllowed, TrackerUnavailable, Unauthenticated
from fleet.v1 import agent_service_pb2 as pb
from fleet.v1 import device_pb2
from fleet.wire.devices import inventory_to_proto, telemetry_to_proto
from fleet.wire.rpc import Channel, from_rpc_error
from fleet.wire.stubs import agent_service_stub
from fleet.wire.times import timestamp_sec

if TYPE_CHECKING:
    from grpc.aio import EOFType

logger = logging.getLogger(__name__)

AttachCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]"

_SILENCE_SEC = 16.0
"""Three of the tracker's heartbeats missed: the stream is dead, whatever TCP thinks."""

_DOUBT_SEC = 6.0
"""One heartbeat missed. The fleet's other tracker learns of it, and may take over; the stream stays."""

_SAY_AGAIN_SEC = 60.0
"""Interval of repeated messages about a required action."""

_SHORTEST_PAUSE_SEC = 0.05
"""Between two checks of the devices' health, however often drivers call for one."""

_FIRST_RETRY_SEC = 0.2
_LAST_RETRY_SEC = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identity and devices of an agent that attaches."""

    agent_id: str
    address: str
    """Address of the data path for clients, "host:port"; without a host, the tracker uses the one that it sees."""

    inventories: Mapping[str, Inventory]
    """Inventories by device name."""

    version: str = ""
    relay_address: str = ""
    """Address of its relay, "host:port"; empty: none."""


def open_stream(channel: Channel) -> AttachCall:
    """Open a stream to the tracker on a channel."""
    return agent_service_stub(channel).attach()  # type: ignore[call-arg] # its default is None, which the stubs omit


class TrackerLink:
    """Keeps the agent attached to its tracker."""

    def __init__(
        self,
        membership: Membership,
        hello: Callable[[], Hello],
        devices: Sequence[ServedDevice],
        clock: TrackerClock,
        sessions: SessionTable,
        timing: Timing = USUAL,
        *,
        poison: PoisonList | None = None,
        open_stream: Callable[[Channel], AttachCall] = open_stream,
    ) -> None:
        self.attached = asyncio.Event()
        """Set while the tracker answers."""

        self.settled = asyncio.Event()
        """Set once the tracker has answered or refused after the latest disconnection."""

        self.attach_count = 0
        """Number of times that the tracker answered after a disconnection."""

        self.refusal: FleetError | None = None
        """Why the tracker refuses this agent; only a person can change that."""

        self._membership = membership
        self._hello = hello
        self._devices = devices
        self._clock = clock
        self._sessions = sessions
        self._timing = timing
        self._poison = poison or PoisonList()
        self._open_stream = open_stream
        self._renewed = asyncio.Event()
        self._renewals = 0
        self._heard_sec = 0.0
        """Time of the tracker's last message, on the monotonic clock."""
        self._due = asyncio.Event()
        """Set when a device's health may have changed."""

    def check_now(self) -> None:
        """Check the devices' health without waiting for the next turn."""
        self._due.set()

    def attach_anew(self) -> None:
        """Report the devices to the tracker again, because one was added or turned out to be another."""
        self._renewals += 1
        self._renewed.set()

    async def run(self) -> None:
        """Attach again and again, until cancelled."""
        retry_sec = _FIRST_RETRY_SEC
        said: dict[str, tuple[str, float]] = {}
        while True:
            try:
                await self._attach()
                text = "the tracker closed the stream"
            except grpc.aio.AioRpcError as error:
                text = await self._explained(from_rpc_error(error, TrackerUnavailable))
            except FleetError as error:
                text = await self._explained(error)
            except TimeoutError:
                text = f"the tracker was silent for {_SILENCE_SEC:g} s"
            except Exception as error:  # outermost loop of this task: the agent never stops reconnecting
                logger.exception("attach failed")
                text = str(error)
            if self.attached.is_set():
                self.attached.clear()
                self.settled.clear()
                retry_sec = _FIRST_RETRY_SEC
                said.clear()
            tracker = self._membership.tracker
            last_text, said_sec = said.get(tracker, ("", 0.0))
            if text != last_text or (self.refusal is not None and _now_sec() > said_sec + _SAY_AGAIN_SEC):
                level = logging.WARNING if self.refusal is None else logging.ERROR
                logger.log(level, "not attached, dialling again", extra={"tracker": tracker, "reason": text})
                said[tracker] = text, _now_sec()
            if self._membership.dial_next():
                continue
            # Jittered, so that a thousand agents do not reconnect at once after a restart of their tracker.
            await asyncio.sleep(retry_sec * random.uniform(0.5, 1.0))
            retry_sec = min(_LAST_RETRY_SEC, retry_sec * 1.6)

    async def _explained(self, error: FleetError) -> str:
        """Return why the tracker is unreachable or refuses; record it if waiting will not help."""
        if isinstance(error, TrackerUnavailable):
            try:
                return await self._membership.why_no_tracker() or str(error)
            except Exception as unforeseen:  # noqa: BLE001 - no explanation is worth the next dialling
                return f"{error} (and why is not known: {unforeseen})"
        if isinstance(error, NotAllowed | Unauthenticated) and not self._membership.may_come(error):
            self.refusal = error
            self.settled.set()
        return str(error)

    async def _attach(self) -> None:
        async with await self._membership.channel() as channel:
            self._clock.restart()
            stream: _Stream | None = None
            try:
                while True:
                    self._renewed.clear()
                    older, stream = stream, await self._greet(channel)
                    if older is not None:
                        await older.close()
                    if not await self._listen(stream):
                        return
            finally:
                if stream is not None:
                    await stream.close()

    async def _greet(self, channel: Channel) -> _Stream:
        """Open a stream, send the hello, and read the first answer."""
        call = self._open_stream(channel)
        renewals = self._renewals
        hello = _hello_to_proto(self._hello(), self._sessions.term_proof)
        await call.write(
            pb.AttachRequest(hello=hello, reports=await self._reports(), found_poison=self._found_poison())
        )
        reporting = asyncio.create_task(self._report(call, renewals), name="report-health")
        stream = _Stream(call=call, reporting=reporting)
        try:
            # Not wait_for: up to Python 3.11 it loses a cancellation that arrives together with the answer.
            async with asyncio.timeout(_SILENCE_SEC):
                response = await call.read()
            if isinstance(response, pb.AttachResponse):
                if self._clock.is_doubtful:
                    self._clock.restart()
                self._take(response)
            else:
                stream.is_over = True
        except BaseException:  # also if cancelled or interrupted; raised again
            await stream.close()
            raise
        return stream

    async def _listen(self, stream: _Stream) -> bool:
        """Handle messages; return False if the tracker ended the stream, True if a new one is due."""
        renewal = asyncio.create_task(self._renewed.wait(), name="await-renewal")
        takeover = asyncio.create_task(self._await_takeover(), name="await-takeover")
        try:
            while not stream.is_over:
                reading = stream.read()
                done, _ = await asyncio.wait(
                    (reading, renewal, takeover), timeout=_SILENCE_SEC, return_when=asyncio.FIRST_COMPLETED
                )
                if reading in done:
                    response = stream.take()
                    if response is None:
                        return False
                    self._take(response)
                    if self._clock.is_doubtful:
                        logger.warning("asking the tracker for its time: this machine or process was suspended")
                        return True
                elif renewal in done:
                    return True
                elif takeover in done:
                    takeover.result()
                    raise FleetError("the tracker is silent, and another one has taken over")
                else:
                    raise TimeoutError
            return False
        finally:
            renewal.cancel()
            takeover.cancel()
            await asyncio.gather(renewal, takeover, return_exceptions=True)

    async def _await_takeover(self) -> None:
        """Wait until the fleet's other tracker has taken over from a silent one."""
        while True:
            await asyncio.sleep(max(self._heard_sec + _DOUBT_SEC - time.monotonic(), _SHORTEST_PAUSE_SEC))
            if time.monotonic() < self._heard_sec + _DOUBT_SEC:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DOUBT_SEC):
                    await self._membership.await_successor(claimed_term(self._sessions.term_proof))
                    return

    def _take(self, response: pb.AttachResponse) -> None:
        self._heard_sec = time.monotonic()
        if response.public_key:
            self._sessions.trust(response.public_key)
            self._sessions.obey(response.term_proof)
            self._poison.begin()
        if response.HasField("tracker_time"):
            self._clock.learn(timestamp_sec(response.tracker_time))
        self._membership.learn_other(response.other_tracker)
        for fence in response.fences:
            self._sessions.fence(_fence_from_proto(fence))
        for digest in response.forgotten_poison:
            self._poison.forget(digest)
        for poison in response.poison:
            remaining_sec = timestamp_sec(poison.expires) - timestamp_sec(response.tracker_time)
            if DIGEST.fullmatch(poison.digest):
                self._poison.learn(poison.digest, remaining_sec)
        for notice in response.notices:
            _log_notice(notice)
        if response.public_key and not self.attached.is_set():
            self.attached.set()
            self.attach_count += 1
            self.refusal = None
            self.settled.set()
            logger.info("attached", extra={"tracker": self._membership.tracker})

    async def _report(self, call: AttachCall, renewals: int) -> None:
        """Report until a new hello is due.

        A missing device that has arrived differs from the last hello, and must not be leased as that.
        """
        known = await self._urgent()
        waited_sec = 0.0
        while True:
            waited_sec += await self._pause()
            now = await self._urgent()
            if now != known or waited_sec >= self._timing.heartbeat_sec:
                known, waited_sec = now, 0.0
                reports = await self._reports()
                if renewals != self._renewals:
                    return
                await call.write(pb.AttachRequest(reports=reports, found_poison=self._found_poison()))

    async def _pause(self) -> float:
        """Wait until the next check is due; return the time of the wait [s]."""
        began_sec = _now_sec()
        await asyncio.sleep(min(_SHORTEST_PAUSE_SEC, self._timing.health_sec))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(began_sec + self._timing.health_sec):
                await self._due.wait()
        self._due.clear()
        return _now_sec() - began_sec

    async def _reports(self) -> list[pb.DeviceReport]:
        # All at once: several hanging devices delay the report no longer than one.
        reports = await asyncio.gather(*(device.report() for device in self._devices))
        return [_report_to_proto(report, self._sessions) for report in reports]

    async def _urgent(self) -> tuple[list[tuple[str, bool, str]], frozenset[str]]:
        """Return the state that the tracker must learn within a second: others' grants and devices depend on it."""
        devices = list(self._devices)
        found = await asyncio.gather(*(device.health() for device in devices))
        conditions = [
            (device.name, health.is_healthy, device.bitstream_digest)
            for device, health in zip(devices, found, strict=True)
        ]
        return conditions, frozenset(self._poison.unsent())

    def _found_poison(self) -> list[pb.FoundPoison]:
        found = self._poison.unsent().items()
        return [pb.FoundPoison(digest=digest, device_name=device_name) for digest, device_name in found]


@dataclass(slots=True, kw_only=True)
class _Stream:
    """One stream to the tracker."""

    call: AttachCall
    reporting: asyncio.Task[None]
    reading: asyncio.Task[pb.AttachResponse | EOFType] | None = None
    """The pending read, kept across calls: cancelling a read would cancel the stream."""

    is_over: bool = False

    def read(self) -> asyncio.Task[pb.AttachResponse | EOFType]:
        if self.reading is None:
            self.reading = asyncio.create_task(_next(self.call), name="read-tracker")
        return self.reading

    def take(self) -> pb.AttachResponse | None:
        """Return the next message; None at the end of the stream.

        Raises:
            AioRpcError: the stream broke.
        """
        reading, self.reading = self.reading, None
        return None if reading is None else _message(reading.result())

    async def close(self) -> None:
        tasks = [task for task in (self.reporting, self.reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.call.cancel()


def _log_notice(notice: pb.AttachNotice) -> None:
    """Log the tracker's notice to this agent's owner."""
    if notice.kind == pb.ATTACH_NOTICE_KIND_NAME_WANTED:
        logger.warning(
            "another agent wants a device name of this one, and was refused",
            extra={
                "device": notice.device_name,
                "address": notice.other_address,
                "key": notice.other_key_id,
                "remedy": "give one of the two another 'name' in agent.yaml, or stop the one that is not wanted",
            },
        )


def _now_sec() -> float:
    return asyncio.get_running_loop().time()


def _hello_to_proto(hello: Hello, term_proof: bytes) -> pb.AgentHello:
    return pb.AgentHello(
        agent_id=hello.agent_id,
        address=hello.address,
        devices=[
            device_pb2.Device(name=name, inventory=inventory_to_proto(inventory))
            for name, inventory in hello.inventories.items()
        ],
        version=hello.version,
        relay_address=hello.relay_address,
        term_proof=term_proof,
    )


def _report_to_proto(report: DeviceReport, sessions: SessionTable) -> pb.DeviceReport:
    return pb.DeviceReport(
        device_name=report.device_name,
        telemetry=telemetry_to_proto(report.telemetry),
        is_healthy=report.health.is_healthy,
        reason=sendable(report.health.reason),
        bitstream_digest=report.bitstream_digest,
        highest_epoch=sessions.highest_epoch(report.device_name),
        fenced_epoch=sessions.fenced_epoch(report.device_name),
    )


def _fence_from_proto(fence: pb.Fence) -> Fence:
    return Fence(
        device_name=fence.device_name,
        epoch=fence.epoch,
        nonce=fence.nonce,
        live_lease_name=fence.live_lease_name,
        is_reset=fence.is_reset,
    )


async def _next(call: AttachCall) -> pb.AttachResponse | EOFType:
    return await call.read()


def _message(found: pb.AttachResponse | EOFType) -> pb.AttachResponse | None:
    return found if isinstance(found, pb.AttachResponse) else None
