"""A search that first samples the whole space, and then tries the neighbours of the fastest schedule."""

import itertools
import random

from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.strategies import Strategy
from fleet.optimizer.tasks.propose import ProposeTask
from fleet.optimizer.tasks.search_round import SearchRound

MOST = 256
"""Schedules of a space that are looked at."""


def propose(task: ProposeTask, state: SearchRound) -> list[Candidate]:
    """Return a random sample as long as nothing was measured, then the untried schedules closest to the fastest."""
    space = list(itertools.islice(state.workload.own_space(), MOST))
    if task.records:
        fastest = min(task.records, key=lambda record: record.run_sec).trace_json
        center = next((place for place, made in enumerate(space) if made.trace_json == fastest), 0)
        order = sorted(range(len(space)), key=lambda place: abs(place - center))
    else:
        order = random.Random(task.seed).sample(range(len(space)), len(space))
    untried = state.of(space[place] for place in order)
    return state.describe(list(itertools.islice(untried, task.count)))


SPREAD = Strategy(propose=propose, summary="a sample of the space, then the neighbours of the fastest schedule")
