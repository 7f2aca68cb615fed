"""The agent's stream to its tracker: dialled by the agent, for ever, and never needed by a session that is open.

Up go the hello and, with every change of health and at least every 5 s, reports. Down come the tracker's clock, its
key, and fences. When devices come, a new stream with a new hello takes the place of the old one, which ends only once
the tracker has answered on the new: leases go on, and no device is away for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from device_agents.served import ServedDevice
from device_agents.sessions import SessionTable
from device_agents.tracker_clock import TrackerClock
from fleet.rpc import EOF, Stub, make_channel
from fleet.v1 import agent_service_pb2 as pb
from fleet.wire import timestamp_sec

logger = logging.getLogger(__name__)

_SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"]
_HEARTBEAT_SEC = 5.0
_HEALTH_SEC = 1.0
_SILENCE_SEC = 16.0
"""Three of the tracker's heartbeats missed: the stream is dead, whatever TCP thinks."""

_FIRST_RETRY_SEC = 0.2
_LAST_RETRY_SEC = 5.0


class TrackerLink:
    """Keeps an agent attached."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], pb.AgentHello],
        devices: Sequence[ServedDevice],
        clock: TrackerClock,
        sessions: SessionTable,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.attached = asyncio.Event()
        """Set while the tracker answers."""

        self._address = address
        self._hello = hello
        self._devices = devices
        self._clock = clock
        self._sessions = sessions
        self._rng = rng or random.Random()
        self._renewed = asyncio.Event()
        self._renewals = 0

    def attach_anew(self) -> None:
        """Tell the tracker again which devices are here: one came, or turned out to be something else."""
        self._renewals += 1
        self._renewed.set()

    async def run(self) -> None:
        """Attach, and again, until cancelled."""
        retry_sec = _FIRST_RETRY_SEC
        last_text = ""
        while True:
            try:
                await self._attach()
                text = "the tracker closed the stream"
            except grpc.aio.AioRpcError as error:
                text = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                text = f"the tracker was silent for {_SILENCE_SEC:g} s"
            except Exception as error:  # outermost loop of this task: the agent never stops dialling
                logger.exception("attach failed")
                text = str(error)
            if self.attached.is_set():
                self.attached.clear()
                retry_sec = _FIRST_RETRY_SEC
                last_text = ""
            if text != last_text:
                logger.warning("not attached, dialling again", extra={"tracker": self._address, "reason": text})
                last_text = text
            # Spread, so that a thousand agents do not knock in step after a restart of their tracker.
            await asyncio.sleep(retry_sec * self._rng.uniform(0.5, 1.0))
            retry_sec = min(_LAST_RETRY_SEC, retry_sec * 1.6)

    async def _attach(self) -> None:
        async with make_channel(self._address) as channel:
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

    async def _greet(self, channel: grpc.aio.Channel) -> _Stream:
        """Open a stream, say who is here, and hear the first answer."""
        call = Stub(channel, _SERVICE).attach()
        renewals = self._renewals
        await call.write(pb.AttachRequest(hello=self._hello(), reports=await self._reports()))
        reporting = asyncio.create_task(self._report(call, renewals), name="report-health")
        stream = _Stream(call=call, reporting=reporting)
        try:
            # Not wait_for: up to Python 3.11 it forgets that the agent closes when the answer comes in that moment.
            async with asyncio.timeout(_SILENCE_SEC):
                response = await call.read()
        except BaseException:
            await stream.close()
            raise
        if response is EOF:
            stream.is_over = True
        else:
            self._take(response)
        return stream

    async def _listen(self, stream: _Stream) -> bool:
        """Take what comes; False when the tracker ended the stream, True when it is time for a new one."""
        renewal = asyncio.create_task(self._renewed.wait(), name="await-renewal")
        try:
            while not stream.is_over:
                reading = stream.read()
                done, _ = await asyncio.wait(
                    (reading, renewal), timeout=_SILENCE_SEC, return_when=asyncio.FIRST_COMPLETED
                )
                if reading in done:
                    response = stream.take()
                    if response is EOF:
                        return False
                    self._take(response)
                elif renewal in done:
                    return True
                else:
                    raise TimeoutError
            return False
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    def _take(self, response: pb.AttachResponse) -> None:
        if response.HasField("tracker_time"):
            self._clock.learn(timestamp_sec(response.tracker_time))
        if response.public_key:
            self._sessions.trust(response.public_key)
        for fence in response.fences:
            self._sessions.fence(fence.device_name, fence.epoch)
        if response.public_key and not self.attached.is_set():
            self.attached.set()
            logger.info("attached", extra={"tracker": self._address})

    async def _report(
        self, call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse], renewals: int
    ) -> None:
        """Report until there is more to say than a report can: a missing device that came is not yet what its hello
        said, and must not be leased for it."""
        known = await self._urgent()
        waited_sec = 0.0
        while True:
            await asyncio.sleep(_HEALTH_SEC)
            waited_sec += _HEALTH_SEC
            now = await self._urgent()
            if now != known or waited_sec >= _HEARTBEAT_SEC:
                known, waited_sec = now, 0.0
                reports = await self._reports()
                if renewals != self._renewals:
                    return
                await call.write(pb.AttachRequest(reports=reports))

    async def _reports(self) -> list[pb.DeviceReport]:
        # Side by side: several that hang make nobody wait longer than one does.
        return await asyncio.gather(*(device.report() for device in self._devices))

    async def _urgent(self) -> list[tuple[str, bool, str]]:
        """Return what the tracker should know within a second: it decides who gets which device."""
        devices = list(self._devices)
        found = await asyncio.gather(*(device.health() for device in devices))
        return [
            (device.name, health.is_healthy, device.driver.bitstream_digest)
            for device, health in zip(devices, found, strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class _Stream:
    """One stream to the tracker."""

    call: Any
    reporting: asyncio.Task[None]
    reading: asyncio.Task[Any] | None = None
    """Under way from one message to the next: to cancel a read is to cancel the stream."""

    is_over: bool = False

    def read(self) -> asyncio.Task[Any]:
        if self.reading is None:
            self.reading = asyncio.create_task(_next(self.call), name="read-tracker")
        return self.reading

    def take(self) -> Any:
        """Return the message that was read.

        Raises:
            AioRpcError: the stream broke.
        """
        reading, self.reading = self.reading, None
        return EOF if reading is None else reading.result()

    async def close(self) -> None:
        tasks = [task for task in (self.reporting, self.reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.call.cancel()


async def _next(call: Any) -> Any:
    return await call.read()
