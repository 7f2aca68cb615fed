"""Forecasts of a running tracker: made anew every few seconds, in portions of under a millisecond."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.base.clock import Clock
from fleet.domain.lease_class import LeaseClass
from fleet.domain.waits import Forecast
from fleet.tracker.booked_starts import booked_forecasts
from fleet.tracker.calibration import Calibration, Said
from fleet.tracker.core import events as ev
from fleet.tracker.core.outlook import Key, Lane, Outlook
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import LeaseEntry, RequestEntry
from fleet.tracker.forecast import SCHEDULINGS, Schedulings
from fleet.tracker.history_file import LeaseRow
from fleet.tracker.lengths import Lengths
from fleet.tracker.messages import board_model
from fleet.tracker.observers import Observer
from fleet.tracker.pace import Pace
from fleet.tracker.portions import paced

_LEAST_PAUSE_SEC = 2.0
_PAUSE_RATIO = 20.0
"""The pause after a round, in times of its length: forecasts take 5 % of a processor at most."""
_PORTION = 4
"""Requests that get their forecast in one turn: under 1 ms."""
_CLASSES = {each.value: each for each in LeaseClass}


@dataclass(frozen=True, slots=True)
class _First:
    """First forecast of a request, which its wait is compared with."""

    at_sec: float
    forecast: Forecast
    said: Said | None = None
    """None: forecasts of bookings are not calibrated."""


class Forecaster(Observer):
    """Lengths of ended leases, and the latest forecasts."""

    def __init__(self, queries: Queries, clock: Clock, pace: Pace) -> None:
        self._queries = queries
        self._clock = clock
        self._pace = pace
        self._lengths, self._calibration = Lengths(), Calibration()
        self._forecasts: dict[Key, Forecast] = {}
        self._first: dict[Key, _First] = {}
        self._said: dict[str, float] = {}
        """Forecast wait of live leases, by name [s]."""
        self._rounds = 0

    def learn(self, rows: Iterable[LeaseRow]) -> None:
        """Take the lengths of leases that ended before this start."""
        for row in rows:
            if row.lease_class in _CLASSES:
                self._lengths.add(row.account, _CLASSES[row.lease_class], row.model, row.length_sec)

    def on_effect(self, effect: ev.Effect) -> None:
        """Compare a wait with its forecast at the grant, and take the length of an ended lease."""
        match effect:
            case ev.Granted(lease=lease, is_repeat=False):
                self._note_grant(lease, effect.set_id or lease.request_id)
            case ev.LeaseEnded(lease=LeaseEntry() as lease):
                device = self._queries.device(lease.device_name)
                model = board_model(device.description) if device else ""
                length_sec = max(self._clock.now_sec() - lease.granted_at_sec, 0.0)
                self._lengths.add(lease.account, lease.terms.lease_class, model, length_sec)
                self._said.pop(lease.name, None)

    def of(self, request: RequestEntry) -> Forecast | None:
        """Return the latest forecast of a request; None: none was made yet, or no similar lease has ended."""
        return self._forecasts.get(request.key)

    def said_sec(self, lease_name: str) -> float | None:
        """Return the wait that was forecast for a live lease's request; None: no forecast was made."""
        return self._said.get(lease_name)

    def free_at_sec(self, lease: LeaseEntry | None) -> float | None:
        """Return the moment at which a live lease is expected to end; None: no similar lease has lasted as long."""
        if lease is None or (device := self._queries.device(lease.device_name)) is None:
            return None
        age_sec = max(self._clock.now_sec() - lease.granted_at_sec, 0.0)
        model = board_model(device.description)
        rest_sec = self._lengths.rest_sec(lease.account, lease.terms.lease_class, model, age_sec)
        return None if rest_sec is None else min(self._clock.now_sec() + rest_sec, lease.ends_at_sec)

    async def run(self) -> None:
        """Make forecasts until cancelled."""
        while True:
            started_sec = time.process_time()
            await self.refresh()
            await asyncio.sleep(max(_LEAST_PAUSE_SEC, _PAUSE_RATIO * (time.process_time() - started_sec)))

    async def refresh(self) -> None:
        """Forecast all waiting requests, but those very far back."""
        if not self._queries.request_count:
            self._forecasts, self._first = {}, {}
            return
        now = self._clock.now_sec()
        outlook = await paced(self._queries.outlook(lambda device: board_model(device.description)), self._pace)
        self._rounds += 1
        booked = booked_forecasts(outlook.booked_lanes, self._lengths, self._rounds, now, scheduling_count=SCHEDULINGS)
        found = await paced(booked, self._pace)
        first = {key: self._first.get(key) or _First(now, forecast) for key, forecast in found.items()}
        if (starts_sec := await self._starts_sec(outlook)) is None:
            calibrated = {key: each for key, each in self._first.items() if each.said is not None}
            self._forecasts, self._first = found, calibrated | first
            return
        await self._calibrate(outlook, starts_sec, now, found, first)
        self._forecasts, self._first = found, first

    async def _starts_sec(self, outlook: Outlook) -> Mapping[Key, Sequence[float]] | None:
        """Return the starts of the requests in each scheduling; None: no similar lease has ended."""
        schedulings = Schedulings(outlook, self._lengths, seed=self._rounds)
        for _ in range(SCHEDULINGS):
            for _ in schedulings.run():
                await self._pace.turn()
            if not schedulings.is_known:
                return None
            await self._pace.turn()
        await self._pace.turn()
        return schedulings.starts_sec

    async def _calibrate(
        self,
        outlook: Outlook,
        starts_sec: Mapping[Key, Sequence[float]],
        now: float,
        found: dict[Key, Forecast],
        first: dict[Key, _First],
    ) -> None:
        """Add the calibrated forecasts of the schedulings, and the first ones of each request."""
        waiting = ((index, key, lane) for lane in outlook.lanes for index, key in enumerate(lane.keys))
        for count, (index, key, lane) in enumerate(waiting, 1):
            said = self._calibration.forecast(
                lane.lease_class,
                starts_sec.get(key, ()),
                is_set=bool(lane.members),
                lane_age_sec=lane.age_sec,
                use_rank=outlook.use_ranks.get(lane.account, 0.0),
                now=now,
            )
            if said is not None:
                found[key] = _beside_bookings(said.forecast, lane, index, outlook.yield_sec, now)
                first[key] = self._first.get(key) or _First(now, said.forecast, said)
            if count % _PORTION == 0:
                await self._pace.turn()

    def _note_grant(self, lease: LeaseEntry, request_id: str) -> None:
        key = lease.client_id, request_id
        self._forecasts.pop(key, None)
        if (first := self._first.pop(key, None)) is not None:
            if first.said is not None:
                self._calibration.add(first.said, max(self._clock.now_sec() - first.at_sec, 0.0))
            asked_at_sec = min(lease.asked_at_sec or first.at_sec, first.at_sec)
            self._said[lease.name] = first.forecast.expected_sec - asked_at_sec


def _beside_bookings(forecast: Forecast, lane: Lane, index: int, yield_sec: float, now: float) -> Forecast:
    """Move the moments of a forecast out of the booked times of the boards."""
    if not lane.booked:
        return forecast
    moments = forecast.from_sec, forecast.expected_sec, forecast.by_sec
    low, middle, high = (now + lane.open_from(index, sec - now, yield_sec) for sec in moments)
    return Forecast(from_sec=low, expected_sec=middle, by_sec=high)
