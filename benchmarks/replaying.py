"""Recorded times of candidates, measured again in another order: what a policy reaches, and after which device seconds.

Every policy sees the same candidates of a workload in the same order, and has seen one batch of each when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BATCH = 8
"""Candidates in the first batch of every workload, and the most in any other."""

_LOAD_SEC = 0.02
"""Device time to load a candidate and to fill its arrays."""

_REPEAT_SEC = 0.01
"""Least time of a repeat, as `fleet tune` has it: one for a candidate that takes over twice the best, else four."""

_REPEATS = 4
_GIVE_UP = 2.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Track:
    """The candidates of one workload of one job, in the order in which they are measured."""

    name: str
    job: str
    weight: float
    run_secs: Floats
    """Time of each candidate [s]."""

    values: Floats
    """What a cost model that has not seen the workload says of each, [n_members, n_candidates]; higher is slower."""

    slope: float
    noise: float
    """Of that model: see `benchmarks.replay_data.Recorded`."""

    device_secs: Floats = field(init=False)
    """Device time that each takes [s]."""

    best_secs: Floats = field(init=False)
    """Best time after 1, 2, ... candidates [s]."""

    def __post_init__(self) -> None:
        best = np.minimum.accumulate(self.run_secs)
        before = np.concatenate([[np.inf], best[:-1]])
        repeats = np.where(self.run_secs > _GIVE_UP * before, 1, _REPEATS)
        object.__setattr__(self, "best_secs", best)
        object.__setattr__(
            self, "device_secs", _LOAD_SEC + self.run_secs + repeats * np.maximum(self.run_secs, _REPEAT_SEC)
        )


class Race:
    """One run of a policy over some tracks."""

    def __init__(self, tracks: Sequence[Track]) -> None:
        self.tracks = tracks
        self.done = [min(BATCH, len(track.run_secs)) for track in tracks]
        """Candidates of each that were measured."""

        self.history = [[float(track.best_secs[done - 1])] for track, done in zip(tracks, self.done, strict=True)]
        """Best time of each after each of its batches [s]."""

        self.chosen = [1] * len(tracks)
        """Batches of each."""

        self._shares = _shares(tracks)
        self.device_sec = sum(
            float(track.device_secs[:done].sum()) for track, done in zip(tracks, self.done, strict=True)
        )
        self.curve = [(self.device_sec, self.latency)]
        """Device seconds and latency after each batch."""

    @property
    def open_ones(self) -> list[int]:
        """Tracks that have candidates left."""
        return [i for i, track in enumerate(self.tracks) if self.done[i] < len(track.run_secs)]

    @property
    def latency(self) -> float:
        """Sum over the jobs of the latency as a share of that at the beginning."""
        return sum(share * own[-1] for share, own in zip(self._shares, self.history, strict=True))

    @property
    def shares(self) -> list[float]:
        """What a second of each track counts: its weight over its job's latency at the beginning."""
        return self._shares

    def measure(self, index: int, count: int) -> None:
        """Measure the next candidates of a track."""
        track, begin = self.tracks[index], self.done[index]
        end = min(begin + count, len(track.run_secs))
        self.device_sec += float(track.device_secs[begin:end].sum())
        self.done[index] = end
        self.history[index].append(float(track.best_secs[end - 1]))
        self.chosen[index] += 1
        self.curve.append((self.device_sec, self.latency))


Policy = Callable[[Race], tuple[int, int]]
"""Chooses a track that has candidates left, and how many of them are measured."""


def run(tracks: Sequence[Track], policy: Policy, *, until: float = 0.0) -> Race:
    """Measure what a policy says until a latency is reached or all is measured."""
    race = Race(tracks)
    while race.open_ones and race.latency > until:
        race.measure(*policy(race))
    return race


def seconds_to(race: Race, latency: float) -> float:
    """Return the device seconds after which a latency was reached; infinite if it never was."""
    return next((sec for sec, reached in race.curve if reached <= latency * (1 + 1e-4)), float("inf"))


def _shares(tracks: Sequence[Track]) -> list[float]:
    latencies: dict[str, float] = {}
    for track in tracks:
        first = float(track.best_secs[min(BATCH, len(track.run_secs)) - 1])
        latencies[track.job] = latencies.get(track.job, 0.0) + track.weight * first
    return [track.weight / latencies[track.job] for track in tracks]
