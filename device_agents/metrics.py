"""The agent's metrics, collected when they are scraped. Loaded with --metrics only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from device_agents.agent import Agent

TIMED = "timed"
"""Result of a trial without an error."""


class AgentMetrics(Collector):
    """Metrics of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        """Return the values of this moment."""
        counts = self._agent.counts
        trials = {(kind, TIMED if error is None else error.lower()): n for (kind, error), n in counts.trials.items()}
        yield GaugeMetricFamily("fleet_agent_attached", "1 while the tracker answers.", int(counts.is_attached))
        yield CounterMetricFamily("fleet_agent_attachments", "Connections to the tracker.", counts.attachments)
        yield _labelled(GaugeMetricFamily, "devices", "Served devices.", "state", counts.devices)
        yield _labelled(CounterMetricFamily, "trials", "Measured candidates.", "result", trials)
        yield GaugeMetricFamily("fleet_agent_workers", "Live worker processes.", counts.workers)
        yield GaugeMetricFamily("fleet_agent_artifact_bytes", "Size of the artifact cache.", counts.artifact_bytes)


def _labelled(
    make: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    words: str,
    label: str,
    values: Mapping[tuple[str, str], int],
) -> Metric:
    family = make(f"fleet_agent_{name}", words, labels=("kind", label))
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
