"""A device for a refresh in idle time: leased for one short batch at a time, and given back to any request of others.

A batch begins after a time without requests of others, if the device is free. Its lease ends after the longest batch in
any case. Between batches the refresh waits here, without a lease and without a place in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeVar

from fleet.artifacts.artifact import Artifact
from fleet.base.clock import Clock
from fleet.building.turns import stepped_aside
from fleet.client.aio import Fleet
from fleet.client.device import Device
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import LeaseClass, LeaseTerms, make_terms
from fleet.domain.measuring import ErrorKind, Measurement, Trial
from fleet.domain.workload import StoredWorkload
from fleet.errors import DeviceUnreachable, MeasurementError, WaitTimeout
from fleet.optimizer.core.events import Checked, Verdict
from fleet.optimizer.refreshing.checks import Checks
from fleet.optimizer.refreshing.idle import DayUse, IdleRules, Interest
from fleet.optimizer.refreshing.idle_files import IdleFiles
from fleet.optimizer.refreshing.plan import Program

T = TypeVar("T")

NOTE = "refresh"
"""Holder of the leases, as others see it."""

_PRIORITY = -100
"""Priority of the requests: below that of all others of the account."""

_IN_QUEUE_SEC = 0.05
"""Wait for a device that another client took first [s]."""

_LOOK_SEC = 0.05
_WAIT_LOOK_SEC = 0.5
_MARGIN_SEC = 0.25
"""Time before the end of a batch in which no trial begins [s]."""

_MOST_BATCHES = 16
"""Batches without a result after which the refresh gives up."""

_OWN_LEASES = 64


class IdleDevice(SteadyDevice):
    """One device, in batches."""

    def __init__(
        self,
        client: Fleet,
        interest: Interest,
        *,
        rules: IdleRules,
        files: IdleFiles,
        clock: Clock,
        is_blocked: Callable[[], bool],
        notice: Callable[[str], None],
    ) -> None:
        """Store the arguments. The first use waits until a batch may begin.

        Args:
            interest: of the device, kept up to date by the caller.
            is_blocked: True while a job waits, or wants the device.
        """
        terms = _terms(interest.device_name, rules)
        super().__init__(client, terms, notice=notice, aside=self._gated)
        self.waits_since_sec: float | None = None
        """Start of the wait for a batch, on the monotonic clock [s]; None: it does not wait."""

        self.has_begun = False
        """True once a batch was wanted: the builds before the first are over."""

        self.cut_count = 0
        """Calls that did not fit into a batch."""

        self._interest = interest
        self._rules = rules
        self._files = files
        self._clock = clock
        self._is_blocked = is_blocked
        self._passed_at, self._round_sec = 0.0, 0.0
        self._fruitless = 0
        self._own_leases: deque[str] = deque(maxlen=_OWN_LEASES)
        self._begun: tuple[float, DayUse] | None = None
        """Start of the batch [s since 1970], and the use before it."""

        self._ending = asyncio.Lock()
        """Held until an ended batch is counted."""

        self._keeper: asyncio.Task[None] | None = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def device(self) -> Device:
        """Return the device; see `SteadyDevice.device`. Wait for the next batch if the current one is nearly over."""
        if not self._is_used and self._rest_sec < self._round_sec:
            await self.give_back()
        while True:
            try:
                found = await super().device()
            except WaitTimeout:  # another client took the device first
                self._interest.wanted_at_sec = self._clock.now_sec()
                continue
            if found.lease.name not in self._own_leases:
                await self._begin(found)
            return found

    async def give_back(self) -> None:
        """End the batch. The next one is requested as a new one."""
        async with self._ending:
            if self._device is not None and self._device.yield_wanted is not None:
                self._interest.wanted_at_sec = self._clock.now_sec()
            await super().give_back()
            self._continues = ""
            begun, self._begun = self._begun, None
            if begun is not None:
                spent_sec = min(time.monotonic() - self._passed_at, self._rules.batch_sec)
                await self._write(begun[1].with_batch(begun[0], spent_sec))

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        """Measure all trials as `SteadyDevice.measure` does, and note their time: the next ones need as much."""
        began_at_sec, waited_sec = time.monotonic(), self.waited_sec
        async with aclosing(super().measure(artifacts, trials)) as found:
            async for measurement in found:
                self._fruitless = 0
                yield measurement
        taken_sec = time.monotonic() - began_at_sec - (self.waited_sec - waited_sec)
        self._round_sec = min(taken_sec, self._rules.batch_sec - _MARGIN_SEC)

    async def _once(self, artifact: Artifact, run: Callable[[Device], Awaitable[T]], *, is_trusted: bool) -> T:
        """Run a function with the device in a batch of its own.

        Raises:
            MeasurementError: it failed, or does not fit into a batch.
        """
        await self.give_back()
        try:
            found = await super()._once(artifact, run, is_trusted=is_trusted)
        except DeviceUnreachable as error:
            self.cut_count += 1
            raise MeasurementError(f"it does not fit into a batch: {error}", ErrorKind.TIMEOUT) from error
        self._fruitless = 0
        return found

    @property
    def _is_used(self) -> bool:
        return bool(self._batches or self._calls)

    @property
    def _rest_sec(self) -> float:
        """Time left of the batch [s]; infinite without one."""
        if self._device is None:
            return float("inf")
        return self._rules.batch_sec - _MARGIN_SEC - (time.monotonic() - self._passed_at)

    async def _begin(self, device: Device) -> None:
        """Count a whole batch before it begins, so that a killed process has counted it."""
        self._own_leases.append(device.lease.name)
        self._fruitless += 1
        if self._fruitless > _MOST_BATCHES:
            raise DeviceUnreachable(f"{device.name} gave no result in {_MOST_BATCHES} batches")
        used = await asyncio.to_thread(self._files.use, self._interest.device_name)
        self._begun = (self._clock.now_sec(), used)
        await self._write(used.with_batch(self._begun[0], self._rules.batch_sec))
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep(device), name="end idle batch")

    async def _write(self, use: DayUse) -> None:
        await asyncio.to_thread(self._files.write_use, self._interest.device_name, use)

    async def _keep(self, device: Device) -> None:
        """End a batch when it is over, unused, or in the way of a request."""
        wanted_at_sec, is_used = self._interest.wanted_at_sec, True
        while self._device is device:
            await asyncio.sleep(_LOOK_SEC)
            if self._interest.wanted_at_sec > wanted_at_sec or self._rest_sec <= 0:
                for batch in self._batches:
                    batch.give_way()
            was_used, is_used = is_used, self._is_used
            if not (was_used or is_used):
                await self._leave(device)

    @asynccontextmanager
    async def _gated(self) -> AsyncIterator[None]:
        """Give the cores up, and wait until a batch may begin."""
        async with stepped_aside():
            self.has_begun, self.waits_since_sec = True, time.monotonic()
            try:
                await self._until_idle()
            finally:
                self.waits_since_sec = None
            self._passed_at = time.monotonic()
            yield

    async def _until_idle(self) -> None:
        used = await asyncio.to_thread(self._files.use, self._interest.device_name)
        while True:
            now_sec = self._clock.now_sec()
            at_sec = self._rules.may_begin_at(self._interest.last_sec(self._own_leases), used)
            if at_sec <= now_sec and self._interest.is_free and not self._is_blocked():
                return
            await asyncio.sleep(min(max(at_sec - now_sec, _LOOK_SEC), _WAIT_LOOK_SEC))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleChecks:
    """Checks in batches. Programs of a workload that does not fit into one get no verdict."""

    checks: Checks
    device: IdleDevice

    async def check(
        self, workload: StoredWorkload, programs: Mapping[str, Program], claims: Mapping[str, float]
    ) -> dict[str, Checked]:
        cut_count = self.device.cut_count
        found = await self.checks.check(workload, programs, claims)
        if self.device.cut_count == cut_count:
            return found
        return {
            name: replace(one, verdict=Verdict.LOST, message="its check is too long") for name, one in found.items()
        }


async def follow(client: Fleet, interest: Interest, clock: Clock) -> None:
    """Keep the interest in a device up to date, until cancelled."""
    async with aclosing(client.watch()) as views:
        async for seen in views:
            interest.note(seen, clock.now_sec())


def _terms(device_name: str, rules: IdleRules) -> LeaseTerms:
    return make_terms(
        f"name={device_name.removeprefix('devices/')}",
        lease_class=LeaseClass.BATCH,
        priority=_PRIORITY,
        max_sec=rules.batch_sec,
        wait_timeout_sec=_IN_QUEUE_SEC,
        purpose="refresh the library",
    )
