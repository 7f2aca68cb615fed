"""Resources shared by the jobs of one process, and the pool that builds for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from cross.compile.cache import BuildCache
from cross.pool.build_pool import BuildPool
from fleet.building.cluster.address import ClusterAddress
from fleet.building.cluster.courier import ClusterCourier
from fleet.building.cluster.pool import DaskPool
from fleet.building.pool import Builders
from fleet.building.turns import Cores
from fleet.client.aio import Fleet
from fleet.library import Library


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Resources shared by the jobs of one process."""

    library: Library
    pool: BuildPool
    """For tasks that need files of this machine, or make them here."""

    builders: Builders
    """For plain data, on this machine (the same pool) or on others."""

    artifact_dir: Path
    cores: Cores
    """Locks of this machine's cores, for its builds and measurements."""

    cache: BuildCache | None = None
    """Cache of built libraries."""

    client: Fleet | None = None
    """None: connect to the tracker that the job names, or start a fleet for this machine."""

    @property
    def builder_count(self) -> int:
        """Number of builders; of those on other machines, the number of machines."""
        return self.pool.size if self.courier is None else len(self.builders.hosts)

    @property
    def courier(self) -> ClusterCourier | None:
        """Courier of the builders' artifacts; None: they are made here."""
        return ClusterCourier(self.builders) if isinstance(self.builders, DaskPool) else None


async def open_builders(
    stack: AsyncExitStack, pool: BuildPool, cluster: ClusterAddress | None, *, build_timeout_sec: float
) -> Builders:
    """Return the pool for searches and builds: the cluster's builders, open until the stack is closed, or this
    machine's pool.

    Raises:
        ConfigError, BuildersUnavailable: see `DaskPool.open`.
    """
    if cluster is None:
        return pool
    builders = DaskPool(cluster, timeout_sec=build_timeout_sec)
    await asyncio.to_thread(builders.open)
    stack.callback(builders.shutdown, wait=False)
    return builders
