"""Consecutive batches of trials on one device, without a gap between them.

A batch that is sent after the last result of its predecessor leaves the device idle for a round trip. Here it may be
sent earlier. All batches go through one stream, in order, so that a stream's guarantees hold for all of them. If
the connection to the agent breaks, the first trial without a result is the suspect, and no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fleet.artifacts.artifact import Artifact
from fleet.base.tasks import stopped
from fleet.client.steady import SteadyDevice
from fleet.client.trial_queue import QueuedTrial, TrialQueue, queued_batch
from fleet.domain.measuring import Measurement, Trial

_LOOK_SEC = 0.2
"""A stream that was refused a trial ends after this, while others are still in the line."""


class TrialLine:
    """The trials of several batches on one device. While there are any, nothing else may be measured on it."""

    def __init__(self, device: SteadyDevice) -> None:
        self._device = device
        self._queue = TrialQueue(idle_sec=_LOOK_SEC)
        self._unanswered: set[QueuedTrial] = set()
        self._draining: asyncio.Task[None] | None = None

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        """Measure all trials, in order, after those that are queued already.

        Raises:
            DeviceUnreachable: see `SteadyDevice.measure`.
        """
        waiting = deque(queued_batch(artifacts, trials))
        for queued in waiting:
            self._queue.put(queued)
        self._unanswered.update(waiting)
        self._go_on()
        try:
            while waiting:
                # Shielded: cancelling the wait for a result does not cancel the sent trial.
                measurement = await asyncio.shield(asyncio.wrap_future(waiting[0].result))
                waiting.popleft()
                yield measurement
        finally:
            left = [queued for queued in waiting if not queued.result.done()]
            if left:
                await self._stop()
                self._queue.drop(left)
                self._unanswered.difference_update(left)
                self._go_on()

    def _go_on(self) -> None:
        if self._unanswered and (self._draining is None or self._draining.done()):
            self._draining = asyncio.create_task(self._drain(), name="measure a line")

    async def _stop(self) -> None:
        """Stop the running trials. Trials without a result return to the queue."""
        if self._draining is not None:
            await stopped(self._draining)

    async def _drain(self) -> None:
        try:
            while self._unanswered:
                await self._drain_once()
        except Exception as error:  # noqa: BLE001 - whoever waits for a result gets it
            self._queue.fail_all(error)
            self._unanswered.clear()

    async def _drain_once(self) -> None:
        async with aclosing(self._device.drain(self._queue)) as results:
            async for queued, measurement in results:
                queued.result.set_result(measurement)
                self._unanswered.discard(queued)
                if not self._unanswered:
                    return
