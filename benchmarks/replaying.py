"""Recorded times of candidates, measured again in another order: a policy's latency over device seconds.

For every policy a search finds the same candidates of a workload in the same order, and one batch of each was measured
when it begins. As in a job, some batches of each workload lie ahead: a policy may choose among these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH = 8
"""Candidates in the first batch of every workload, and the most in any other."""

AHEAD = 4 * BATCH
"""Most candidates of each workload that lie ahead, as in a job on a device of its own."""

_LOAD_SEC = 0.02
"""Device time to load a candidate and to fill its arrays."""

_REPEAT_SEC = 0.01
"""Least time of a repeat, as in `fleet tune`: one for a candidate that takes over twice the best, else four."""

_REPEATS = 4
_GIVE_UP = 2.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Track:
    """The candidates of one workload of one job, in the order in which a search finds them."""

    name: str
    job: str
    weight: float
    run_secs: Floats
    """Time of each candidate [s]."""

    values: Floats
    """Predictions of a cost model that has not seen the workload, [n_members, n_candidates]; higher is slower."""

    slope: float
    noise: float
    """Of that model: see `benchmarks.replay_data.Recorded`."""


class Lane:
    """Measured and waiting candidates of a track."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.measured: list[int] = []
        """Candidates, in the order in which they were measured."""

        self.waiting = list(range(len(track.run_secs)))
        """Candidates, in the order in which the search finds them."""

        self.best_sec = math.inf
        self.device_sec = 0.0
        self.history: list[float] = []
        """Best time after each batch [s]."""

        self.measure(self.waiting[:BATCH])

    def measure(self, candidates: Sequence[int]) -> float:
        """Measure a batch and return the device time that it takes [s]."""
        spent_sec = 0.0
        for candidate in list(candidates):
            run_sec = float(self.track.run_secs[candidate])
            repeats = 1 if run_sec > _GIVE_UP * self.best_sec else _REPEATS
            spent_sec += _LOAD_SEC + run_sec + repeats * max(run_sec, _REPEAT_SEC)
            self.best_sec = min(self.best_sec, run_sec)
            self.waiting.remove(candidate)
            self.measured.append(candidate)
        self.device_sec += spent_sec
        self.history.append(self.best_sec)
        return spent_sec

    @property
    def ahead(self) -> list[int]:
        """Candidates ahead, in the search's order: a batch, and as many as were measured."""
        return self.waiting[: min(AHEAD, BATCH + len(self.measured))]

    @property
    def run_secs(self) -> Floats:
        """Times of measured candidates [s]."""
        return self.track.run_secs[self.measured]

    @property
    def in_order(self) -> tuple[Floats, Floats]:
        """Best time and device time [s] after 1, 2, ... more candidates in their order."""
        secs = self.track.run_secs[self.waiting]
        best = np.minimum(np.minimum.accumulate(secs), self.best_sec)
        before = np.concatenate([[self.best_sec], best[:-1]])
        repeats = np.where(secs > _GIVE_UP * before, 1, _REPEATS)
        return best, np.cumsum(_LOAD_SEC + secs + repeats * np.maximum(secs, _REPEAT_SEC))


class Race:
    """One run of a policy over some tracks."""

    def __init__(self, tracks: Sequence[Track]) -> None:
        self.lanes = [Lane(track) for track in tracks]
        self.shares = _shares(self.lanes)
        """Value of a second of each track: its weight over its job's latency at the beginning."""

        self.device_sec = sum(lane.device_sec for lane in self.lanes)
        self.curve = [(self.device_sec, self.latency)]
        """Device seconds and latency after each batch."""

    @property
    def open_ones(self) -> list[int]:
        """Tracks that have candidates left."""
        return [index for index, lane in enumerate(self.lanes) if lane.waiting]

    @property
    def latency(self) -> float:
        """Sum over the jobs of the latency as a share of that at the beginning."""
        return sum(share * lane.best_sec for share, lane in zip(self.shares, self.lanes, strict=True))

    def measure(self, index: int, candidates: Sequence[int]) -> None:
        """Measure some of the candidates of a track that were searched ahead."""
        self.device_sec += self.lanes[index].measure(candidates)
        self.curve.append((self.device_sec, self.latency))


Policy = Callable[[Race], tuple[int, Sequence[int]]]
"""Chooses a track that has candidates left, and which of the next `AHEAD` are measured."""


def run(tracks: Sequence[Track], policy: Policy, *, until: float = 0.0) -> Race:
    """Measure a policy's choices until a latency is reached or all is measured."""
    race = Race(tracks)
    while race.open_ones and race.latency > until:
        race.measure(*policy(race))
    return race


def seconds_to(race: Race, latency: float) -> float:
    """Return the device seconds after which a latency was reached; infinite if it never was."""
    return next((sec for sec, reached in race.curve if reached <= latency * (1 + 1e-4)), float("inf"))


def _shares(lanes: Sequence[Lane]) -> list[float]:
    latencies: dict[str, float] = {}
    for lane in lanes:
        latencies[lane.track.job] = latencies.get(lane.track.job, 0.0) + lane.track.weight * lane.best_sec
    return [lane.track.weight / latencies[lane.track.job] for lane in lanes]
