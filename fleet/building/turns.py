"""Assigns the cores to builds or measurements, never to both at once on one machine.

A timing taken beside a busy compiler is worthless. On a machine that both builds and measures, the two sides take
turns, in the order of their requests; measurements on another machine do not wait. Two processors of
one machine are the same cores by two names: a measurement on a processor is exclusive.

A task gives up its turn while it waits for a lease, whose holder may need one: see `stepped_aside`.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Self

from cross.targets.target import parse_target
from fleet.base.machine import machine_fingerprint
from fleet.building.machine_turns import MachineTurns, Side
from fleet.domain.devices import Inventory


class Cores:
    """The cores of this machine: a lock that one side at a time holds, shared by the tasks of this process.

    Members of a side share it, unless they measure alone; once another side asks, it goes next.
    """

    def __init__(self, machine: MachineTurns | None = None) -> None:
        """Take no turn yet.

        Args:
            machine: takes turns with other processes; None: there are no others.
        """
        self._machine = machine
        self._side: Side | None = None
        self._members = 0
        self._waiting: deque[tuple[Side, asyncio.Event]] = deque()

    @asynccontextmanager
    async def turn(self, side: Side) -> AsyncIterator[None]:
        """Hold the cores for one side."""
        await self._enter(side)
        try:
            async with self._machine.turn(side) if self._machine is not None else nullcontext():
                yield
        finally:
            self._leave()

    async def _enter(self, side: Side) -> None:
        if not self._waiting and self._may_join(side):
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
        while self._waiting and self._may_join(self._waiting[0][0]):
            side, event = self._waiting.popleft()
            self._side = side
            self._members += 1
            event.set()

    def _may_join(self, side: Side) -> bool:
        return self._side is None or (self._side is side and side is not Side.MEASURING_ALONE)


class _Turn:
    """The turn of one task, which can be suspended."""

    def __init__(self, cores: Cores, side: Side) -> None:
        self.task = asyncio.current_task()
        self._cores = cores
        self._side = side
        self._stack = AsyncExitStack()

    async def enter(self) -> None:
        await self._stack.enter_async_context(self._cores.turn(self._side))

    async def leave(self) -> None:
        await self._stack.aclose()


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


@asynccontextmanager
async def stepped_aside() -> AsyncIterator[None]:
    """Suspend this task's turn, if it has one, while it waits: the awaited task may need the cores.

    Prevents a deadlock: one task holds a lease and waits for the cores while another holds the cores and waits for that
    lease.
    After an error the turn is not taken again.
    """
    turn = _turn.get()
    if turn is None or turn.task is not asyncio.current_task():
        yield
        return
    await turn.leave()
    yield
    await turn.enter()


class Turns:
    """The turns of one job."""

    def __init__(
        self, *, shares_cores: bool, cores: Cores | None = None, hosts: AbstractSet[str] = frozenset()
    ) -> None:
        """Take no turn yet.

        Args:
            shares_cores: the job's first device is on a machine that builds: it cannot build and measure at once.
            cores: shared with others of this process; None: with nobody.
            hosts: fingerprints of other machines that build for the job.
        """
        self.shares_cores = shares_cores
        self.cores = cores or Cores()
        self._hosts = hosts

    @classmethod
    def of_this_machine(cls) -> Self:
        """Return the turns of a process that has no other jobs."""
        return cls(shares_cores=True, cores=Cores(MachineTurns.of_this_machine()))

    @asynccontextmanager
    async def building(self) -> AsyncIterator[None]:
        """Hold the cores for building, wherever the device is."""
        async with _taken(self.cores, Side.BUILDING):
            yield

    def are_ours(self, inventory: Inventory) -> bool:
        """Tell whether a device runs on the cores of a machine that builds for the job."""
        return inventory.host_fingerprint in {_here(), *self._hosts}

    @asynccontextmanager
    async def measuring(self, inventory: Inventory | None = None) -> AsyncIterator[None]:
        """Hold the cores for measuring, if the device is on a building machine.

        Args:
            inventory: of the very device, since boards of one model may be on several machines; None: the processors
                of this machine.
        """
        if inventory is not None and not self.are_ours(inventory):
            yield
            return
        is_alone = inventory is None or _is_processor(inventory)
        async with _taken(self.cores, Side.MEASURING_ALONE if is_alone else Side.MEASURING):
            yield


_here = functools.cache(machine_fingerprint)


def _is_processor(inventory: Inventory) -> bool:
    """Tell whether kernels run on the machine's own cores. An emulator is too slow to be disturbed."""
    return not inventory.is_simulated and parse_target(inventory.target_json).is_processor


@asynccontextmanager
async def _taken(cores: Cores, side: Side) -> AsyncIterator[None]:
    turn, before = _Turn(cores, side), _turn.get()
    await turn.enter()
    _turn.set(turn)
    try:
        yield
    finally:
        _turn.set(before)
        await turn.leave()
