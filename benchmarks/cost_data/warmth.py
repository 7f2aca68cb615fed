"""Figures of a cold and a warm search of one workload, and their means over many."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.common import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Both searches of one workload with one seed."""

    operator: str
    is_new: bool
    """The data has no operator of its kind."""

    seed: int
    trials: int
    """Of a whole search."""

    cold_trials: int
    """Until the cold search held a candidate within 2 % of its final one."""

    warm_trials: int
    """Until the warm one did; one more than it had, if it never did."""

    cold_sec: float
    warm_sec: float
    """Wall seconds of the same."""

    is_reached: bool
    """The warm search came there."""

    is_static_enough: bool
    """The static schedule is good enough already, so no knowledge can save time."""

    best_us: float
    to_gain: float
    """Share by which the first trial is slower than the cold search's final candidate."""

    @property
    def ratio(self) -> float:
        """Warm trials by cold ones."""
        return self.warm_trials / self.cold_trials


def read_rows(path: Path, trials: int) -> list[Row]:
    """Return the comparisons with this number of trials in a file of JSON lines; none if there is no file."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    names = [field.name for field in fields(Row)]
    return [Row(**{name: row[name] for name in names}) for row in found if row["trials"] == trials]


def summary(rows: Sequence[Row]) -> JsonObject:
    """Return the geometric means of the comparisons where time could be saved, all and by kind."""
    to_save = [row for row in rows if not row.is_static_enough]
    every = _means(to_save)
    trials = every["trials"]
    return {
        "peer": trials["cold"],
        "ours": trials["warm"],
        "ratio": round(trials["cold"] / trials["warm"], 2) if to_save else None,
        "searches": len(rows),
        "static_enough": len(rows) - len(to_save),
        "to_save": every,
        "new_operators": _means([row for row in to_save if row.is_new]),
        "other_shapes": _means([row for row in to_save if not row.is_new]),
    }


def _means(rows: Sequence[Row]) -> JsonObject:
    return {
        "searches": len(rows),
        "reached": sum(row.is_reached for row in rows),
        "trials": _compared(rows, lambda row: row.cold_trials, lambda row: row.warm_trials),
        "seconds": _compared(rows, lambda row: row.cold_sec, lambda row: row.warm_sec),
    }


def _compared(rows: Sequence[Row], cold: Callable[[Row], float], warm: Callable[[Row], float]) -> JsonObject:
    """Return geometric means of both sides and of their ratio, with the least and the greatest ratio."""
    if not rows:
        return dict.fromkeys(("cold", "warm", "ratio", "least", "most"))
    ratios = [warm(row) / cold(row) for row in rows]
    return {
        "cold": round(statistics.geometric_mean(map(cold, rows)), 2),
        "warm": round(statistics.geometric_mean(map(warm, rows)), 2),
        "ratio": round(statistics.geometric_mean(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
    }
