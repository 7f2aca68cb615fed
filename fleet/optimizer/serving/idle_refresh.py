"""Refreshes the library in idle time, one pass over the records of a device model after the other.

A pass begins while no job runs, and builds then. It measures in batches, see `IdleDevice`. After a kill, the next
process begins the pass again: what was measured is in the library.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.base.clock import Clock, SystemClock
from fleet.base.scratch import scratch_dir
from fleet.base.tasks import started, stopped
from fleet.building.turns import Cores, Turns
from fleet.client.aio import Fleet
from fleet.domain.devices import DeviceState, DeviceStatus
from fleet.domain.health import HealthState
from fleet.domain.keys import canonical_target
from fleet.domain.scope import RecordScope
from fleet.domain.selectors import labels_of
from fleet.errors import FleetError
from fleet.jobs.patience import patiently
from fleet.library import Library
from fleet.optimizer.refreshing.checks import DeviceChecks
from fleet.optimizer.refreshing.idle import DAY_SEC, IdleRules, Interest
from fleet.optimizer.refreshing.idle_device import IdleChecks, IdleDevice, follow
from fleet.optimizer.refreshing.idle_files import IdleFiles, pass_key
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.run import Refresh
from fleet.optimizer.refreshing.workbench import PoolWorkbench

logger = logging.getLogger(__name__)

_LOOK_SEC = 0.5
"""Interval of looks at the jobs."""

_NOTHING_SEC = 30.0
"""Pause if there is nothing to refresh, or after an error [s]."""

_AGAIN_SEC = 3600.0
"""Pause before the pass of a device model that did not end well [s]."""

_MOST_WAIT_SEC = 1800.0
"""Longest wait of a pass for its device, so that other device models get their turn [s]."""

_MOST_ROUND_SEC = 0.75
"""Workloads with a longer round do not fit into batches; they are left to `fleet library refresh` [s]."""

MakeRefresh = Callable[[RecordScope, IdleDevice, Path], Refresh]
"""Returns the refresh of a scope, which writes artifacts to a folder."""


class Jobs(Protocol):
    """Jobs of the optimizer."""

    @property
    def running_count(self) -> int:
        """Number of jobs that run now."""
        ...

    def want(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a job waits, or a running one may use a device with these labels."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRefresh:
    """Passes over the records of the device models of one fleet."""

    library: Library
    client: Fleet
    """Its leases are those of refreshes only."""

    rules: IdleRules
    jobs: Jobs
    make: MakeRefresh
    clock: Clock = field(default_factory=SystemClock)

    async def run(self) -> None:
        """Refresh until cancelled. Errors end a pass, and are logged."""
        pauses: dict[str, float] = {}  # by key of a pass, until when [s since 1970]
        while True:
            await asyncio.sleep(_LOOK_SEC)
            if self.jobs.running_count or self.jobs.want({}):
                continue
            try:
                is_done = await self._next_pass(pauses)
            except (FleetError, OSError) as error:
                logger.warning("idle refresh ended", extra={"error": str(error)})
                is_done = False
            except Exception:  # outermost edge of the refresh, which must not end the jobs
                logger.exception("idle refresh failed unexpectedly")
                is_done = False
            if not is_done:
                await asyncio.sleep(_NOTHING_SEC)

    async def _next_pass(self, pauses: dict[str, float]) -> bool:
        """Run the pass that is due for the longest time. False: none is."""
        files = IdleFiles.of_fleet(self.client.fleet_id)
        passes = await asyncio.to_thread(files.passes)
        now_sec = self.clock.now_sec()
        due_at_sec: dict[str, float] = {}
        found: dict[str, tuple[RecordScope, DeviceStatus]] = {}
        for scope, device in await self._candidates():
            key = pass_key(scope)
            found.setdefault(key, (scope, device))
            due_at_sec[key] = max(passes[key] + DAY_SEC if key in passes else 0.0, pauses.get(key, 0.0))
        first = min(due_at_sec, key=lambda key: due_at_sec[key], default=None)
        if first is None or due_at_sec[first] > now_sec:
            return False
        pauses[first] = now_sec + _AGAIN_SEC
        report = await self._pass(*found[first], files)
        if report is not None and report.problem is None:
            await asyncio.to_thread(files.note_pass, first, self.clock.now_sec())
        elif report is None and self.jobs.running_count:  # interrupted while it was building
            del pauses[first]
        return True

    async def _candidates(self) -> list[tuple[RecordScope, DeviceStatus]]:
        """Return healthy devices of models with records, with the scopes in which the records shall count."""
        snapshot = await self.client.snapshot()
        scopes = await patiently(self.library.scopes)
        known = {(scope.device_model, canonical_target(scope.target_json)) for scope in scopes}
        found = []
        for device in sorted(snapshot.devices, key=lambda one: one.state is not DeviceState.AVAILABLE):
            inventory = device.inventory
            is_here = device.state in (DeviceState.AVAILABLE, DeviceState.LEASED)
            if not is_here or device.mark.state is not HealthState.GOOD or not inventory.target_json:
                continue
            target_json = parse_target(inventory.target_json).json
            if (inventory.device_model, canonical_target(target_json)) in known:
                scope = RecordScope(
                    target_json=target_json, device_model=inventory.device_model, tvm_version=inventory.tvm_version
                )
                found.append((scope, device))
        return found

    async def _pass(self, scope: RecordScope, device: DeviceStatus, files: IdleFiles) -> RefreshReport | None:
        """Refresh the records of a scope on a device. None: it had to wait for too long, or made room for a job."""
        logger.info("idle refresh begins", extra={"device": device.name, "device_model": scope.device_model})
        labels = labels_of(device)
        interest = Interest(device_name=device.name, wanted_at_sec=self.clock.now_sec())
        async with started(follow(self.client, interest, self.clock), name="watch for requests"):
            idle = IdleDevice(
                self.client,
                interest,
                rules=self.rules,
                files=files,
                clock=self.clock,
                is_blocked=lambda: self.jobs.want(labels),
                notice=lambda said: logger.info("idle refresh", extra={"notice": said}),
            )
            with scratch_dir("artifacts") as folder:
                async with idle:
                    report = await self._attend(self.make(scope, idle, folder), idle)
        verdicts = {} if report is None else {verdict.value: count for verdict, count in report.counts.items() if count}
        logger.info("idle refresh ended", extra={"device": device.name, "verdicts": verdicts})
        return report

    async def _attend(self, refresh: Refresh, idle: IdleDevice) -> RefreshReport | None:
        """Run a refresh; stop it if a job begins during its builds, or after a long wait for the device."""
        task = asyncio.create_task(refresh.run(), name="idle refresh")
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_LOOK_SEC)
                since_sec = idle.waits_since_sec
                is_late = since_sec is not None and time.monotonic() - since_sec > _MOST_WAIT_SEC
                if not task.done() and (is_late or (self.jobs.running_count and not idle.has_begun)):
                    return None
            return task.result()
        finally:
            await stopped(task)


def with_pool(library: Library, pool: BuildPool, cores: Cores) -> MakeRefresh:
    """Return the maker of refreshes that build in a pool."""

    def make(scope: RecordScope, device: IdleDevice, folder: Path) -> Refresh:
        checks = DeviceChecks(pool=pool, device=device, scope=scope, folder=folder)
        return Refresh(
            library=library,
            scope=scope,
            bench=PoolWorkbench.of(pool, parse_target(scope.target_json), folder),
            folder=folder,
            checks=IdleChecks(checks=checks, device=device),
            device=device,
            turns=Turns(shares_cores=True, cores=cores),
            narrate=lambda said: logger.debug("idle refresh", extra={"activity": said}),
            most_round_sec=_MOST_ROUND_SEC,
        )

    return make
