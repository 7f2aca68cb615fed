"""Plots of a simulated week: waits of each class, and the fairness over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.lab_sim import Outcome
from benchmarks.lab_trace import HOG
from fleet.domain.leases import LeaseClass
from fleet.reports.plot import Panel, Svg, svg_plots

_NAMES = {LeaseClass.INTERACTIVE: "prompt", LeaseClass.NORMAL: "CI", LeaseClass.BATCH: "batch"}
_POINTS = 100


def picture(outcomes: Mapping[str, Mapping[str, Outcome]]) -> Svg:
    """Draw a row of panels for each load.

    Args:
        outcomes: weeks by load and scheduler.
    """
    panels = [panel for load, by_scheduler in outcomes.items() for panel in _row(load, by_scheduler)]
    return svg_plots(panels, title="A week with a heavy user: waits [min] over requests, and Jain's index over time")


def _row(load: str, outcomes: Mapping[str, Outcome]) -> list[Panel]:
    waits = [
        Panel(
            title=f"{load} load, {name}: wait [min]",
            curves={scheduler: _percentiles_min(outcome, lease_class) for scheduler, outcome in outcomes.items()},
            lines={},
            first="shortest",
            last="longest",
            has_steps=False,
        )
        for lease_class, name in _NAMES.items()
    ]
    indexes = {scheduler: outcome.jain_by_window() for scheduler, outcome in outcomes.items()}
    # accounts with a backlog differ from one scheduler to the other
    common = sorted(set.intersection(*(set(found) for found in indexes.values())))
    fairness = Panel(
        title=f"{load} load: Jain's index",
        curves={scheduler: [found[window] for window in common] for scheduler, found in indexes.items()},
        lines={},
        first="first window",
        last="last window",
        has_steps=False,
    )
    return [*waits, fairness]


def _percentiles_min(outcome: Outcome, lease_class: LeaseClass) -> Sequence[float]:
    """Return waits at evenly spaced ranks [min], without those of the heaviest user."""
    found = sorted(wait for account, _, wait in outcome.waits_sec[lease_class] if account != HOG)
    return [found[rank * (len(found) - 1) // (_POINTS - 1)] / 60 for rank in range(_POINTS)] if found else []
