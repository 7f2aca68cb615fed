"""Runs a gateway until it is cancelled."""

from __future__ import annotations

import asyncio
import re
import sys
from functools import partial
from typing import TYPE_CHECKING

from fleet.base.metrics import check_metrics, serving_metrics
from fleet.client.aio import connect
from fleet.domain.lease_class import LeaseClass
from fleet.errors import ConfigError
from fleet.gateway.counts import GatewayCounts
from fleet.gateway.server import GatewayOptions, serve_gateway
from fleet.runtime.tvm_library import runtime_version

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_VERSION = re.compile(r"\d+(\.\d+)*")


def wanted_options(port: int, tvm_version: str | None, lease_class: str) -> GatewayOptions:
    """Return checked settings.

    Args:
        tvm_version: of the clients; None: that of this environment, without its last part.

    Raises:
        ConfigError: a value is unknown, or there is no TVM here and no version was given.
    """
    if lease_class not in list(LeaseClass):
        raise ConfigError(f"there is no class {lease_class!r}; the classes are {', '.join(LeaseClass)}")
    version = tvm_version or ".".join(runtime_version().split(".")[:2])
    if not version:
        raise ConfigError("TVM is not installed here; name the version of its clients with --tvm-version")
    if not _VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} is no version of TVM; write it as 0.27")
    return GatewayOptions(tvm_version=version, port=port, lease_class=LeaseClass(lease_class))


async def run_gateway(
    tracker: str, options: GatewayOptions, connect_timeout_sec: float, metrics: str | None = None
) -> None:
    """Serve until cancelled. Prints the address once it listens.

    Args:
        metrics: address at which metrics are served; None: none.

    Raises:
        FleetError: the tracker does not answer, or the port is in use.
    """
    check_metrics(metrics)
    counts = GatewayCounts()
    async with (
        connect(tracker, connect_timeout_sec=connect_timeout_sec) as client,
        serving_metrics(metrics, partial(_register_metrics, counts)),
        serve_gateway(client, options, counts) as address,
    ):
        sys.stdout.write(f"gateway for TVM {options.tvm_version} clients listening on {address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _register_metrics(counts: GatewayCounts, registry: CollectorRegistry) -> None:
    from fleet.gateway.metrics import GatewayMetrics  # needs an extra

    registry.register(GatewayMetrics(counts))
