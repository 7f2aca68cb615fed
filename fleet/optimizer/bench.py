"""A device of a job, and what is done on it: one batch after the other.

Where the device has a machine of its own, the next batch is sent when the last result of the one before has come, while
that is still stored and checked. Its own results are applied after all that follows from the batch before: to the job,
a device measures one batch after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from fleet.base.tasks import stopped
from fleet.client.steady import SteadyDevice
from fleet.optimizer.checker import Checker
from fleet.optimizer.core.events import Measure, Measured, MeasureEnded
from fleet.optimizer.measurer import Measurer

Outcomes = AsyncGenerator[Measured | MeasureEnded, None]


@dataclass(slots=True, kw_only=True)
class Bench:
    """One device."""

    device: SteadyDevice
    measurer: Measurer
    checker: Checker
    users: int = 0
    """Tasks that measure on it now."""

    applying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for the batch whose results are applied."""

    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of two batches on the device at a time, nobody could say which one broke it."""

    async def measure(self, measure: Measure) -> Outcomes:
        """Measure, when nothing else is. When the end is told, the next batch may be sent."""
        end: MeasureEnded | None = None
        async with self._sending, aclosing(self.measurer.measure(measure)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, MeasureEnded):
                    end = outcome
                else:
                    yield outcome
        if end is not None:
            yield end

    async def until_free(self) -> None:
        """Wait until nothing is measured."""
        async with self._sending:
            pass

    @asynccontextmanager
    async def measuring_ahead(self, measure: Measure) -> AsyncIterator[AsyncIterator[Measured | MeasureEnded]]:
        """Measure, and give the results once those of the batch before are applied."""
        found: asyncio.Queue[Measured | MeasureEnded | None] = asyncio.Queue()
        sending = asyncio.create_task(self._fill(found, measure), name="measure ahead")
        try:
            async with self.applying:
                yield _until_none(found)
                await sending  # raises what ended it
        finally:
            await stopped(sending)

    async def _fill(self, found: asyncio.Queue[Measured | MeasureEnded | None], measure: Measure) -> None:
        try:
            async with aclosing(self.measure(measure)) as outcomes:
                async for outcome in outcomes:
                    found.put_nowait(outcome)
        finally:
            found.put_nowait(None)


async def _until_none(found: asyncio.Queue[Measured | MeasureEnded | None]) -> AsyncIterator[Measured | MeasureEnded]:
    while (outcome := await found.get()) is not None:
        yield outcome
