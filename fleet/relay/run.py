"""Runs a relay until it is cancelled."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

from fleet.base.metrics import serving_metrics
from fleet.client.connection import account_credentials
from fleet.client.revoked_keys import guarded_by
from fleet.relay.counts import RelayCounts
from fleet.relay.options import RelayOptions
from fleet.relay.server import serve_relay

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


async def run_relay(tracker: str, options: RelayOptions) -> None:
    """Serve until cancelled. Prints the address once it listens.

    Raises:
        FleetError: an option is invalid, the tracker does not answer, or the port is in use.
    """
    options.check()
    counts = RelayCounts()
    mine = await account_credentials(tracker)
    async with (
        guarded_by(tracker) as guard,
        serving_metrics(options.metrics, partial(_register_metrics, counts)),
        serve_relay(options, mine, guard, counts) as address,
    ):
        sys.stdout.write(f"relay listening on {address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _register_metrics(counts: RelayCounts, registry: CollectorRegistry) -> None:
    from fleet.relay.metrics import RelayMetrics  # needs an extra

    registry.register(RelayMetrics(counts))
