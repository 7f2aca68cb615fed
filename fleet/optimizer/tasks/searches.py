"""Searches other than the evolutionary one: exhaustive, random, and replay."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fleet.domain.origin import Origin
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.evolution import Evolution
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of

GRID_MOST = 10_000
"""Number of schedules from which on a space is not searched exhaustively."""

_DRAWN_FROM = 8
"""Batches of untried schedules of a workload's own space that a batch is drawn from."""


class Fresh(Protocol):
    """Filters out candidates that are already measured or chosen."""

    def of(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]: ...


def search_grid(state: SearchState, fresh: Fresh, count: int) -> list[Candidate]:
    """Return the next schedules of the workload's own space, in order.

    Raises:
        InvalidRequest: the workload has no space with an order, or a larger one than is ever measured whole.
    """
    if next(state.own_space(), None) is None:
        raise InvalidRequest("its space is that of MetaSchedule's rules, which has no order; use 'evolutionary'")
    if next(itertools.islice(state.own_space(), GRID_MOST - 1, None), None) is not None:
        raise InvalidRequest(f"its space has {GRID_MOST:,} schedules or more; use 'evolutionary' or 'random'")
    return list(itertools.islice(fresh.of(state.own_space()), count))


def search_randomly(state: SearchState, fresh: Fresh, count: int, rules: Evolution) -> list[Candidate]:
    """Return random schedules: half from the workload's own space, as far as it goes, the others by the rules."""
    chance = random.Random(rules.seed)
    own = list(itertools.islice(fresh.of(state.own_space()), _DRAWN_FROM * count))
    chosen = chance.sample(own, min(len(own), (count + 1) // 2))
    if len(chosen) < count:
        made = rules.run()
        chance.shuffle(made)
        chosen += itertools.islice(fresh.of(made), count - len(chosen))
    return chosen


def replay_traces(traces: Sequence[str], state: SearchState, fresh: Fresh, count: int) -> list[Candidate]:
    """Return the schedules of traces, in order, without those that do not fit the workload."""
    return list(itertools.islice(fresh.of(_replayed(traces, state)), count))


def _replayed(traces: Sequence[str], state: SearchState) -> Iterator[Candidate]:
    mod = module_of(state.mod_json)
    for trace in traces:
        with contextlib.suppress(InvalidRequest):
            yield state.make(replay(mod, trace), Origin.of_trace(trace))
