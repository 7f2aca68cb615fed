"""The gateway's metrics, collected when they are scraped. Loaded with --metrics only."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet.gateway.counts import GatewayCounts


class GatewayMetrics(Collector):
    """Metrics of one gateway."""

    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the values of this moment."""
        counts = self._counts
        yield GaugeMetricFamily("fleet_gateway_connections", "Open connections of clients.", counts.connections)
        yield GaugeMetricFamily("fleet_gateway_sessions", "Running RPC sessions.", counts.sessions)
        yield CounterMetricFamily("fleet_gateway_session_ends", "Ended RPC sessions.", counts.ended_sessions)
        yield CounterMetricFamily("fleet_gateway_grants", "Devices granted to clients.", counts.grants)
        refusals = CounterMetricFamily(
            "fleet_gateway_refusals", "Requests that ended without a device, by error.", labels=["kind"]
        )
        for kind, count in sorted(counts.refusals.items()):
            refusals.add_metric([kind], count)
        yield refusals
