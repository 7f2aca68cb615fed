"""Proposes candidates for one workload: a task for a worker of the build pool.

The first round takes the schedules of the workload's own space (fleet.spaces) in their order, later ones those that the
cost model likes best. Then, and for workloads without a space of their own, come MetaSchedule's rules
(post-order-apply) with its evolutionary search. Each round follows from the records so far and a snapshot of the cost
model: the same task gives the same proposals in any worker, and a job that was interrupted goes on from its records.
A worker that had the workload before has most of the work done (`SearchState`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.cost_model.job_trees import are_enough
from fleet.cost_model.packaged_model import prior_for
from fleet.cost_model.samples import Context
from fleet.cost_model.scoring import Ranker
from fleet.cost_model.snapshot import Snapshot, snapshot_of
from fleet.domain.jobs import DEFAULT_STRATEGY
from fleet.domain.observation import Observation
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.strategies import strategy_of
from fleet.optimizer.tasks.evolution import EXPLORED, Evolution, blind_population
from fleet.optimizer.tasks.predict_candidates import expected_of
from fleet.optimizer.tasks.search_round import SearchRound
from fleet.optimizer.tasks.search_state import SearchState, state_of
from fleet.optimizer.tasks.transfer import Misfit, adapted

logger = logging.getLogger(__name__)

_OWN_FIRST = 24
"""Number of a workload's records from its own space before MetaSchedule's rules get a share of a batch."""

_RULES_EVERY = 4
"""From then on, one batch in this many has candidates of the rules, and half of every batch while the best record is
theirs: of 121 trials on three convolutions, none of theirs came within 1.36 of the best."""

_RULES_PART = 4
"""While the own space is ahead, one candidate in this many of such a batch comes from the rules. Theirs are unrolled:
four of a matrix product took 85, 220, 330 and 730 ms to build, and those of its own space 40."""

_CHOSEN_FROM = 2
"""Batches of untried schedules of the own space that the cost model chooses one from, at least. On four operators of
which all schedules were measured, 2 found as good ones as 4, within 16 trials the best of all."""

_FROM_ELSEWHERE = 1 / 4
"""Share of a first batch for the best schedules of other workloads and devices."""

_BESIDE_OWN = 1 / 3
"""Share of the population that is searched beside an own space for half of a batch, less for less: the features of each
program take 5 ms, of a Winograd convolution's 50."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeTask:
    """One round of search."""

    mod_json: str
    target: Target
    device_model: str = ""
    """The shared model has residuals for its measurements."""

    records: tuple[Observation, ...] = ()
    """The workload's measured candidates, the newest last. Those with features help the shared model to predict."""

    model: bytes | None = None
    """Model from `learn` on the job's own records; None: there are too few, or the shared model scores."""

    is_guided: bool = False
    """A model chooses among found candidates, once there are records enough to choose by."""

    shared: bytes | None = None
    """Snapshot of the shared model; None: the one that comes with the package, where it fits the target."""

    seeds: tuple[Observation, ...] = ()
    """Best schedules of its neighbours, or its own on other devices: a first batch begins with those that fit."""

    is_warm: bool = True
    """False: only the job's own records count."""

    count: int = 16
    """Proposals wanted."""

    ahead: int = 0
    """Number of additional candidates for later, as far as the search has examined them anyway."""

    flop: float = 0.0
    """Operations of the workload."""

    kind: str = ""
    """Kind of operator."""

    seed: int = 0
    known: frozenset[str] = frozenset()
    """Digests of traces in flight, which must not be proposed again; nor are those of `records`."""

    population: int = 64
    generations: int = 2
    """64 programs over 2 generations cost a fifteenth of the stock 512 over 4 (0.7 s a round instead of 6-16 s), and
    in 64 trials found as good a matrix product and a better 1x1 convolution."""

    strategy: str = DEFAULT_STRATEGY
    replayed: tuple[str, ...] = ()
    """Traces that a replay proposes, in this order."""

    is_static: bool = False
    """Return only the static schedule, or nothing where there is none."""

    threads: int = 1
    """Cores for feature extraction, which takes most of the time; the search itself uses one, to be repeatable."""


