"""Continues measurements across lost leases: acquires a device when needed, and again after a loss.

Handles trials when a lease or a device is lost:

- A lease that merely ended costs nothing: trials without a result are measured under the next lease.
- A trial that a device refuses (it is faulted, closing, or lost the artifact) is measured once a device accepts it.
- A lease that has to give way is given back after the trial under way. The others are measured under the next lease.
- When the connection to the agent breaks, the candidate that was running is the suspect: it gets DEVICE_FAULTED and is
  not sent to a device again. Those that had not begun are measured elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from fleet.artifacts.artifact import Artifact
from fleet.client.batch import LOST, SUSPECTED, Batch, gives_way
from fleet.client.trial_queue import QueuedTrial, TrialQueue, queued_batch
from fleet.domain.devices import Inventory
from fleet.domain.leases import LeaseTerms, make_terms
from fleet.domain.measuring import ErrorKind, Measurement, Trial
from fleet.domain.proving import Proof, ProofArgument
from fleet.domain.selectors import Condition, Selector
from fleet.errors import (
    DeviceUnreachable,
    FleetError,
    MeasurementError,
)

if TYPE_CHECKING:
    from fleet.client.aio import Fleet
    from fleet.client.arrays import Array
    from fleet.client.device import Device
    from fleet.client.leases import OnQueued

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAUSES_SEC = (0.2, 0.5, 1, 2, 4, 8, 15, 30)
"""Pauses between tries when a granted device does not answer: its agent may be starting, or really be away."""

_CALLS = 3
_A_MOMENT_SEC = 0.2
"""An agent that answered so recently needs no check of its presence: over a network that would cost a round trip."""

_SENT_AHEAD = 256
"""Trials under way to a device that is not shared, and artifacts uploaded together."""


class Courier(Protocol):
    """Delivers artifacts from other machines."""

    async def bring(self, artifacts: Sequence[Artifact], device: Device) -> None:
        """Have artifacts delivered to the device's agent, or to this machine.

        Raises:
            ArtifactRefused: see `Device.ensure`; or one of them is nowhere any more.
        """
        ...


class SteadyDevice:
    """One device at a time, held over as many leases as necessary. Several tasks of one event loop may use it."""

    def __init__(
        self,
        client: Fleet,
        terms: LeaseTerms,
        *,
        stays_alike: bool = True,
        ahead: int = _SENT_AHEAD,
        pauses_sec: Sequence[float] = PAUSES_SEC,
        courier: Courier | None = None,
        notice: Callable[[str], None] = lambda text: logger.warning("device lost", extra={"reason": text}),
        on_queued: OnQueued | None = None,
        aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        """Store the arguments. The first use acquires a lease.

        Args:
            stays_alike: after the first device, accept only others of its model, since times of different boards do not
                compare.
            ahead: how many trials are sent before the first has a result.
            courier: brings artifacts that lie on other machines; None: there are none.
            pauses_sec: pauses between tries without any result; give up after this many tries.
            notice: called with each message that a user should not miss.
            aside: entered while waiting for a device: releases resources that others may need until then.
        """
        self._aside = aside
        self.client = client
        self._terms = terms
        self._stays_alike = stays_alike
        self._ahead = ahead
        self._pauses_sec = tuple(pauses_sec)
        self._courier = courier
        self._notice = notice
        self._on_queued = on_queued
        self._stack = AsyncExitStack()
        self._device: Device | None = None
        self._last_name = ""
        self._last_lease_name = ""
        self._last_inventory = Inventory()
        self._continues = ""
        """Name of the last lease if it gave way."""

        self._batches: set[Batch] = set()
        """Batches of trials under way."""

        self._calls = 0
        """Number of calls under way."""

        self._giving_way: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._answered_at = -math.inf
        """Time of the held device's last message, on the monotonic clock."""

        self._waiters, self._wait_began_at, self._waited_sec = 0, 0.0, 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.give_back()

    @property
    def name(self) -> str:
        """Name of the device held now; empty when there is none."""
        return self._device.name if self._device is not None else ""

    @property
    def last_name(self) -> str:
        """Name of the device held now, or else of the one that was held last; empty before the first."""
        return self.name or self._last_name

    @property
    def last_lease_name(self) -> str:
        """Name of the lease held now, or else of the last one; empty before the first."""
        return self._last_lease_name

    @property
    def last_inventory(self) -> Inventory:
        """Inventory of the device leased last; empty before the first lease."""
        return self._last_inventory

    @property
    def waited_sec(self) -> float:
        """Total time of waiting for a device, up to now [s]."""
        return self._waited_sec + (time.monotonic() - self._wait_began_at if self._waiters else 0.0)

    async def device(self) -> Device:
        """Return the device, acquiring one if there is none. It answered a moment ago, so if the connection breaks
        next, the next message is to blame.

        Raises:
            NoMatchingDevice, WaitTimeout: see `Fleet.acquire`.
            DeviceUnreachable, DeviceFaulted: for a minute, devices were granted but none could be used.
        """
        async with self._opening:
            for pause_sec in self._pauses_sec:
                try:
                    return await self._open_device()
                except LOST as error:
                    await self.give_back()
                    self._notice(f"{error}; trying again in {pause_sec:g} s")
                    await self._pause(pause_sec)
            return await self._open_device()

    def bid(self, worth: float) -> None:
        """Set the current value of a second of the device, for the next request and against bids of others."""
        self._terms = make_terms(self._terms, bid=worth)

    @property
    def is_outbid(self) -> bool:
        """True if a request of the same account waits for the held device, with a bid above this one's."""
        return self._device is not None and self._device.outbid > self._terms.bid

    async def give_back(self) -> None:
        """Release the lease, if there is one. The next measurement acquires another."""
        if self._device is not None and self._device.yield_wanted is not None:
            self._continues = self._device.lease.name
        self._last_name, self._device, self._answered_at = self.last_name, None, -math.inf
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _leave(self, device: Device) -> None:
        """Release a lost device, unless another task has already done so."""
        if self._device is device:
            await self.give_back()

    async def send_ahead(self, artifacts: Sequence[Artifact]) -> None:
        """Upload artifacts that will be measured soon, if there is a device. Failures here recur, and are reported,
        when the trials are measured."""
        if self._device is not None and self._device.ended is None:
            with contextlib.suppress(FleetError):
                await self._ensure(self._device, artifacts)

    async def measure(
        self, artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> AsyncGenerator[Measurement, None]:
        """Measure all trials, in order, over as many leases as necessary. One measurement per trial.

        Raises:
            DeviceUnreachable: the device answers but never gives a result.
        """
        async with aclosing(self.drain(TrialQueue(queued_batch(artifacts, trials)))) as results:
            async for _, measurement in results:
                yield measurement

    async def drain(self, queue: TrialQueue) -> AsyncGenerator[tuple[QueuedTrial, Measurement], None]:
        """Measure the trials of a queue until it is idle for too long. Trials without a result go back.

        Raises:
            DeviceUnreachable: see `measure`.
        """
        fruitless = 0
        while await queue.wait_idle():
            device = await self.device()
            batch = Batch(device, queue, self._ahead, partial(self._ensure, device))
            count = 0
            self._batches.add(batch)
            try:
                async with aclosing(batch.results()) as results:
                    async for result in results:
                        count += 1
                        if not batch.problem:
                            self._answered_at = time.monotonic()
                        yield result
            finally:
                self._batches.discard(batch)
            if batch.problem:
                self._notice(batch.notice)
                await self._leave(device)
            if count:
                fruitless = 0
            elif batch.is_fruitless:
                fruitless += 1
                if fruitless >= len(self._pauses_sec):
                    raise DeviceUnreachable(f"{device.name} gave no result in {fruitless} tries: {batch.problem}")
                await self._pause(self._pauses_sec[fruitless - 1])

    async def call(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        timeout_sec: float = 60.0,
        is_trusted: bool = True,
        is_apart: bool = False,
    ) -> list[Array]:
        """Run an artifact on real arrays; retry if the device is lost.

        Args:
            is_trusted: if False, the artifact is not retried after losing the device, which it may have broken.
            is_apart: see Device.call.

        Raises:
            MeasurementError: it failed; DEVICE_FAULTED when the device went away while it ran, and it is not trusted.
        """

        async def run(device: Device) -> list[Array]:
            return await device.call(artifact, args, timeout_sec=timeout_sec, is_apart=is_apart)

        return await self._once(artifact, run, is_trusted=is_trusted)

    async def prove(
        self, artifact: Artifact, args: Sequence[ProofArgument], claimed_sec: float, *, answers: int = 2
    ) -> Proof:
        """Prove the time of an artifact, see Device.prove. Not retried once it has started: it may break the device.

        Raises:
            MeasurementError: of kind DEVICE_FAULTED, if the device is lost during the proof.
            InvalidRequest: see Device.prove.
        """

        async def run(device: Device) -> Proof:
            return await device.prove(artifact, args, claimed_sec, answers=answers)

        return await self._once(artifact, run, is_trusted=False)

    async def _once(self, artifact: Artifact, run: Callable[[Device], Awaitable[T]], *, is_trusted: bool) -> T:
        """Upload an artifact and run a function with its device; retry if the device is lost."""
        problem: FleetError | None = None
        for _ in range(_CALLS):
            device = await self.device()
            has_started = False
            try:
                self._calls += 1
                await self._ensure(device, [artifact])
                has_started = True
                return await run(device)
            except MeasurementError as error:
                if error.kind is not ErrorKind.ARTIFACT_MISSING:
                    raise
                problem = error
            except LOST as error:
                self._notice(f"lost {device.name} ({error}); waiting for a device to go on")
                await self._leave(device)
                if has_started and not is_trusted and isinstance(error, DeviceUnreachable):
                    raise MeasurementError(SUSPECTED, ErrorKind.DEVICE_FAULTED) from error
                problem = error
            finally:
                self._calls -= 1
                await self._give_way()
        raise DeviceUnreachable(f"{artifact.path.name} could not be run in {_CALLS} tries: {problem}")

    def _yield_wanted(self) -> None:
        """Give the device back soon: after the trial or call under way."""
        for batch in self._batches:
            batch.give_way()
        if not self._batches:
            self._giving_way = asyncio.create_task(self._give_way(), name="give a device back")

    async def _give_way(self) -> None:
        """Give the device back if it has to give way and is not in use."""
        device, is_used = self._device, bool(self._calls or self._batches)
        if device is not None and device.yield_wanted is not None and not is_used:
            self._notice(gives_way(device))
            await self._leave(device)

    async def _ensure(self, device: Device, artifacts: Sequence[Artifact]) -> None:
        if self._courier is not None:
            await self._courier.bring(artifacts, device)
        await device.ensure(artifacts)

    async def _open_device(self) -> Device:
        if self._device is None or self._device.ended is not None:
            await self.give_back()
            with self._waiting():
                async with self._aside():
                    self._device = await self._stack.enter_async_context(
                        self.client.acquire(self._terms, on_queued=self._on_queued, continues=self._continues)
                    )
            self._continues, self._last_inventory = "", self._device.inventory
            self._last_lease_name = self._device.lease.name
            self._device.watch_yield(self._yield_wanted)
            logger.info("leased a device", extra={"device": self._device.name})
            if self._stays_alike:
                self._terms = self._terms.within(alike(self._device))
        device = self._device
        if time.monotonic() - self._answered_at > _A_MOMENT_SEC:
            await device.open()
            self._answered_at = time.monotonic()
        return device if self._device is device else await self._open_device()  # it had to give way meanwhile

    async def _pause(self, sec: float) -> None:
        with self._waiting():
            async with self._aside():
                await asyncio.sleep(sec)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        if not self._waiters:
            self._wait_began_at = time.monotonic()
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._waited_sec += time.monotonic() - self._wait_began_at


def alike(device: Device) -> Selector:
    """Return a selector of devices of the same model, whose times are comparable; of the device itself if it has no
    model.
    """
    model = device.inventory.labels.get("model")
    key, value = ("model", model) if model else ("name", device.name.removeprefix("devices/"))
    return Selector((Condition(key, (value,)),))
