"""One device of a job, which measures one batch after the other.

Where the device has a machine of its own, the next batch is sent when the one before is nearly measured, so that it
waits for no round trip. Its results are applied after all that follows from the batch before: to the job, a device
measures one batch after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from fleet.base.tasks import stopped
from fleet.client.line import TrialLine
from fleet.client.steady import SteadyDevice
from fleet.optimizer.checker import Checker
from fleet.optimizer.core.events import Measure, Measured, MeasureEnded
from fleet.optimizer.measurer import Measurer

Outcomes = AsyncGenerator[Measured | MeasureEnded, None]

_NEARLY = 2
"""Number of a batch's remaining trials at which the next one is sent: they take as long as its transfer."""


@dataclass(slots=True, kw_only=True)
class DeviceLane:
    """One device of a job."""

    device: SteadyDevice
    measurer: Measurer
    checker: Checker
    users: int = 0
    """Tasks that measure on it now."""

    applying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for the batch with results that are being applied."""

    _unused: asyncio.Event = field(default_factory=asyncio.Event)
    _line: TrialLine = field(init=False)
    _in_line: int = 0
    """Batches in the line that have not ended."""

    _line_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the batch after which none may be sent yet."""

    def __post_init__(self) -> None:
        self._line = TrialLine(self.device)
        self._line_ended.set()
        self._unused.set()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a task that measures on the device."""
        self.users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self._unused.set()

    async def until_unused(self) -> None:
        """Wait until no task measures on the device."""
        await self._unused.wait()

    async def measure(self, measure: Measure) -> Outcomes:
        """Measure exclusively. When the end has been reported, the next batch may be sent."""
        end: MeasureEnded | None = None
        async with self._sending:
            await self._line_ended.wait()
            async with aclosing(self.measurer.measure(measure)) as outcomes:
                async for outcome in outcomes:
                    if isinstance(outcome, MeasureEnded):
                        end = outcome
                    else:
                        yield outcome
        if end is not None:
            yield end

    async def until_free(self) -> None:
        """Wait until the next batch may be sent."""
        async with self._sending:
            pass

    @asynccontextmanager
    async def measuring_ahead(self, measure: Measure) -> AsyncIterator[Outcomes]:
        """Measure, and return the results once those of the previous batch are applied."""
        found: asyncio.Queue[Measured | MeasureEnded | None] = asyncio.Queue()
        sending = asyncio.create_task(self._fill(found, measure), name="measure ahead")
        try:
            async with self.applying:
                yield _until_none(found)
                await sending  # raises the error that ended it
        finally:
            await stopped(sending)

    async def _fill(self, found: asyncio.Queue[Measured | MeasureEnded | None], measure: Measure) -> None:
        try:
            async with aclosing(self._measure_in_line(measure)) as outcomes:
                async for outcome in outcomes:
                    found.put_nowait(outcome)
        finally:
            found.put_nowait(None)

    async def _measure_in_line(self, measure: Measure) -> Outcomes:
        """Measure after the batch that is nearly finished, unless candidates crash: it may be the device's last."""
        left = len(measure.trials)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._sending)
            self._in_line += 1
            self._line_ended.clear()
            try:
                async with aclosing(self.measurer.measure(measure, self._line)) as outcomes:
                    async for outcome in outcomes:
                        left -= 1
                        if left <= _NEARLY and self.measurer.is_calm:
                            await held.aclose()
                        yield outcome
            finally:
                self._in_line -= 1
                if not self._in_line:
                    self._line_ended.set()


async def _until_none(found: asyncio.Queue[Measured | MeasureEnded | None]) -> Outcomes:
    while (outcome := await found.get()) is not None:
        yield outcome
