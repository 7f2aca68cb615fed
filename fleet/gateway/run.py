"""Runs a gateway until it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

from fleet.base.metrics import serving_metrics
from fleet.client.aio import connect
from fleet.gateway.counts import GatewayCounts
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import serve_gateway

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)


async def run_gateway(tracker: str, options: GatewayOptions, connect_timeout_sec: float) -> None:
    """Serve until cancelled. Prints the address once it listens.

    Raises:
        FleetError: an option is invalid, the tracker does not answer, or the port is in use.
    """
    options.check()
    counts = GatewayCounts()
    async with (
        connect(tracker, connect_timeout_sec=connect_timeout_sec) as client,
        serving_metrics(options.metrics, partial(_register_metrics, counts)),
        serve_gateway(client, options, counts) as address,
    ):
        if options.is_open_to_network:
            logger.warning(
                "open to the network, where TVM's protocol has no encryption: others on it can read keys, "
                "programs and results"
            )
            if not client.may_ask_for_others:
                logger.warning(
                    "requests with access keys will be refused: this gateway may not ask for other accounts; join with "
                    "a token of 'fleet tracker token create --for-others'"
                )
        sys.stdout.write(f"gateway for TVM {options.served_version} clients listening on {address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _register_metrics(counts: GatewayCounts, registry: CollectorRegistry) -> None:
    from fleet.gateway.metrics import GatewayMetrics  # needs an extra

    registry.register(GatewayMetrics(counts))
