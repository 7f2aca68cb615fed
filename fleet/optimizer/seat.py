"""A device kept for a job: acquired when needed, acquired again when the lease or the agent was lost.

What the job sees is one stream of measurements. A lost lease costs nothing but time: what was not measured is measured
under the next one. When the connection to the agent breaks while a candidate runs, that candidate is the suspect: it
gets DEVICE_FAULTED and is not sent to a device again; the ones behind it are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fleet.artifacts import Artifact
from fleet.errors import DeviceUnreachable, LeaseExpired, LeaseRevoked, TrackerUnavailable
from fleet.measuring import ErrorKind, Measurement, Trial

if TYPE_CHECKING:
    from fleet.client.aio import Fleet
    from fleet.client.device import Device


_PAUSES_SEC = (0.2, 0.5, 1, 2, 4, 8, 15, 30)
"""Between tries when a granted device does not answer: its agent is just starting, or really away."""


class Seat:
    """One device at a time for one job."""

    def __init__(
        self,
        client: Fleet,
        selector: str,
        *,
        purpose: str,
        priority: int = 0,
        wait_timeout_sec: float | None = None,
        notice: Callable[[str], None] = lambda text: None,
        on_queued: Callable[..., None] | None = None,
    ) -> None:
        self._client = client
        self._selector = selector
        self._purpose = purpose
        self._priority = priority
        self._wait_timeout_sec = wait_timeout_sec
        self._notice = notice
        self._on_queued = on_queued
        self._stack = AsyncExitStack()
        self._device: Device | None = None

    async def __aenter__(self) -> Seat:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stand_up()

    async def device(self) -> Device:
        """Return the device, waiting for one when there is none.

        Raises:
            NoMatchingDevice, WaitTimeout, TrackerUnavailable: see `Fleet.acquire`.
            DeviceUnreachable: devices were granted again and again for a minute, and none answered.
        """
        if self._device is not None and self._device.ended is None:
            return self._device
        for pause_sec in _PAUSES_SEC:
            try:
                return await self._sit_down()
            except (DeviceUnreachable, TrackerUnavailable) as error:
                self._notice(f"{error}; trying again in {pause_sec:g} s")
                await asyncio.sleep(pause_sec)
        return await self._sit_down()

    async def _sit_down(self) -> Device:
        await self._stand_up()
        self._device = await self._stack.enter_async_context(
            self._client.acquire(
                self._selector,
                priority=self._priority,
                wait_timeout_sec=self._wait_timeout_sec,
                purpose=self._purpose,
                on_queued=self._on_queued,
            )
        )
        self._stay_alike(self._device)
        return self._device

    async def measure(self, artifacts: Sequence[Artifact], trials: Sequence[Trial]) -> AsyncIterator[Measurement]:
        """Measure all trials, in order, over as many leases as it takes. One measurement per trial."""
        waiting = list(trials)
        by_digest = {artifact.digest: artifact for artifact in artifacts}
        while waiting:
            device = await self.device()
            has_started = False
            try:
                await device.ensure([by_digest[digest] for digest in {trial.artifact_digest for trial in waiting}])
                has_started = True
                async for measurement in device.measure(list(waiting)):
                    if measurement.error in (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING):
                        break
                    waiting.pop(0)
                    yield measurement
            except (LeaseExpired, LeaseRevoked) as error:
                self._notice(f"lost {device.name} ({error}); waiting for a device to go on")
                await self._stand_up()
            except DeviceUnreachable as error:
                self._notice(f"{device.name} went away ({error}); waiting for it to come back")
                await self._stand_up()
                if has_started and waiting:
                    yield _suspect(waiting.pop(0))

    async def call(self, artifact: Artifact, args: Sequence[Any], *, timeout_sec: float = 60.0) -> list[Any]:
        """Run an artifact on real arrays, once more when the lease was lost meanwhile."""
        for _ in range(3):
            device = await self.device()
            try:
                await device.ensure([artifact])
                return list(await device.call(artifact, args, timeout_sec=timeout_sec))
            except (LeaseExpired, LeaseRevoked, DeviceUnreachable) as error:
                self._notice(f"lost {device.name} ({error}); waiting for a device to go on")
                await self._stand_up()
        raise DeviceUnreachable(f"three devices in a row were lost while running {artifact.path.name}")

    def _stay_alike(self, device: Device) -> None:
        """From now on only devices of the same model will do: times of different boards do not compare."""
        model = device.inventory.labels.get("model")
        own = f"model={model}" if model else f"name={device.name.removeprefix('devices/')}"
        if own not in self._selector.split(","):
            self._selector = own if self._selector == "*" else f"{self._selector},{own}"

    async def _stand_up(self) -> None:
        self._device = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


def _suspect(trial: Trial) -> Measurement:
    return Measurement(
        candidate_id=trial.candidate_id,
        error=ErrorKind.DEVICE_FAULTED,
        error_message="the device went away while this candidate ran; it is not tried again",
    )
