"""Trials sent to one device under one lease."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.artifacts.artifact import Artifact
from fleet.client.trial_queue import QueuedTrial, TrialQueue
from fleet.domain.measuring import ABSURD_SEC, ErrorKind, Measurement, Trial
from fleet.errors import (
    DeviceClosed,
    DeviceFaulted,
    DeviceUnreachable,
    FleetError,
    InvalidRequest,
    LeaseExpired,
    LeaseRevoked,
    TrackerUnavailable,
)

if TYPE_CHECKING:
    from fleet.client.device import Device

LOST = (LeaseExpired, LeaseRevoked, DeviceUnreachable, DeviceClosed, DeviceFaulted, TrackerUnavailable)
"""Errors that mean the device is lost. An agent that shuts down answers DeviceClosed; one that has not reached its
tracker since it started answers TrackerUnavailable. A faulted device is not granted again until it is repaired."""


_NOT_RUN = (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING, ErrorKind.DEVICE_FAULTED)
SUSPECTED = "the device went away while this candidate ran; it is not tried again"


class Batch:
    """Trials sent to one device under one lease: requests are sent ahead, and results arrive in order."""

    def __init__(
        self,
        device: Device,
        queue: TrialQueue,
        ahead: int,
        ensure: Callable[[Sequence[Artifact]], Awaitable[None]],
    ) -> None:
        self._device = device
        self._queue = queue
        self._ahead = ahead
        self._ensure = ensure
        self._slots = asyncio.Semaphore(ahead)
        self._in_flight: deque[QueuedTrial] = deque()
        self._refused: list[tuple[QueuedTrial, Measurement]] = []
        self._uploading: QueuedTrial | None = None
        """Taken from the queue but not sent yet, so it cannot be the suspect."""

        self.problem = ""
        """Why the device stopped; empty when it ran everything."""

        self.notice = ""
        self._gives_way = False
        self.is_fruitless = False
        """True if a new lease alone would not solve the problem."""

    def give_way(self) -> None:
        """Send no more trials, and stop at the next result."""
        self._gives_way = True
        self._queue.wake()

    async def results(self) -> AsyncGenerator[tuple[QueuedTrial, Measurement], None]:
        """Yield trials with their results. Those in flight at the end go back into the queue."""
        try:
            try:
                await self._upload_first()
                async with aclosing(self._device.measure(self._trials())) as measurements:
                    async for measurement in measurements:
                        self._slots.release()
                        if measurement.error in _NOT_RUN and not self.problem:
                            self._note_refusal(measurement)
                        if not self.problem:  # after one refusal, later ones do not count
                            self._check_asked(measurement)
                            yield self._in_flight.popleft(), _credible(measurement)
                        if self._gives_way:
                            break
            except LOST as error:
                has_suspect = bool(self._in_flight) and not self.problem and isinstance(error, DeviceUnreachable)
                self._note_loss(error)
                if has_suspect:
                    suspect = self._in_flight.popleft()
                    yield suspect, _failed(suspect, ErrorKind.DEVICE_FAULTED, SUSPECTED)
            for refused in self._refused:
                yield refused
            if self._gives_way and not self.problem:
                self.problem, self.notice = "it has to give way", gives_way(self._device)
        finally:
            self._queue.put_back([*self._in_flight, *([self._uploading] if self._uploading else [])])

    async def _upload_first(self) -> None:
        """Upload the first artifacts together: over a network, one round trip instead of one each."""
        try:
            await self._ensure(list({q.artifact.digest: q.artifact for q in self._queue.peek(self._ahead)}.values()))
        except InvalidRequest:
            return  # one of them is refused; uploading one by one shows which

    async def _trials(self) -> AsyncIterator[Trial]:
        while await self._may_send():
            queued = self._uploading = self._queue.take()
            try:
                await self._ensure([queued.artifact])
            except InvalidRequest as error:  # the candidate's fault; end the stream, so that this is noticed
                self._uploading = None
                self._refused.append((queued, _failed(queued, ErrorKind.LOAD_FAILED, str(error))))
                return
            self._uploading = None
            self._in_flight.append(queued)
            yield queued.trial

    async def _may_send(self) -> bool:
        """Wait until another trial may be sent; False if this lease has ended or none arrived in time. Idle time
        starts at the last result.
        """
        await self._slots.acquire()
        while not (self.problem or self._gives_way):
            if await self._queue.wait_idle(lambda: self._gives_way):
                return not (self.problem or self._gives_way)
            if self._queue.is_final or not self._in_flight:
                return False
        return False

    def _check_asked(self, measurement: Measurement) -> None:
        """Refuse an answer to another trial than the next: no candidate is to blame, and none gets its times.

        Raises:
            DeviceFaulted: it is for another, or there is none.
        """
        if not self._in_flight or measurement.candidate_id != self._in_flight[0].trial.candidate_id:
            raise DeviceFaulted(f"the agent of {self._device.name} answered a trial that was not next")

    def _note_refusal(self, measurement: Measurement) -> None:
        self.problem, self.is_fruitless = measurement.error_message or str(measurement.error), True
        self.notice = f"{self._device.name} could not run the program ({self.problem}); waiting for a device to go on"

    def _note_loss(self, error: FleetError) -> None:
        self.problem, self.is_fruitless = str(error), not isinstance(error, LeaseExpired | LeaseRevoked)
        self.notice = (
            f"{self._device.name} went away ({error}); waiting for it to come back"
            if self.is_fruitless
            else f"lost {self._device.name} ({error}); waiting for a device to go on"
        )


def gives_way(device: Device) -> str:
    wanted = device.yield_wanted
    if wanted and wanted.reason:
        return f"{device.name} has to be given back, {wanted.reason}; waiting for a device to go on"
    lease_class = f" of the class {wanted.lease_class}" if wanted else ""
    return f"{device.name} is needed for a request{lease_class}; waiting for a device to go on"


def _failed(queued: QueuedTrial, kind: ErrorKind, message: str) -> Measurement:
    return Measurement(candidate_id=queued.trial.candidate_id, error=kind, error_message=message)


def _credible(measurement: Measurement) -> Measurement:
    """Return the measurement, or an error if its times are impossible."""
    times = measurement.run_secs
    if measurement.error is not None or (times and all(0 < sec < ABSURD_SEC for sec in times)):
        return measurement
    return replace(
        measurement,
        run_secs=(),
        error=ErrorKind.RUN_FAILED,
        error_message=f"the device reported impossible times: {list(times)[:10]}",
    )
