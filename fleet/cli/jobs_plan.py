"""Output of `fleet jobs why`: the batches that a job plans, and their ranks among those of all running jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType

from fleet.base.quantities import time_text
from fleet.cli.tables import ROOMY_COLUMNS, line, make_table
from fleet.cli.watching import progress_of, readable_progress
from fleet.domain.decisions import Motive, Reason
from fleet.library import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedBatch:
    """One planned batch of a job."""

    rank: int
    """Place among the planned batches of all running jobs, 1 for the largest worth."""

    selector: str
    """Kind of board."""

    operator: str
    count: int
    reason: Reason
    sentence: str


def ranked_plan(job: Job, running: Sequence[Job]) -> list[RankedBatch]:
    """Return the planned batches of a job, the most valuable first.

    Args:
        running: all running jobs, this one included.
    """
    worths = [batch.reason.worth for each in running for kind in readable_progress(each) for batch in kind.plan]
    found = [
        RankedBatch(
            rank=1 + sum(worth > batch.reason.worth for worth in worths),
            selector=kind.selector,
            operator=batch.operator,
            count=batch.count,
            reason=batch.reason,
            sentence=batch.sentence,
        )
        for kind in progress_of(job)
        for batch in kind.plan
    ]
    return sorted(found, key=lambda batch: batch.rank)


def print_plan(plan: Sequence[RankedBatch], total: int, console: Console) -> None:
    """Print a row for each planned batch.

    Args:
        total: planned batches of all running jobs.
    """
    has_room = console.width >= ROOMY_COLUMNS
    columns = ["rank", "operator", "trials", "gain", "+-", "calls", "device", "builders"]
    columns += ["worth", "why", "board"] if has_room else []
    table = make_table(*columns, left=frozenset({"operator", "why", "board"}))
    for batch in plan:
        reason = batch.reason
        cells: list[RenderableType] = [
            f"{batch.rank}/{total}",
            line(batch.operator),
            str(batch.count),
            _gain_text(reason.gain_sec),
            _gain_text(reason.spread_sec),
            f"{reason.weight:g}",
            time_text(reason.device_sec, digits=2),
            time_text(reason.builder_sec, digits=2),
        ]
        cells += [f"{reason.worth:.2g}", _MOTIVES[reason.motive], line(batch.selector)] if has_room else []
        table.add_row(*cells)
    console.print(table)


def _gain_text(sec: float) -> str:
    """Return a gain; "-" before the workload has any time."""
    return time_text(sec if math.isfinite(sec) else None, digits=2)


_MOTIVES = {Motive.FIRST: "first batch", Motive.GAIN: "gain", Motive.EXPLORATION: "fewest batches"}
