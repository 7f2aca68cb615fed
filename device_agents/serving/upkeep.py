"""Upkeep of one device by its owner's hooks: before and after each lease, and power cycles after a fault.

`before_lease` ends before the holder can use the device. `after_lease` runs once nothing of the lease is running, and
before the next `before_lease`. A hook that fails faults the device, until a power cycle or for ten minutes: the next
lease tries again, and the tracker quarantines a device after three leases in a row with a fault.

A faulted device is power cycled at most three times a day. The count is on disk before the command starts, so it holds
if the command ends the agent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from device_agents.driver import Health
from device_agents.hooks import NO_HOOKS, Hook, Hooks
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.hook_run import NO_LEASE, LeaseNames, run_hook
from device_agents.serving.timing import USUAL, Timing
from fleet.errors import DeviceFaulted

logger = logging.getLogger(__name__)

RunHook: TypeAlias = Callable[[Hook, str, LeaseNames], Awaitable[str]]

MAX_CYCLES = 3
_DAY_SEC = 86_400.0
_CLOSE_SEC = 10.0
"""An agent that was asked to end has twice as long."""


class Upkeep:
    """Hooks of one device, run one at a time."""

    def __init__(
        self,
        device_name: str,
        hooks: Hooks = NO_HOOKS,
        notes: HookNotes | None = None,
        *,
        timing: Timing = USUAL,
        run: RunHook = run_hook,
    ) -> None:
        self.cycles = 0
        """Successful power cycles since the agent started. Workers that started before the last one are replaced."""

        self.recoveries = 0
        """Ends of faults: power cycles, and those of failed hooks by time."""

        self._device_name = device_name
        self._hooks = hooks
        self._notes = notes or HookNotes()
        self._timing = timing
        self._run = run
        self._turn = asyncio.Lock()
        self._fault, self._faulted_at_sec = "", 0.0
        self._is_cycling = False
        self._watching: asyncio.Task[None] | None = None
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def fault(self) -> str:
        """Why the device takes no lease; empty if it does."""
        if self._fault and time.monotonic() - self._faulted_at_sec >= self._timing.hook_fault_sec:
            self._fault, self.recoveries = "", self.recoveries + 1
        if self._is_cycling:
            return f"it is being power cycled after a fault{f': {self._fault}' if self._fault else ''}"
        return self._fault

    async def begin_lease(self, lease: LeaseNames) -> None:
        """Prepare the device for a lease.

        Raises:
            DeviceFaulted: a hook failed.
        """
        note = self._notes.of(self._device_name)
        async with self._turn:
            if note.lease_name:
                await self._clean_up()
            if self._hooks.after_lease is not None:
                note.lease_name, note.holder = lease.lease_name, lease.holder
                self._notes.write()
            if not self.fault:
                await self._try(self._hooks.before_lease, lease)
        if self.fault:
            raise DeviceFaulted(f"{self._device_name}: {self.fault}")

    def end_lease(self) -> None:
        """Clean up after a lease in the background, once nothing of it is running."""
        if not self._notes.of(self._device_name).lease_name:
            return
        cleaning = asyncio.create_task(self._clean_up_in_turn(), name=f"after-lease-{self._device_name}")
        self._cleaning.add(cleaning)
        cleaning.add_done_callback(self._cleaning.discard)

    def watch(
        self, health: Callable[[], Awaitable[Health]], turn: Callable[[], AbstractAsyncContextManager[object]]
    ) -> None:
        """Start to clean up after a lease of an earlier run of the agent, and to power cycle the device after faults.

        Args:
            health: of the device.
            turn: is held while the device is power cycled, so that no candidate runs.
        """
        self.end_lease()
        if self._hooks.power_cycle is not None:
            watching = self._watch(self._hooks.power_cycle, health, turn)
            self._watching = asyncio.create_task(watching, name=f"power-cycle-{self._device_name}")

    async def close(self) -> None:
        """Clean up after a lease, for ten seconds at most: the rest is noted for the next start. Idempotent."""
        self.stop()
        if self._cleaning:
            await asyncio.wait(self._cleaning, timeout=_CLOSE_SEC)
        tasks = [*self._cleaning, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Power cycle the device no more. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()

    async def _clean_up_in_turn(self) -> None:
        async with self._turn:
            await self._clean_up()

    async def _clean_up(self) -> None:
        note = self._notes.of(self._device_name)
        if not note.lease_name:
            return
        lease = LeaseNames(lease_name=note.lease_name, holder=note.holder)
        await self._try(self._hooks.after_lease, lease)
        note.lease_name = note.holder = ""
        self._notes.write()

    async def _try(self, hook: Hook | None, lease: LeaseNames) -> None:
        """Run a hook, and fault the device if it fails."""
        reason = await self._run(hook, self._device_name, lease) if hook is not None else ""
        if reason:
            self._fault, self._faulted_at_sec = reason, time.monotonic()
            logger.warning("a hook failed", extra={"device": self._device_name, "reason": reason})

    async def _watch(
        self,
        hook: Hook,
        health: Callable[[], Awaitable[Health]],
        turn: Callable[[], AbstractAsyncContextManager[object]],
    ) -> None:
        while True:
            await asyncio.sleep(self._timing.health_sec)
            if (await health()).is_healthy:
                continue
            if not self._count_cycle():
                await asyncio.sleep(self._timing.settle_sec)
                continue
            self._is_cycling = True
            try:
                async with turn(), self._turn:
                    reason = await self._run(hook, self._device_name, NO_LEASE)
                if reason:
                    self._fault, self._faulted_at_sec = reason, time.monotonic()
                else:
                    self._fault, self.cycles, self.recoveries = "", self.cycles + 1, self.recoveries + 1
            finally:
                self._is_cycling = False
            logger.warning("power cycled after a fault", extra={"device": self._device_name, "failure": reason})
            await asyncio.sleep(self._timing.settle_sec)

    def _count_cycle(self) -> bool:
        """Note a power cycle; return False if it would be one too many, or if that cannot be noted."""
        now_sec = time.time()
        note = self._notes.of(self._device_name)
        recent = [min(at_sec, now_sec) for at_sec in note.cycled_at_sec if at_sec > now_sec - _DAY_SEC]
        if len(recent) >= MAX_CYCLES:
            return False
        note.cycled_at_sec = [*recent, now_sec]
        if self._notes.write():
            return True
        note.cycled_at_sec = recent
        return False