def propose(task: ProposeTask, state: SearchState | None = None) -> list[Candidate]:
    """Return new candidates, most promising first, followed by those for later, in the same order; fewer than wanted,
    or none, if the design space is exhausted.

    Args:
        state: candidates of the workload; None: those that this process has kept.

    Raises:
        InvalidRequest: the strategy is not installed here, or fails.
    """
    load_intrinsics(task.target)
    state = state or state_of(task.mod_json, task.target)
    found = list(itertools.islice(state.own_space(), 1)) if task.is_static else _searched_for(task, state)
    return [replace(one, schedule=None) for one in found]  # a schedule cannot leave the process


def _searched_for(task: ProposeTask, state: SearchState) -> list[Candidate]:
    """Run the strategy."""
    programs = {
        record.trace_json: state.program_of(record.trace_json) if record.program is None else record.program
        for record in task.records
    }
    # Skip traces that do not replay, such as those imported for another program: the search can do without.
    task = replace(task, records=tuple(r for r in task.records if programs[r.trace_json] is not None))
    round_of_search = SearchRound(
        state,
        count=task.count,
        programs=set(programs.values()),
        digests=task.known,
        describe=functools.partial(_described, task, state),
    )
    return strategy_of(task.strategy).propose(task, round_of_search)


def evolve(task: ProposeTask, fresh: SearchRound) -> list[Candidate]:
    """Return the next candidates, of the workload's own space and of MetaSchedule's evolution, then those for later."""
    state = fresh.workload
    elsewhere = _from_elsewhere(task, state, fresh)
    own = _from_own_space(task, state, fresh)
    of_own = min(len(own), task.count - max(len(elsewhere), _share_of_rules(task)))
    of_rules = task.count - len(elsewhere) - of_own
    searched = _searched(task, state, fresh, of_rules) if of_rules > 0 else []
    # All at once: each prediction trains on the records anew.
    described = fresh.describe([*elsewhere, *own, *searched])
    first, rest = described[: len(elsewhere)], described[len(elsewhere) :]
    own_ones, searched_ones = rest[: len(own)], rest[len(own) :]
    own_ones = _best_first(own_ones) if _chooses(task) else own_ones
    first += own_ones[:of_own] + searched_ones[:of_rules]
    later = own_ones[of_own:] + searched_ones[of_rules:]
    return _best_first(first) + _best_first(later[: task.ahead])


def blind_rules(task: ProposeTask, state: SearchState) -> Evolution:
    """Return MetaSchedule's search without records and scores."""
    return replace(_rules(task, state, task.count, is_alone=False), parents=(), ranker=Ranker(None, None, records=0))


def _from_elsewhere(task: ProposeTask, state: SearchState, fresh: SearchRound) -> list[Candidate]:
    """Return the best schedules from elsewhere that fit, for the first batch."""
    if len(task.records) >= task.count:
        return []
    left_out: Counter[Misfit] = Counter()
    fitting = adapted(state, task.seeds, left_out)
    found = list(itertools.islice(fresh.of(fitting), math.ceil(task.count * _FROM_ELSEWHERE)))
    if left_out:
        logger.info("schedules from elsewhere left out", extra={"reasons": {**left_out}})
    return found


def _from_own_space(task: ProposeTask, state: SearchState, fresh: SearchRound) -> list[Candidate]:
    """Return untried schedules of the workload's own space, in order; more than wanted if a model chooses."""
    pool = max(_CHOSEN_FROM * task.count, task.count + task.ahead)
    return list(itertools.islice(fresh.of(state.own_space()), pool if _chooses(task) else task.count))


