"""Device seconds until the same weighted latency, live: the product beside MetaSchedule's gradient scheduler per job.

    python -m benchmarks prioritizer_live --seeds 5

A real tracker with TLS and a real agent; each side has two simulated boards, a library and two optimizers. All sides
get the same jobs at once, with recorded candidates in the same order, and with their recorded times and some noise.
The peer plans each job alone by MetaSchedule's gradient rule, measures candidates in the order in which a search finds
them (--ranked: by our shared cost model), and requests a board for each batch, first come, first served. An urgent job
arrives when the others have begun, and is judged from its first measurement on. Gains count from the first batch in the
search's order. Device seconds follow from the recorded times, but a busy machine still delays builds, and with them a
job's next request.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/prioritizer_live.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import common
from benchmarks.cost_data.dataset import Group, load
from benchmarks.cost_model import DATA, usable
from benchmarks.live_lab import snapshot_without
from benchmarks.live_races import Lab, running_lab
from benchmarks.live_scenarios import SCENARIOS, Race, draw
from benchmarks.live_scores import Score, score
from benchmarks.replay_data import LEAST
from fleet.cost_model.packaged_model import PATH

PEER, OURS = "gradient", "ours"
GOALS = {"one_account": 0.6, "hog": 0.65, "deadline": 0.5}
"""Share of the peer's device seconds: of all jobs, or of the one with a deadline."""

_TRIALS = 24
"""For each workload."""

_SEEDS = 5

Scores = Mapping[str, Sequence[Score]]
"""Score of each race by side."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("prioritizer_live", __doc__ or "", rounds=_SEEDS)
    parser.add_argument("--seeds", type=int, default=None, help="races of each scenario, the same as --rounds")
    parser.add_argument("--ranked", action="store_true", help="let the peer choose candidates by our cost model, too")
    parser.add_argument("--scenario", choices=list(GOALS), action="append", help="only this one; may be repeated")
    options = parser.parse_args(argv)
    seeds = options.seeds or options.rounds or (1 if options.quick else _SEEDS)
    at = common.machine()
    names = ["tiny"] if options.quick else options.scenario or list(GOALS)
    order = "ranked" if options.ranked else "found"
    found = _run(names, seeds, order, is_quick=options.quick)
    run = {"seeds": seeds, "order": order, "quick": options.quick, "machine": at}
    figures = {**_figures(found), **run}
    for name in names:
        _print(name, figures[name], common.doubts(at, quick=options.quick))
    common.print_json(figures, wanted=options.json)
    return 0


def _run(names: Sequence[str], seeds: int, order: str, *, is_quick: bool) -> Mapping[str, Scores]:
    """Run the races of some scenarios.

    Args:
        order: see `benchmarks.peers.gradient_optimizer`.
    """
    groups = held_out([usable(group) for group in load(DATA).groups])
    numbers = {name: place for place, name in enumerate(GOALS)}
    races = {
        name: [draw(SCENARIOS[name], groups, race=numbers.get(name, 0) + len(numbers) * seed) for seed in range(seeds)]
        for name in names
    }
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        running_lab(
            Path(folder),
            {PEER: ("benchmarks.peers.gradient_optimizer", order), OURS: ("benchmarks.peers.recorded_optimizer",)},
            snapshot=PATH.read_bytes() if is_quick else snapshot_without(groups),
            tracks=_tracks(race for some in races.values() for race in some),
            optimizers=1 if is_quick else 2,
        ) as lab,
    ):
        return {name: _scores(lab, name, some) for name, some in races.items()}


def held_out(groups: Sequence[Group]) -> dict[int, Group]:
    """Return every second recorded workload by name, with its place: the shared model learns from the others."""
    large = sorted((group.program.operator, place) for place, group in enumerate(groups) if len(group) >= LEAST)
    return {place: groups[place] for _, place in large[1::2]}


def _tracks(races: Iterable[Race]) -> dict[str, object]:
    programs = (program for race in races for some in race.values() for program in some)
    return {one.key: {"group": one.group, "order": one.order} for one in programs}


def _scores(lab: Lab, name: str, races: Sequence[Race]) -> Scores:
    scenario = SCENARIOS[name]
    found: dict[str, list[Score]] = {side: [] for side in lab.sides}
    for number, race in enumerate(races):
        measured = lab.run(scenario, race, label=f"{name}-{number}", trials=_TRIALS)
        for side, some in measured.items():
            found[side].append(score(some, measured[PEER], race, scenario.accounts, scenario.urgent))
        newest = ", ".join(f"{side} {scores[-1].total:.3f}" for side, scores in found.items())
        common.say(f"{scenario.title}, race {number + 1} of {len(races)}: {newest}")
    return found


def _figures(found: Mapping[str, Scores]) -> common.JsonObject:
    by_scenario = {
        name: {side: _summary(some, SCENARIOS[name].urgent) for side, some in scores.items()}
        for name, scores in found.items()
    }
    ours = [one.total for scores in found.values() for one in scores[OURS]]
    mean = float(np.mean(ours))
    return {
        "unit": "device seconds to 95 % of the peer's gain",
        "peer": 1.0,
        "ours": round(mean, 4),
        "ratio": round(1 / mean, 4),
        "interval": common.interval_of_mean(ours),
        "goals": GOALS,
        **by_scenario,
    }


def _summary(scores: Sequence[Score], urgent: str) -> common.JsonObject:
    """Return the means of one side's races; the last two only with an urgent job."""
    totals = [one.total for one in scores]
    jobs = _known(value for one in scores for value in one.by_job.values())
    summary: common.JsonObject = {
        "mean": round(float(np.mean(totals)), 4),
        "interval": common.interval_of_mean(totals),
        "all": [round(value, 4) for value in totals],
        "reached": sum(one.is_reached for one in scores),
        "each_job": round(float(np.mean(jobs)), 4) if jobs else None,
        "trials": sum(one.trials for one in scores),
        "jain": round(float(np.mean([one.jain for one in scores])), 4),
    }
    if urgent:
        soon = _known(one.by_job[urgent] for one in scores)
        summary |= {
            "urgent": round(float(np.mean(soon)), 4) if soon else None,
            "urgent_interval": common.interval_of_mean(soon) if soon else None,
            "urgent_all": [round(value, 4) for value in soon],
            "in_time": sum(one.is_in_time for one in scores),
        }
    return summary


def _known(ratios: Iterable[float]) -> list[float]:
    """Leave out jobs on which the peer gained nothing."""
    return [ratio for ratio in ratios if not math.isnan(ratio)]


def _print(name: str, sides: common.JsonObject, notes: Sequence[str]) -> None:
    scenario = SCENARIOS[name]
    rows = [
        (
            side,
            "{:.2f}".format(found["mean"]),
            "{:.2f} to {:.2f}".format(*found["interval"]),
            f"{found['reached']}/{len(found['all'])}",
            _text(found["each_job"]),
            "{:.3f}".format(found["jain"]),
            _text(found.get("urgent")),
            f"{found['in_time']}/{len(found['all'])}" if scenario.urgent else "",
        )
        for side, found in sides.items()
    ]
    common.print_table(
        f"{scenario.title}: device seconds to 95 % of the peer's gain, {PEER} = 1, goal {GOALS.get(name)}",
        ("side", "mean", "95 %", "reached", "each job", "Jain", "short job", "in time"),
        rows,
        notes,
    )


def _text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
