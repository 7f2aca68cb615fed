"""Leases devices while there are trials: the asynchronous half of `FleetRunner`.

Work comes in from any thread and waits in one queue. Each lane leases a device when there is work, sends trials ahead
of their results, and gives the device back after a while without work. So one lease serves many rounds of a search, and
a search that thinks for long, or has ended, holds nothing.

`fleet.client.steady` describes the handling of trials when a device is lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass

import fleet.aio
from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.client.trial_queue import QueuedTrial, TrialQueue
from fleet.domain.leases import LeaseTerms
from fleet.domain.measuring import Measurement, Trial
from fleet.errors import DeviceClosed, FleetError

logger = logging.getLogger(__name__)

_SENT_AHEAD = 32
"""Trials sent ahead of their results to a single device."""

_SENT_AHEAD_SHARED = 4
"""The same limit when several lanes share the work: enough to hide a round trip, without hoarding trials."""

_CLOSE_TIMEOUT_SEC = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """Devices to lease, and the length of leases."""

    address: str | None
    terms: LeaseTerms
    devices: int = 1
    """Most leases held at once."""

    idle_sec: float = 10.0
    """A device is given back when there was nothing to measure for this long."""

    connect_timeout_sec: float = 10.0


class Lanes:
    """Measures trials on leased devices, from a thread of its own that starts with the first trial."""

    def __init__(self, plan: LanePlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: TrialQueue | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_closed = False

    def submit(self, artifact: Artifact, trial: Trial) -> Future[Measurement]:
        """Queue a trial. Its future gets a Measurement, or a FleetError if no device is available.

        Raises:
            DeviceClosed: after `close`.
        """
        queued = QueuedTrial(artifact, trial)
        with self._lock:
            if self._is_closed:
                raise DeviceClosed("the runner is closed")
            if self._thread is None:
                self._start()
            if self._loop is not None and self._queue is not None:
                # Under the lock, so that a later `close` sees this trial and fails it if it was not measured.
                self._loop.call_soon_threadsafe(self._queue.put, queued)
        return queued.result

    def close(self) -> None:
        """Release all devices and end the thread. Trials without a result fail. Idempotent."""
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
        queue = self._queue = TrialQueue(idle_sec=self._plan.idle_sec)
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self._serve(queue), name="fleet runner")
        is_ready.set()
        await asyncio.wait([self._serving])
        queue.fail_all(DeviceClosed("the runner was closed before this was measured"))

    async def _serve(self, queue: TrialQueue) -> None:
        while True:
            await queue.wait()
            try:
                await self._serve_connected(queue)
            except* FleetError as errors:
                queue.fail_all(_first(errors))
            except* Exception as errors:  # outermost loop: callers that wait for a result must learn of the failure
                logger.exception("runner failed")
                queue.fail_all(FleetError(f"the runner failed: {_first(errors)!r}"))

    async def _serve_connected(self, queue: TrialQueue) -> None:
        plan = self._plan
        async with (
            fleet.aio.connect(plan.address, connect_timeout_sec=plan.connect_timeout_sec) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(plan.devices):
                group.create_task(self._lane(client, queue), name=f"fleet runner lane {number}")

    async def _lane(self, client: fleet.aio.Fleet, queue: TrialQueue) -> None:
        ahead = _SENT_AHEAD if self._plan.devices == 1 else _SENT_AHEAD_SHARED
        while True:
            await queue.wait()
            async with (
                SteadyDevice(client, self._plan.terms, stays_alike=False, ahead=ahead) as device,
                aclosing(device.drain(queue)) as results,
            ):
                async for queued, measurement in results:
                    queued.result.set_result(measurement)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