def _share_of_rules(task: ProposeTask) -> int:
    """Return the number of candidates of a batch from MetaSchedule's rules while the own space is not exhausted."""
    past = len(task.records) - _OWN_FIRST
    if past < 0:
        return 0
    best = min(task.records, key=lambda record: record.run_sec)
    if best.is_of_rules:
        return task.count // 2
    is_their_turn = past // task.count % _RULES_EVERY == 0
    return math.ceil(task.count / _RULES_PART) if is_their_turn else 0


def _searched(task: ProposeTask, state: SearchState, fresh: SearchRound, count: int) -> list[Candidate]:
    """Return new candidates of MetaSchedule's search, with occasional random ones, followed by more for later."""
    found = _rules(task, state, count, is_alone=next(state.own_space(), None) is None).run()
    chance = random.Random(task.seed)
    explored = sum(chance.random() < EXPLORED for _ in range(count))
    best = list(itertools.islice(fresh.of(found), count - explored))
    best += itertools.islice(fresh.of(reversed(found)), explored)
    return best + list(itertools.islice(fresh.of(found), task.ahead))


def _rules(task: ProposeTask, state: SearchState, wanted: int, *, is_alone: bool) -> Evolution:
    """Return MetaSchedule's search: a smaller one beside an own space, and a random one without a model."""
    ranker = _ranker(task)
    most = task.count + task.ahead + len(task.records) + len(task.known)  # it may return all known ones again
    beside = _BESIDE_OWN * min(1.0, 2 * wanted / task.count)
    population = task.population if is_alone else math.ceil(task.population * beside)
    return Evolution(
        state=state,
        parents=[record for record in task.records if record.is_of_rules],
        ranker=ranker,
        population=blind_population(population, most) if ranker.is_blind else population,
        generations=task.generations if is_alone and not ranker.is_blind else 1,
        most=most,
        seed=task.seed,
        threads=task.threads,
    )


def _described(task: ProposeTask, state: SearchState, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates with their predictions; their scores are nan, unless a model chooses."""
    if _is_guided(task):
        candidates = state.with_features(candidates, threads=task.threads)
    expected = expected_of([candidate.features for candidate in candidates], _shared(task), _context(task))
    scores = [math.nan] * len(candidates)
    if _is_guided(task) and any(log_secs is not None for log_secs in expected):
        scores = [-math.inf if log_secs is None else -float(log_secs.mean()) for log_secs in expected]
    elif _is_guided(task) and candidates:
        scores = _ranker(task).score([one.features for one in candidates if one.features is not None]).tolist()
    return [
        replace(one, predicted=score, log_secs=log_secs)
        for one, score, log_secs in zip(candidates, scores, expected, strict=True)
    ]


def _best_first(proposals: Sequence[Candidate]) -> list[Candidate]:
    """Return proposals, best first. Without scores they keep the order of the own space or the search."""
    if any(math.isnan(proposal.predicted) for proposal in proposals):
        return list(proposals)
    return sorted(proposals, key=lambda proposal: -proposal.predicted)


def _chooses(task: ProposeTask) -> bool:
    """Tell whether a model chooses from the own space, whose first batch is taken in its order."""
    return _is_guided(task) and len(task.records) >= task.count


def _is_guided(task: ProposeTask) -> bool:
    """Tell whether a model chooses: the job's own, or the shared one with enough records."""
    if task.model is not None:
        return True
    return task.is_guided and are_enough(task.records) and _shared(task) is not None


def _shared(task: ProposeTask) -> Snapshot | None:
    """Return the shared model."""
    if not task.is_warm:
        return None
    return prior_for(task.target) if task.shared is None else snapshot_of(task.shared)


def _ranker(task: ProposeTask) -> Ranker:
    context = _context(task)
    context = context if _is_guided(task) else replace(context, known=())
    return Ranker(_shared(task), task.model, context, records=len(task.records))


def _context(task: ProposeTask) -> Context:
    return Context(
        flop=task.flop,
        kind=task.kind,
        device_model=task.device_model,
        instruction_set=task.target.instruction_set,
        known=task.records,
    )
