"""Leases for as long as there is something to measure: the asynchronous half of `FleetRunner`.

Work comes in from any thread and waits in one queue. Each lane leases a device when there is work, sends trials ahead
of their results, and gives the device back when nothing came for a while. So one lease serves many rounds of a search,
and a search that thinks for long, or has ended, holds nothing.

What happens when a device is lost with trials in flight: those that had not begun go to the next device. The one that
was running does too when only the lease ended; not when the device faulted, since it may be what broke it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass

import fleet.aio
from fleet.artifacts import Artifact
from fleet.errors import DeviceClosed, DeviceError, DeviceUnreachable, FleetError, LeaseError
from fleet.measuring import ErrorKind, Measurement, Trial
from fleet.metaschedule.work import Work, WorkQueue

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
"""Devices that a trial may see, when leases end under it."""

_ATTEMPTS_UNREACHABLE = 2
"""The same for devices that stop to answer: a cable, or the trial's doing."""

_SENT_AHEAD = 32
"""Trials under way to the one device."""

_SENT_AHEAD_SHARED = 4
"""The same where several lanes share the work: enough to hide a round trip behind a kernel, and little to wait for."""

_CLOSE_TIMEOUT_SEC = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """Whom to ask for which devices."""

    address: str | None
    selector: str
    priority: int = 0
    devices: int = 1
    """Leases at a time, at most."""

    idle_sec: float = 10.0
    """A device is given back when there was nothing to measure for this long."""

    wait_timeout_sec: float | None = None
    connect_timeout_sec: float = 10.0
    purpose: str = "MetaSchedule"


class Lanes:
    """Measures trials on leased devices, from a thread of its own that starts with the first trial."""

    def __init__(self, plan: LanePlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: WorkQueue | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_closed = False

    def submit(self, artifact: Artifact, trial: Trial) -> Future[Measurement]:
        """Queue a trial. Its future has a Measurement, or a FleetError when no device can be had.

        Raises:
            DeviceClosed: after `close`.
        """
        work = Work(artifact, trial)
        with self._lock:
            if self._is_closed:
                raise DeviceClosed("the runner is closed")
            if self._thread is None:
                self._start()
            if self._loop is not None and self._queue is not None:
                # Under the lock, so that `close` comes after it and fails what is not measured.
                self._loop.call_soon_threadsafe(self._queue.put, work)
        return work.result

    def close(self) -> None:
        """Give all devices back and end the thread. Trials without a result fail. Idempotent."""
        with self._lock:
            self._is_closed = True
            thread, loop = self._thread, self._loop
        if thread is None or loop is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(self._cancel)
        thread.join(_CLOSE_TIMEOUT_SEC)

    def _start(self) -> None:
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(is_ready)), name="fleet-runner", daemon=True
        )
        self._thread.start()
        is_ready.wait()

    def _cancel(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    async def _main(self, is_ready: threading.Event) -> None:
        queue = self._queue = WorkQueue()
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self._serve(queue), name="fleet runner")
        is_ready.set()
        await asyncio.wait([self._serving])
        queue.fail_all(DeviceClosed("the runner was closed before this was measured"))

    async def _serve(self, queue: WorkQueue) -> None:
        while True:
            await queue.wait()
            try:
                await self._serve_connected(queue)
            except* FleetError as errors:
                queue.fail_all(_first(errors))
            except* Exception as errors:  # the outermost loop: whoever waits for a result has to hear of it
                logger.exception("runner failed")
                queue.fail_all(FleetError(f"the runner failed: {_first(errors)!r}"))

    async def _serve_connected(self, queue: WorkQueue) -> None:
        plan = self._plan
        async with (
            fleet.aio.connect(plan.address, connect_timeout_sec=plan.connect_timeout_sec) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(plan.devices):
                group.create_task(self._lane(client, queue), name=f"fleet runner lane {number}")

    async def _lane(self, client: fleet.aio.Fleet, queue: WorkQueue) -> None:
        plan = self._plan
        while True:
            await queue.wait()
            async with client.acquire(
                plan.selector, priority=plan.priority, wait_timeout_sec=plan.wait_timeout_sec, purpose=plan.purpose
            ) as device:
                logger.info("runner leased a device", extra={"device": device.name})
                await _Ride(queue, device, plan).run()


class _Ride:
    """One lease: trials go out ahead, results come back in order."""

    def __init__(self, queue: WorkQueue, device: fleet.aio.Device, plan: LanePlan) -> None:
        self._queue = queue
        self._device = device
        self._idle_sec = plan.idle_sec
        self._in_flight: deque[Work] = deque()
        self._is_over = False
        """A result said that the lease ended: more trials would end the same way."""

        self._slots = asyncio.Semaphore(_SENT_AHEAD if plan.devices == 1 else _SENT_AHEAD_SHARED)

    async def run(self) -> None:
        """Measure until idle, or until the lease or the device is lost. Never raises a LeaseError or DeviceError."""
        try:
            async with contextlib.aclosing(self._device.measure(self._trials())) as measurements:
                async for measurement in measurements:
                    self._settle(self._in_flight.popleft(), measurement)
                    self._slots.release()
        except (LeaseError, DeviceError) as error:
            logger.warning("runner lost its device", extra={"device": self._device.name, "error": str(error)})
            self._lost(error)
        except BaseException:
            self._queue.put_back(list(self._in_flight))
            raise

    async def _trials(self) -> AsyncIterator[Trial]:
        while True:
            await self._slots.acquire()
            if not await self._may_go_on():
                return
            work = self._queue.take()
            self._in_flight.append(work)  # before the upload, so that work is not lost when that is cancelled
            if await self._is_uploaded(work):
                yield work.trial
            else:
                self._in_flight.remove(work)
                self._slots.release()

    async def _may_go_on(self) -> bool:
        """Wait for work; False when the lease ended or nothing came. Idleness begins with the last result."""
        while not self._is_over:
            if await self._queue.wait(self._idle_sec):
                return not self._is_over
            if not self._in_flight:
                return False
        return False

    async def _is_uploaded(self, work: Work) -> bool:
        """Bring the artifact to the device. One that the device refuses gets that as its result."""
        try:
            await self._device.ensure([work.artifact])
        except (LeaseError, DeviceError):
            return True  # the measuring stream fails with the same, and knows what is in flight
        except FleetError as error:
            work.fail(ErrorKind.LOAD_FAILED, str(error))
            return False
        return True

    def _settle(self, work: Work, measurement: Measurement) -> None:
        work.attempts += 1
        is_lost = measurement.error in (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING)
        self._is_over |= measurement.error is ErrorKind.LEASE_ENDED
        if is_lost and work.attempts < _ATTEMPTS:
            self._queue.put_back([work])
            return
        work.result.set_result(measurement)

    def _lost(self, error: FleetError) -> None:
        works = list(self._in_flight)
        if not works:
            return
        works[0].attempts += 1
        if not _may_repeat(error, works[0].attempts):
            kind = ErrorKind.DEVICE_FAULTED if isinstance(error, DeviceError) else ErrorKind.LEASE_ENDED
            works[0].fail(kind, str(error))
            works = works[1:]
        self._queue.put_back(works)


def _may_repeat(error: FleetError, attempts: int) -> bool:
    if isinstance(error, DeviceUnreachable):
        return attempts < _ATTEMPTS_UNREACHABLE
    return isinstance(error, LeaseError) and attempts < _ATTEMPTS


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
