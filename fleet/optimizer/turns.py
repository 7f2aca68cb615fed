"""Decides who may use the cores: builds or measurements, never both on one machine.

A timing taken beside a busy compiler is worthless. On a machine that both builds and measures, the two sides take
turns, in the order in which they asked; if the device is on another machine, nobody waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

Side = Literal["building", "measuring"]


class Turns:
    """A lock for one side at a time. Members of a side share it; once the other side asks, it goes next."""

    def __init__(self, *, shares_cores: bool) -> None:
        self.shares_cores = shares_cores
        """Whether anybody waits at all."""

        self._side: Side | None = None
        self._members = 0
        self._waiting: deque[tuple[Side, asyncio.Event]] = deque()

    @asynccontextmanager
    async def building(self) -> AsyncIterator[None]:
        """Hold the cores for building."""
        async with self._turn("building"):
            yield

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Hold the cores for measuring."""
        async with self._turn("measuring"):
            yield

    @asynccontextmanager
    async def _turn(self, side: Side) -> AsyncIterator[None]:
        if not self.shares_cores:
            yield
            return
        await self._enter(side)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, side: Side) -> None:
        if self._side in (None, side) and not self._waiting:
            self._side = side
            self._members += 1
            return
        ticket = (side, asyncio.Event())
        self._waiting.append(ticket)
        try:
            await ticket[1].wait()
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._admit()
            else:  # admitted and cancelled at the same moment: pass the turn on
                self._leave()
            raise

    def _leave(self) -> None:
        self._members -= 1
        self._admit()

    def _admit(self) -> None:
        if self._members == 0:
            self._side = None
        while self._waiting and self._side in (None, self._waiting[0][0]):
            side, event = self._waiting.popleft()
            self._side = side
            self._members += 1
            event.set()
