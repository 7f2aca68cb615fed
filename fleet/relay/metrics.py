"""The relay's metrics, collected when they are scraped. Loaded with --metrics only."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet.relay.counts import RelayCounts


class RelayMetrics(Collector):
    """Metrics of one relay."""

    def __init__(self, counts: RelayCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the values of this moment."""
        counts = self._counts
        yield GaugeMetricFamily("fleet_relay_agents", "Registered agents.", counts.agents)
        yield GaugeMetricFamily("fleet_relay_connections", "Open connections.", counts.connections)
        yield GaugeMetricFamily("fleet_relay_clients", "Open connections of clients to agents.", counts.clients)
        yield CounterMetricFamily("fleet_relay_client_ends", "Ended connections of clients.", counts.ended_clients)
        yield CounterMetricFamily("fleet_relay_bytes", "Bytes between clients and agents.", counts.carried_bytes)
        refusals = CounterMetricFamily("fleet_relay_refusals", "Connections closed, by reason.", labels=["kind"])
        for kind, count in sorted(counts.refusals.items()):
            refusals.add_metric([kind], count)
        yield refusals
