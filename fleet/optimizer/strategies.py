"""Search strategies by name: the ways to find candidates.

A package brings strategies of its own by entry points of the group "fleet.strategies", each the name of a `Strategy`:

    [project.entry-points."fleet.strategies"]
    spread = "spread_search:SPREAD"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fleet.base.config import did_you_mean
from fleet.domain.jobs import DEFAULT_STRATEGY
from fleet.errors import InvalidRequest

if TYPE_CHECKING:
    from fleet.optimizer.core.candidates import Candidate
    from fleet.optimizer.tasks.propose import ProposeTask
    from fleet.optimizer.tasks.search_round import SearchRound

GROUP = "fleet.strategies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to find candidates. Depends on its arguments only, so that an interrupted job continues as it began."""

    propose: Callable[[ProposeTask, SearchRound], list[Candidate]]
    """Returns up to `count` new candidates, the most promising first, and after them up to `ahead` for later."""

    summary: str

    uses_model: bool = False
    """The cost model scores candidates in `SearchRound.describe`."""

    replays: bool = False
    """The task's `replayed` has the library's traces of the workload."""


def _evolve(task: ProposeTask, state: SearchRound) -> list[Candidate]:
    from fleet.optimizer.tasks.propose import evolve

    return evolve(task, state)


def _search_grid(_: ProposeTask, state: SearchRound) -> list[Candidate]:
    from fleet.optimizer.tasks.searches import search_grid

    return state.describe(search_grid(state.workload, state, state.count))


def _search_randomly(task: ProposeTask, state: SearchRound) -> list[Candidate]:
    from fleet.optimizer.tasks.propose import blind_rules
    from fleet.optimizer.tasks.searches import search_randomly

    return state.describe(search_randomly(state.workload, state, state.count, blind_rules(task, state.workload)))


def _replay(task: ProposeTask, state: SearchRound) -> list[Candidate]:
    from fleet.optimizer.tasks.searches import replay_traces

    return state.describe(replay_traces(task.replayed, state.workload, state, state.count))


_EVOLUTIONARY = Strategy(
    propose=_evolve,
    uses_model=True,
    summary="own spaces, then MetaSchedule's rules with its evolutionary search, ranked by the cost model",
)
BUILT_IN: Mapping[str, Strategy] = {
    DEFAULT_STRATEGY: _EVOLUTIONARY,
    "random": Strategy(propose=_search_randomly, summary="schedules picked at random"),
    "replay": Strategy(
        propose=_replay,
        replays=True,
        summary="the schedules that the library has of the same workloads, from any device",
    ),
    "xgb": replace(_EVOLUTIONARY, summary="AutoTVM's XGBTuner: the same as evolutionary"),
    "ga": replace(_EVOLUTIONARY, uses_model=False, summary="AutoTVM's GATuner: evolutionary, without model"),
    "gridsearch": Strategy(
        propose=_search_grid,
        summary="AutoTVM's GridSearchTuner: all schedules in their order, of spaces with fewer than 10,000",
    ),
}

_INSTEAD = {
    "xgb_knob": "xgb",
    "xgb_itervar": "xgb",
    "xgb_curve": "xgb",
    "xgb_rank": "xgb",
    "xgb_knob_rank": "xgb",
    "xgb_itervar_rank": "xgb",
    "xgb_curve_rank": "xgb",
    "xgb_rank_binary": "xgb",
    "droplet": "evolutionary",
    "replay-trace": "random",
    "replay-func": "random",
}
"""Names known from AutoTVM and MetaSchedule, with their equivalents here."""


def strategy_of(name: str) -> Strategy:
    """Return the strategy of a name. Our own come first, so that no package can replace them.

    Raises:
        InvalidRequest: there is none, with the name to use instead, or an installed one cannot be loaded.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in _INSTEAD:
        raise InvalidRequest(
            f"there is no strategy {name!r}; use {_INSTEAD[name]!r}: {BUILT_IN[_INSTEAD[name]].summary}"
        )
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        raise InvalidRequest(f"there is no strategy {name!r}{did_you_mean(name, [*BUILT_IN, *installed])}")
    try:
        strategy = installed[name].load()
    except Exception as error:  # another package's code
        raise _failed(name, error) from error
    if not isinstance(strategy, Strategy):
        raise InvalidRequest(
            f"the strategy {name!r} is {installed[name].value}, no fleet.optimizer.strategies.Strategy"
        )
    return replace(strategy, propose=_named(name, strategy))


def _named(name: str, strategy: Strategy) -> Callable[[ProposeTask, SearchRound], list[Candidate]]:
    """Return the search of an installed strategy, with its name in errors and its proposals checked."""

    def propose(task: ProposeTask, state: SearchRound) -> list[Candidate]:
        from fleet.domain.trace_check import check_trace

        try:
            found = strategy.propose(task, state)[: task.count + task.ahead]
        except Exception as error:  # another package's code
            raise _failed(name, error) from error
        for proposal in found:
            check_trace(proposal.trace_json)
        return found

    return propose


def _failed(name: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the strategy {name!r} of the entry points {GROUP!r} failed: {type(error).__name__}: {error}; "
        f"correct it, or use {DEFAULT_STRATEGY!r}"
    )
