"""Runs the reference kernel of a session's device, never in a worker that has run a candidate.

A candidate can take over its worker and forge its responses. So the reference kernel has its own worker, which lives as
long as the session. A device that serves one worker at a time, such as a board behind TVM RPC, has no room for a second
one. On such a device, a due run replaces the session's worker by a fresh one, which runs the reference kernel first.
"""

from __future__ import annotations

import asyncio
import logging
import time

from device_agents.serving.device import ServedDevice
from device_agents.serving.worker_slot import WorkerSlot
from device_agents.workers.answers import AnswerBound
from device_agents.workers.handle import WorkerHandle, WorkerLost
from fleet.v1 import worker_pb2

logger = logging.getLogger(__name__)

_TIMEOUT_SEC = 10.0
_PAUSES_SEC = (0.005, 0.02)
_ORDER = worker_pb2.WorkerRequest(reference=worker_pb2.ReferenceRequest()).SerializeToString()


class Referee:
    """Times the reference kernel of one device, during one session."""

    def __init__(self, device: ServedDevice, candidates: WorkerSlot, own: WorkerSlot) -> None:
        """Args:
        candidates: slot of the worker that runs candidates.
        own: slot of the worker for the reference kernel; stays empty if the device serves one worker at a time.
        """
        self._device = device
        self._slot = candidates if device.driver.serves_one_worker else own

    async def warm_up(self) -> None:
        """Start the worker for the first run. Does nothing if candidates share it, since a call may already run."""
        if not self._device.driver.serves_one_worker:
            await self._slot.worker(self._accepts)

    async def run(self, *, is_wanted: bool = False) -> None:
        """Time the reference kernel if it is due or requested. Ignore a drift that ends within milliseconds."""
        reference = self._device.reference
        current = self._slot.current
        is_wanted = is_wanted and not self._device.driver.serves_one_worker
        if not reference.is_due(current.pid if current else 0, time.monotonic(), is_wanted=is_wanted):
            return
        pauses_sec = () if reference.has_drifted or self._device.is_simulated else _PAUSES_SEC
        for pause_sec in (*pauses_sec, 0.0):
            worker = await self._slot.worker(self._accepts)
            try:
                response = await worker.exchange(_ORDER, _TIMEOUT_SEC, AnswerBound())
            except WorkerLost as lost:
                logger.warning("reference kernel failed", extra={"device": self._device.name, "error": str(lost)})
                reference.miss(time.monotonic())
                return
            reference.take(response.reference.secs, worker.pid, time.monotonic())
            if not reference.has_drifted:
                return
            await asyncio.sleep(pause_sec)

    def _accepts(self, worker: WorkerHandle) -> bool:
        return not worker.has_run_candidates and self._device.accepts(worker)
