"""Jobs of `benchmarks.prioritizer_live`: recorded workloads, drawn by a seed, as models of several accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from benchmarks.cost_data.dataset import Group

_MOST_CALLS = 7
_FIRST_BATCH = 8
_LEAST_RANGE = 1.25
"""On most workloads nothing after a first batch gains 5 %, and no order of batches matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Jobs that compete for the devices, in the order of their submission."""

    title: str
    workloads: Mapping[str, int]
    """Number of workloads by the job's name."""

    accounts: Mapping[str, str]
    """Account by the job's name."""

    urgent: str = ""
    """Job with a deadline; empty: none."""


SCENARIOS: Mapping[str, Scenario] = {
    "one_account": Scenario(
        title="three models of one account",
        workloads={"a": 4, "b": 4, "c": 4},
        accounts=dict.fromkeys(("a", "b", "c"), "team"),
    ),
    "hog": Scenario(
        title="three accounts, one of them with three models",
        workloads={"hog-1": 3, "hog-2": 3, "hog-3": 3, "a": 3, "b": 3},
        accounts={"hog-1": "hog", "hog-2": "hog", "hog-3": "hog", "a": "a", "b": "b"},
    ),
    "deadline": Scenario(
        title="a short job with a deadline beside two long ones",
        workloads={"long-1": 6, "long-2": 6, "short": 2},
        accounts=dict.fromkeys(("long-1", "long-2", "short"), "team"),
        urgent="short",
    ),
    "tiny": Scenario(
        title="two small models",
        workloads={"a": 2, "short": 1},
        accounts={"a": "one", "short": "two"},
        urgent="short",
    ),
}

_MOST_PROGRAMS = max(sum(one.workloads.values()) for one in SCENARIOS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One workload of a job: a matrix product of unique shape that stands for a recorded workload."""

    key: str
    """Its shapes, as in `benchmarks.live_tasks.key_of`."""

    group: int
    """Place of the recorded workload in the data set."""

    order: tuple[int, ...]
    """Its candidates in the order in which a search finds them: evolved ones come last."""

    calls: int
    """Number of its calls in the model."""

    start_sec: float
    """Best time of the first batch in that order: gains count from there."""


Race = Mapping[str, Sequence[Program]]
"""Workloads by the job's name."""


def draw(scenario: Scenario, groups: Mapping[int, Group], *, race: int) -> Race:
    """Draw the workloads of a scenario's jobs. The first of each job has something to gain.

    Args:
        groups: recorded workloads to choose from, by their places in the data set.
        race: number of the race: its seed, and part of the shapes, which no two races share.
    """
    rng = np.random.default_rng(race)
    places: list[int] = rng.permutation(sorted(groups)).tolist()
    worthwhile = [place for place in places if _range_of(groups[place]) >= _LEAST_RANGE][: len(scenario.workloads)]
    firsts, others = iter(worthwhile), iter([place for place in places if place not in worthwhile])
    numbers = count(2 + _MOST_PROGRAMS * race)
    return {
        name: [
            _program(next(numbers), place, groups[place], rng) for place in (next(firsts), *islice(others, size - 1))
        ]
        for name, size in scenario.workloads.items()
    }


def _range_of(group: Group) -> float:
    """Return the time of the best of a random batch over the best time of all, about."""
    return float(np.quantile(group.run_sec, 1 / (_FIRST_BATCH + 1)) / group.run_sec.min())


def _program(number: int, place: int, group: Group, rng: np.random.Generator) -> Program:
    is_late = np.array([source == "evolved" for source in group.sources])
    order = np.concatenate([rng.permutation(np.flatnonzero(~is_late)), rng.permutation(np.flatnonzero(is_late))])
    return Program(
        key=f"{number}x16x32",
        group=place,
        order=tuple(order.tolist()),
        calls=int(rng.integers(1, _MOST_CALLS + 1)),
        start_sec=float(group.run_sec[order[:_FIRST_BATCH]].min()),
    )
