"""Forecasts of waits against the waits that followed, in the lab's generated week, beside "position times mean length".

A sample of the requests and sets that have to wait gets a forecast when it is made, as a tracker would give it.
Coverage is the share of waits between "likely from" and "likely by", 80 % if the forecast is calibrated. The first half
day, in which no lengths are known yet, does not count.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

if not __package__:  # run as a file: python benchmarks/forecast.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.lab_schedulers import EPOCH_SEC, Turns
from benchmarks.lab_sim import Ask, Simulation
from benchmarks.lab_trace import DAY_SEC, week
from fleet.domain.leases import LeaseClass
from fleet.domain.waits import Forecast
from fleet.tracker.calibration import Calibration, Said
from fleet.tracker.core.outlook import make_outlook
from fleet.tracker.forecast import SCHEDULINGS, Schedulings
from fleet.tracker.lengths import Lengths
from fleet.tracker.portions import finished

T = TypeVar("T")

_SEED, _JOB_HOURS = 3, 2.0
_DAYS, _QUICK_DAYS = 7.0, 1.0
_WARM_UP_SEC = DAY_SEC / 2
_SAMPLED = {LeaseClass.INTERACTIVE: 0.25, LeaseClass.NORMAL: 0.02, LeaseClass.BATCH: 0.04}
"""Share of requests with a forecast: all would take an hour."""
_SAMPLED_SETS = 0.5
_SETS = "sets"
_LONG_SEC = 30.0
_BUDGET = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One forecast, the wait that followed, and the peer's forecast [s]."""

    at_sec: float
    forecast: Forecast
    wait_sec: float
    peer_sec: float


@dataclass(frozen=True, slots=True)
class _First:
    at_sec: float
    said: Said
    peer_sec: float


class Forecasting(Turns):
    """The tracker's state with forecasts."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._rng, self._set_rng = random.Random(1), random.Random(2)
        self._lengths, self._calibration = Lengths(), Calibration()
        self._latest: dict[LeaseClass, deque[float]] = defaultdict(lambda: deque(maxlen=500))
        self._first: dict[int, _First] = {}
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)
        """By class; those of sets apart."""

    def ask(self, ask: Ask, now: float) -> None:
        super().ask(ask, now)
        if ask.number not in self._simulation.waiting or ask.continues:
            return
        if ask.arrival.also:
            is_sampled = self._set_rng.random() < _SAMPLED_SETS
        else:
            is_sampled = self._rng.random() < _SAMPLED[ask.arrival.lease_class]
        if is_sampled:
            self._forecast(ask, now)

    def end(self, ask: Ask, now: float) -> None:
        length_sec, lease_class = now - ask.granted_sec, ask.arrival.lease_class
        self._lengths.add(ask.arrival.account, lease_class, self._simulation.boards[ask.board], length_sec)
        self._latest[lease_class].append(length_sec)
        super().end(ask, now)

    def granted(self, ask: Ask, now: float) -> None:
        first = self._first.pop(ask.number, None)
        if first is None:
            return
        wait_sec = now - first.at_sec
        self._calibration.add(first.said, wait_sec)
        self.outcomes[_SETS if ask.arrival.also else ask.arrival.lease_class.value].append(
            Outcome(at_sec=first.at_sec, forecast=first.said.forecast, wait_sec=wait_sec, peer_sec=first.peer_sec)
        )

    def _forecast(self, ask: Ask, now: float) -> None:
        key = ask.arrival.account, str(ask.number)
        outlook = finished(make_outlook(self._state, lambda device: device.labels["model"]))
        schedulings = Schedulings(outlook, self._lengths, seed=ask.number)
        for _ in range(SCHEDULINGS):
            for _ in schedulings.run(key):
                pass
        lease_class = ask.arrival.lease_class
        lane = next((lane for lane in outlook.lanes if key in lane.keys), None)
        if lane is None:  # a set whose devices are not looked up yet
            return
        said = self._calibration.forecast(
            lease_class,
            schedulings.starts_sec[key],
            is_set=bool(lane.members),
            lane_age_sec=lane.age_sec,
            use_rank=outlook.use_ranks[lane.account],
        )
        if said is not None:
            request = self._state.clients[key[0]].requests[key[1]]
            position = self._state.positions.of(request, EPOCH_SEC + now)
            peer_sec = position * statistics.mean(self._latest[lease_class] or [0.0])
            self._first[ask.number] = _First(now, said, peer_sec)


class _Week(Simulation):
    """The week of `lab_week`, with each grant compared with its forecast."""

    def granted(self, ask: Ask, board: str, now: float, lease_name: str = "") -> None:
        super().granted(ask, board, now, lease_name)
        if isinstance(self.scheduler, Forecasting):
            self.scheduler.granted(ask, now)

    def granted_set(self, ask: Ask, boards: Sequence[tuple[str, str]], now: float) -> list[Ask]:
        members = super().granted_set(ask, boards, now)
        if isinstance(self.scheduler, Forecasting):
            self.scheduler.granted(ask, now)
        return members


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("forecast", __doc__ or "", rounds=1).parse_args(argv)
    machine, days = common.machine(), _QUICK_DAYS if options.quick else _DAYS
    started_sec = time.process_time()
    simulation = _Week(week(seed=_SEED, job_hours=_JOB_HOURS, has_hog=False, days=days), Forecasting, days=days)
    simulation.run()
    took_sec = time.process_time() - started_sec
    assert isinstance(simulation.scheduler, Forecasting)
    judged = {
        name: [each for each in found if each.at_sec >= _WARM_UP_SEC]
        for name, found in simulation.scheduler.outcomes.items()
    }
    coverage = {name: _coverage(found) for name, found in judged.items()}
    ours, peer = _median_errors({name: found for name, found in judged.items() if name != _SETS})
    rows = [
        (name, str(len(found)), f"{coverage[name]:.2f}", f"{_median_wait(found):.0f}") for name, found in judged.items()
    ]
    notes = [
        f"median error of waits over {_LONG_SEC:g} s: {ours:.2f} of the wait; position times mean length: {peer:.2f}",
        f"{took_sec:.0f} s of processor time",
        *common.doubts(machine, quick=options.quick),
    ]
    common.print_table("forecasts", ("class", "forecasts", "coverage", "median wait [s]"), rows, notes)
    figures = {
        "name": "forecast",
        "unit": "median error, of the wait",
        "budget": _BUDGET,
        "peer": round(peer, 3),
        "ours": round(ours, 3),
        "ratio": round(peer / ours, 2),
        "median_error": round(ours, 3),
        "coverage": {name: round(share, 3) for name, share in coverage.items()},
        "forecasts": {name: len(found) for name, found in judged.items()},
        "cpu_sec": round(took_sec, 1),
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _coverage(found: Sequence[Outcome]) -> float:
    inside = sum(each.forecast.from_sec <= each.wait_sec <= each.forecast.by_sec for each in found)
    return inside / max(len(found), 1)


def _median_wait(found: Sequence[Outcome]) -> float:
    return statistics.median(each.wait_sec for each in found) if found else 0.0


def _median_errors(judged: Mapping[str, Sequence[Outcome]]) -> tuple[float, float]:
    """Return the median relative errors of long waits, ours and the peer's."""
    long = [each for found in judged.values() for each in found if each.wait_sec > _LONG_SEC]
    ours = [abs(each.forecast.expected_sec - each.wait_sec) / each.wait_sec for each in long]
    peer = [abs(each.peer_sec - each.wait_sec) / each.wait_sec for each in long]
    return statistics.median(ours), statistics.median(peer)


if __name__ == "__main__":
    sys.exit(main())
