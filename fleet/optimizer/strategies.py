"""Search strategies by name: how candidates are proposed, and whether the cost model has a say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.base.config import did_you_mean
from fleet.errors import InvalidRequest
from fleet.optimizer.search_terms import Search

DEFAULT = "evolutionary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Search strategy of a job."""

    name: str
    search: Search
    uses_model: bool
    """Whether the cost model chooses among found candidates; False: the search's order counts."""

    summary: str


_STRATEGIES = [
    Strategy(
        name=DEFAULT,
        search=Search.EVOLUTIONARY,
        uses_model=True,
        summary="own spaces, then MetaSchedule's rules with its evolutionary search, ranked by the cost model",
    ),
    Strategy(name="random", search=Search.RANDOM, uses_model=False, summary="schedules picked at random"),
    Strategy(
        name="replay",
        search=Search.REPLAY,
        uses_model=False,
        summary="the schedules that the library has of the same workloads, from any device",
    ),
    Strategy(
        name="xgb", search=Search.EVOLUTIONARY, uses_model=True, summary="AutoTVM's XGBTuner: the same as evolutionary"
    ),
    Strategy(
        name="ga",
        search=Search.EVOLUTIONARY,
        uses_model=False,
        summary="AutoTVM's GATuner: evolutionary, without model",
    ),
    Strategy(
        name="gridsearch",
        search=Search.GRID,
        uses_model=False,
        summary="AutoTVM's GridSearchTuner: all schedules in their order, of spaces with fewer than 10,000",
    ),
]
STRATEGIES: Mapping[str, Strategy] = {strategy.name: strategy for strategy in _STRATEGIES}

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
    """Return the strategy of a name.

    Raises:
        InvalidRequest: there is none; the text names the alternatives.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if name in _INSTEAD:
        raise InvalidRequest(
            f"there is no strategy {name!r}; use {_INSTEAD[name]!r}: {STRATEGIES[_INSTEAD[name]].summary}"
        )
    raise InvalidRequest(f"there is no strategy {name!r}{did_you_mean(name, STRATEGIES)}")
