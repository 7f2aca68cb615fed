"""The processes of a cluster: a builder on each machine, and one scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cross.compile.cache import BuildCache
from cross.pool.build_pool import BuildPool
from fleet.base.machine import machine_fingerprint
from fleet.base.scratch import scratch_dir
from fleet.building import MODULES
from fleet.building.cluster.address import ClusterAddress, own_certs, settle
from fleet.building.cluster.artifact_cache import ArtifactCache
from fleet.building.cluster.builder import DELIVERY, SLOT, Builder, resource_name, set_builder
from fleet.building.cluster.certs import ensure_certs
from fleet.domain.tvm_versions import check_versions
from fleet.errors import BuildersUnavailable, ConfigError

logger = logging.getLogger(__name__)

_PAGES = "127.0.0.1:0"
"""Address of Dask's web pages. The port is always open and has no TLS: loopback only, and without any pages."""

_REJOIN_SEC = 1.0
_REACH_SEC = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderOptions:
    """One `fleet builder serve`."""

    cluster: ClusterAddress
    workers: int | None = None
    """Processes that search and build; None: one per core."""

    host: str | None = None
    """Address to listen on; None for the local address of the route to the scheduler."""

    cache: BuildCache | None = None
    """Cache of built libraries, on this machine or shared with others."""


async def serve_scheduler(host: str, port: int, certs: Path | None, on_ready: Callable[[str], None]) -> None:
    """Run a cluster's scheduler until cancelled.

    Args:
        certs: folder of the certificates; None for this account's own, which are created if missing.

    Raises:
        ConfigError: see `ClusterAddress.check`; or the port is in use.
    """
    if certs is None:
        ensure_certs(own_certs())
    cluster = ClusterAddress(address=f"tls://{host}:{port}", certs=certs)
    cluster.check()
    settle()
    from distributed import Scheduler

    try:
        async with Scheduler(
            host=host,
            port=port,
            protocol="tls://",
            security=cluster.security(),
            dashboard=False,
            dashboard_address=_PAGES,
        ) as scheduler:
            on_ready(str(scheduler.address))
            await scheduler.finished()
    except OSError as error:
        raise ConfigError(f"the scheduler cannot listen on {host}:{port}: {error}") from error


async def serve_builder(options: BuilderOptions, on_ready: Callable[[str], None]) -> None:
    """Build for a cluster until cancelled; rejoin when its scheduler returns after an outage.

    Raises:
        ConfigError: see `ClusterAddress.check`; TVM is not as it should be.
        BuildersUnavailable: the first time, no scheduler answers.
    """
    check_versions()
    options.cluster.check()
    settle()
    with scratch_dir("builder") as folder, BuildPool(options.workers, modules=MODULES) as pool:
        (folder / "artifacts").mkdir()
        builder = Builder(pool=pool, folder=folder, artifacts=ArtifactCache(folder / "artifacts"), cache=options.cache)
        pool.start()
        try:
            await _join(options, builder, on_ready)
            while True:
                logger.warning("left the cluster, joining again", extra={"scheduler": options.cluster.address})
                await asyncio.sleep(_REJOIN_SEC)
                try:
                    await _join(options, builder, on_ready)
                except BuildersUnavailable as error:
                    logger.info("still away", extra={"error": str(error)})
        finally:
            set_builder(None)
            pool.shutdown(wait=False)


async def _join(options: BuilderOptions, builder: Builder, on_ready: Callable[[str], None]) -> None:
    from distributed import Worker

    here = await options.cluster.reach(_REACH_SEC)
    slots = builder.pool.size
    worker = Worker(
        options.cluster.address,
        nthreads=2 * slots,
        resources={resource_name(SLOT): slots, resource_name(DELIVERY): slots},
        name=f"{socket.gethostname()} {os.getpid()} {machine_fingerprint()}",
        host=options.host or here,  # Dask's default is all addresses of the machine
        protocol="tls://",
        security=options.cluster.security(),
        local_directory=str(builder.folder),
        memory_limit=0,  # the pool's processes take the memory
        dashboard=False,
        dashboard_address=_PAGES,
        death_timeout=30,
    )
    try:
        await worker
    except (OSError, TimeoutError, RuntimeError) as error:
        raise BuildersUnavailable(f"cannot join {options.cluster.address}: {error}") from error
    set_builder(replace(builder, address=worker.address))
    on_ready(worker.address)
    try:
        await worker.finished()
    finally:
        # Leave first, so that unfinished tasks restart elsewhere; their end here does not matter then.
        await worker.close(executor_wait=False)
