"""A device kept for a job: acquired when needed, acquired again when the lease or the agent was lost.

What the job sees is one stream of measurements. A lost lease costs nothing but time: what was not measured is measured
under the next one. When the connection to the agent breaks while a candidate runs, that candidate is the suspect: it
gets DEVICE_FAULTED and is not sent to a device again; the ones behind it are.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fleet.artifacts import Artifact
from fleet.errors import (
    DeviceClosed,
    DeviceFaulted,
    DeviceUnreachable,
    FleetError,
    LeaseExpired,
    LeaseRevoked,
    MeasurementError,
    TrackerUnavailable,
)
from fleet.measuring import ErrorKind, Measurement, Trial

if TYPE_CHECKING:
    from fleet.client.aio import Fleet
    from fleet.client.device import Device


_PAUSES_SEC = (0.2, 0.5, 1, 2, 4, 8, 15, 30)
"""Between tries when a granted device does not answer: its agent is just starting, or really away."""

_CALLS = 3
_LOST = (LeaseExpired, LeaseRevoked, DeviceUnreachable, DeviceClosed, DeviceFaulted, TrackerUnavailable)
"""DeviceClosed is what an agent says that shuts down, TrackerUnavailable one that has not met its tracker since it was
started. For a faulted device its tracker waits, until it is repaired or another one like it is free."""

_NOT_RUN = (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING, ErrorKind.DEVICE_FAULTED)
_SUSPECTED = "the device went away while this candidate ran; it is not tried again"


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
        """Return the device, waiting for one when there is none. It answered a moment ago: what breaks the connection
        next is what is sent next.

        Raises:
            NoMatchingDevice, WaitTimeout: see `Fleet.acquire`.
            DeviceUnreachable, DeviceFaulted: devices were granted again and again for a minute, and none could be used.
        """
        for pause_sec in _PAUSES_SEC:
            try:
                return await self._sit_down()
            except _LOST as error:
                await self._stand_up()
                self._notice(f"{error}; trying again in {pause_sec:g} s")
                await asyncio.sleep(pause_sec)
        return await self._sit_down()

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        """Measure all trials, in order, over as many leases as it takes. One measurement per trial.

        Raises:
            DeviceUnreachable: the device answers, but comes to no result, whatever is tried.
        """
        waiting = deque([*trials[:-1], *(replace(trial, ends_batch=True) for trial in trials[-1:])])
        by_digest = {artifact.digest: artifact for artifact in artifacts}
        fruitless = 0
        while waiting:
            device = await self.device()
            problem, left, has_started = "", len(waiting), False
            try:
                await device.ensure([by_digest[digest] for digest in {trial.artifact_digest for trial in waiting}])
                has_started = True
                async with aclosing(device.measure(list(waiting))) as measurements:
                    async for measurement in measurements:
                        if measurement.error in _NOT_RUN:
                            problem = measurement.error_message or str(measurement.error)
                        if not problem:  # after one that did not run the stream says why, and nothing else that counts
                            waiting.popleft()
                            yield _credible(measurement)
            except (LeaseExpired, LeaseRevoked) as error:
                self._notice(f"lost {device.name} ({error}); waiting for a device to go on")
                await self._stand_up()
                continue
            except _LOST as error:
                self._notice(f"{device.name} went away ({error}); waiting for it to come back")
                await self._stand_up()
                if has_started and not problem and waiting and isinstance(error, DeviceUnreachable):
                    yield _suspect(waiting.popleft())
                problem = str(error)
            if problem and self._device is not None:
                self._notice(f"{device.name} did not run what it was sent ({problem}); waiting for a device to go on")
                await self._stand_up()
            fruitless = fruitless + 1 if len(waiting) == left else 0
            if fruitless == len(_PAUSES_SEC):
                raise DeviceUnreachable(f"{device.name} gave no result in {fruitless} tries: {problem}")
            if fruitless:
                await asyncio.sleep(_PAUSES_SEC[fruitless - 1])

    async def call(
        self, artifact: Artifact, args: Sequence[Any], *, timeout_sec: float = 60.0, is_trusted: bool = True
    ) -> list[Any]:
        """Run an artifact on real arrays, again when the device was lost meanwhile.

        Args:
            is_trusted: False: it may be what breaks the device, so it is not sent to one again.

        Raises:
            MeasurementError: it failed; DEVICE_FAULTED when the device went away while it ran, and it is not trusted.
        """
        problem: FleetError | None = None
        for _ in range(_CALLS):
            device = await self.device()
            has_started = False
            try:
                await device.ensure([artifact])
                has_started = True
                return list(await device.call(artifact, args, timeout_sec=timeout_sec))
            except MeasurementError as error:
                if error.kind != ErrorKind.ARTIFACT_MISSING:
                    raise
                problem = error
            except _LOST as error:
                self._notice(f"lost {device.name} ({error}); waiting for a device to go on")
                await self._stand_up()
                if has_started and not is_trusted and isinstance(error, DeviceUnreachable):
                    raise MeasurementError(_SUSPECTED, ErrorKind.DEVICE_FAULTED) from error
                problem = error
        raise DeviceUnreachable(f"{artifact.path.name} could not be run in {_CALLS} tries: {problem}")

    async def _sit_down(self) -> Device:
        if self._device is None or self._device.ended is not None:
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
        await self._device.open()
        return self._device

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
        error_message=_SUSPECTED,
    )


def _credible(measurement: Measurement) -> Measurement:
    """Return the measurement; an error instead of times that no clock can have shown."""
    times = measurement.run_secs
    if measurement.error is not None or (times and all(math.isfinite(sec) and sec > 0 for sec in times)):
        return measurement
    return replace(
        measurement,
        run_secs=(),
        error=ErrorKind.RUN_FAILED,
        error_message=f"the device reported times that are none: {list(times)[:10]}",
    )
