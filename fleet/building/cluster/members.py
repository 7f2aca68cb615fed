"""Current builders of a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleet.building.cluster.address import ClusterAddress, settle, versions
from fleet.building.cluster.builder import SLOT
from fleet.errors import BuildersUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One builder of a cluster."""

    host: str
    pid: int
    address: str
    slots: int
    """Processes that search and build."""

    versions: str
    """Versions of the packages that have to match those of its users."""

    is_usable: bool
    """True if its versions equal those of this process."""


async def members(cluster: ClusterAddress, timeout_sec: float) -> list[Member]:
    """Return a scheduler's builders, sorted by host, without its other workers.

    Raises:
        ConfigError: see `ClusterAddress.check`.
        BuildersUnavailable: no scheduler answers.
    """
    cluster.check()
    settle()
    from distributed import rpc

    await cluster.reach(timeout_sec)
    try:
        async with (
            asyncio.timeout(timeout_sec),
            rpc(cluster.address, connection_args=cluster.security().get_connection_args("client")) as scheduler,
        ):
            known = (await scheduler.identity(n_workers=-1))["workers"]
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {timeout_sec:g} s"
        raise BuildersUnavailable(f"the Dask scheduler {cluster.address} does not answer: {reason}") from error
    found = [
        Member(
            host=str(worker["name"]).split()[0],
            pid=int(str(worker["name"]).split()[1]),
            address=str(address),
            slots=int(count),
            versions=resource.removeprefix(SLOT),
            is_usable=resource.removeprefix(SLOT) == versions(),
        )
        for address, worker in known.items()
        for resource, count in worker["resources"].items()
        if resource.startswith(SLOT)
    ]
    return sorted(found, key=lambda one: (one.host, one.pid))
