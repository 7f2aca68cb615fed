"""The tracker's metrics: an observer that counts grants, waits and ends, and follows the states of devices.

Loaded with --metrics only. A scrape reads sums, in a number that does not grow with the fleet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet.domain.leases import LeaseClass, LeaseEnd
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import Changes, DeviceEntry
from fleet.tracker.messages import board_model
from fleet.tracker.observers import Observer

OTHER = "other"
"""Model of devices beyond the first models."""

_MOST_MODELS = 100
_MOST_MODEL_CHARS = 64
_Standing: TypeAlias = tuple[str, str, str, str]
"""Values of a device that are counted: model, state, mark, and the class of its lease or ""."""

_MODEL, _STATE, _MARK, _CLASS = range(4)
_WAITS_SEC = (0.01, 0.1, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


class TrackerMetrics(Observer, Collector):
    """Counts for Prometheus."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._grants = Total("fleet_tracker_grants", "Granted leases.", ["class"], registry=None)
        self._ends = Total("fleet_tracker_lease_ends", "Ended leases.", ["class", "end"], registry=None)
        self._held = Total("fleet_tracker_leased_seconds", "Length of ended leases.", ["class"], registry=None)
        self._yields = Total(
            "fleet_tracker_yields", "Leases asked to give way to this class.", ["class"], registry=None
        )
        self._refusals = Total(
            "fleet_tracker_refusals", "Requests that ended without a device, by error.", ["kind"], registry=None
        )
        self._waits = Histogram(
            "fleet_tracker_wait_seconds",
            "Time from request to grant.",
            ["class"],
            buckets=_WAITS_SEC,
            registry=None,
        )
        self._classes = {each: self._totals(each) for each in LeaseClass}
        for each in LeaseClass:
            self._yields.labels(each)
        self._models: dict[str, None] = {}
        self._shown: dict[str, _Standing] = {}
        """Counted values of each device, by its name."""

        self._counts: Counter[_Standing] = Counter()
        self._follow(queries.device_names())
        self._calls: dict[type, Callable[[Any], None]] = {
            ev.Granted: self._note_grant,
            ev.LeaseEnded: self._note_end,
            ev.Refused: self._note_refusal,
            ev.YieldWanted: self._note_yield,
        }

    def register(self, registry: CollectorRegistry) -> None:
        """Make the metrics a part of the process's."""
        for one in (self._grants, self._ends, self._held, self._yields, self._refusals, self._waits, self):
            registry.register(one)

    def on_change(self, changes: Changes) -> None:
        """Follow the states of devices."""
        self._follow(chain(changes.devices, changes.leases, changes.health))

    def on_effect(self, effect: ev.Effect) -> None:
        """Count an effect."""
        if (call := self._calls.get(type(effect))) is not None:
            call(effect)

    def collect(self) -> Iterable[Metric]:
        """Return the values of this moment."""
        yield _gauge("fleet_tracker_devices", "Known devices.", ("model", "state"), self._sums(_MODEL, _STATE))
        yield _gauge("fleet_tracker_device_marks", "Devices by health mark.", ("mark",), self._sums(_MARK))
        leases = {(str(each),): 0 for each in LeaseClass} | dict(self._sums(_CLASS))
        yield _gauge("fleet_tracker_leases", "Live leases.", ("class",), leases.items())
        waiting = {(str(each),): count for each, count in self._queries.waiting_counts().items()}
        yield _gauge("fleet_tracker_waiting_requests", "Requests that wait.", ("class",), waiting.items())
        yield GaugeMetricFamily("fleet_tracker_bookings", "Bookings, begun or to come.", len(self._queries.bookings()))
        writable = int(not self._queries.journal_trouble)
        yield GaugeMetricFamily(
            "fleet_tracker_journal_writable", "0 while the journal cannot be written, and nothing is granted.", writable
        )

    def _follow(self, names: Iterable[str]) -> None:
        for name in names:
            device = self._queries.device(name)
            former = self._shown.pop(name, None) if device is None else self._shown.get(name)
            standing = None if device is None else self._standing(device)
            if standing == former:
                continue
            if former is not None:
                self._counts[former] -= 1
                if not self._counts[former]:
                    del self._counts[former]
            if standing is not None:
                self._shown[name] = standing
                self._counts[standing] += 1

    def _standing(self, device: DeviceEntry) -> _Standing:
        lease_class = device.lease.terms.lease_class if device.lease else ""
        return self._model(device), _state(device), device.mark.state, lease_class

    def _model(self, device: DeviceEntry) -> str:
        model = board_model(device.description)[:_MOST_MODEL_CHARS] or "unknown"
        if model not in self._models:
            if len(self._models) >= _MOST_MODELS:
                return OTHER
            self._models[model] = None
        return model

    def _sums(self, *fields: int) -> Iterable[tuple[tuple[str, ...], int]]:
        """Return the numbers of devices by these values, without empty ones."""
        sums: Counter[tuple[str, ...]] = Counter()
        for standing, count in self._counts.items():
            sums[tuple(str(standing[field]) for field in fields)] += count
        return [(key, count) for key, count in sums.items() if all(key)]

    def _totals(self, lease_class: LeaseClass) -> _Totals:
        ends = {end: self._ends.labels(lease_class, end.lower()) for end in LeaseEnd}
        return _Totals(
            self._grants.labels(lease_class), self._waits.labels(lease_class), self._held.labels(lease_class), ends
        )

    def _note_grant(self, granted: ev.Granted) -> None:
        lease = granted.lease
        if granted.is_repeat:
            return
        totals = self._classes[lease.terms.lease_class]
        totals.grants.inc()
        if lease.asked_at_sec:
            totals.waits.observe(max(lease.granted_at_sec - lease.asked_at_sec, 0.0))

    def _note_end(self, ended: ev.LeaseEnded) -> None:
        if ended.lease is None:
            return
        totals = self._classes[ended.lease.terms.lease_class]
        totals.ends[ended.end].inc()
        totals.held.inc(max(self._queries.now_sec - ended.lease.granted_at_sec, 0.0))

    def _note_refusal(self, refused: ev.Refused) -> None:
        self._refusals.labels(refused.error_class.__name__).inc()

    def _note_yield(self, wanted: ev.YieldWanted) -> None:
        self._yields.labels(wanted.wanted.lease_class).inc()


class _Totals(NamedTuple):
    """Metrics of one class. Found once: a lookup by labels takes longer than a count."""

    grants: Total
    waits: Histogram
    held: Total
    ends: dict[LeaseEnd, Total]


def _state(device: DeviceEntry) -> str:
    if not device.is_attached:
        return "offline"
    if not device.is_healthy:
        return "faulted"
    return "leased" if device.lease else "available"


def _gauge(name: str, words: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in sorted(values):
        family.add_metric(key, value)
    return family
