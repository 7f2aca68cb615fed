"""Opens pool, device and folders of a refresh, and runs it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.base.scratch import scratch_dir
from fleet.building import MODULES
from fleet.building.turns import Turns, stepped_aside
from fleet.client.aio import Fleet
from fleet.client.steady import SteadyDevice
from fleet.domain.devices import Inventory
from fleet.domain.leases import LeaseClass, make_terms
from fleet.domain.scope import RecordScope
from fleet.domain.tvm_versions import check_versions
from fleet.library import Library
from fleet.optimizer.refreshing.checks import DeviceChecks
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.run import Refresh
from fleet.optimizer.refreshing.workbench import PoolWorkbench

_BUILD_TIMEOUT_SEC = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshOptions:
    """One `fleet library refresh`."""

    selector: str
    minutes: float | None = None
    """Time after which no measurement begins, from the start [min]; None: no limit."""

    is_dry_run: bool = False
    workers: int | None = None
    wait_timeout_sec: float | None = None


async def refresh(
    library: Library,
    client: Fleet,
    inventory: Inventory,
    options: RefreshOptions,
    narrate: Callable[[str], None] = lambda _: None,
) -> RefreshReport:
    """Refresh the records of a device's model and target.

    Args:
        inventory: of the devices that the selector matches.

    Raises:
        NotFound, LibraryError: see `Refresh.run`.
    """
    check_versions()
    deadline_sec = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    target = parse_target(inventory.target_json)
    scope = RecordScope(target_json=target.json, device_model=inventory.device_model, tvm_version=inventory.tvm_version)
    terms = make_terms(
        options.selector,
        lease_class=LeaseClass.BATCH,
        wait_timeout_sec=options.wait_timeout_sec,
        purpose="refresh the library",
    )
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_dir("artifacts"))
        pool = BuildPool(options.workers, timeout_sec=_BUILD_TIMEOUT_SEC, target=target, modules=MODULES)
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        device = await stack.enter_async_context(SteadyDevice(client, terms, notice=narrate, aside=stepped_aside))
        run = Refresh(
            library=library,
            scope=scope,
            bench=PoolWorkbench.of(pool, target, folder),
            folder=folder,
            checks=DeviceChecks(pool=pool, device=device, scope=scope, folder=folder),
            device=device,
            turns=Turns.of_this_machine(),
            narrate=narrate,
            deadline_sec=deadline_sec,
            is_dry_run=options.is_dry_run,
        )
        return await run.run()
