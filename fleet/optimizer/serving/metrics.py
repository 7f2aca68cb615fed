"""The optimizer's metrics, collected when they are scraped. Loaded with --metrics only."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet.library import JobState
from fleet.optimizer.serving.daemon import OptimizerDaemon

_ENDS = (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED)


class OptimizerMetrics(Collector):
    """Metrics of one optimizer."""

    def __init__(self, optimizer: OptimizerDaemon) -> None:
        self._optimizer = optimizer

    def collect(self) -> Iterable[Metric]:
        """Return the values of this moment."""
        optimizer = self._optimizer
        yield _gauge("running_jobs", "Jobs that run.", optimizer.running_count)
        yield _gauge("most_jobs", "Limit of running jobs.", optimizer.most_jobs)
        yield _gauge("library_reachable", "0 while the library cannot be used.", int(optimizer.is_library_reachable))
        ends = CounterMetricFamily(
            "fleet_optimizer_job_ends", "Ended runs of jobs, by the job's new state.", labels=["state"]
        )
        for state in _ENDS:
            ends.add_metric([state.value.lower()], optimizer.ends[state])
        yield ends


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fleet_optimizer_{name}", words, value)
