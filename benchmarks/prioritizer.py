"""Device seconds until the same latency: our prioritizer beside MetaSchedule's gradient scheduler, and others.

    python -m benchmarks.prioritizer

Recorded candidates are measured again in simulated device time, in at least 100 orders that all policies share: for one
model, for three models of different users, and for a short job beside a long one. benchmarks/data/replay.npz was made
by --prepare from a data set of `benchmarks.collect`: times, and predictions of cost models trained on other workloads.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/prioritizer.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import (
    REPOSITORY,
    JsonObject,
    Machine,
    interval_of_mean,
    machine,
    make_parser,
    print_json,
    print_table,
    say,
)
from benchmarks.policies import (
    Prioritizer,
    follow_gradient,
    follow_gradient_ranked,
    know_everything,
    take_turns,
)
from benchmarks.replay_data import Recorded, load, prepare, save
from benchmarks.replaying import Policy, Race, Track, run, seconds_to
from fleet.reports.plot import Panel, svg_plots, text_plot

DATA = REPOSITORY / "benchmarks/data/replay.npz"

PEER, OURS, ORACLE = "gradient", "ours", "oracle"
RANKED = "gradient, ranked"
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "turns": lambda: take_turns,
    PEER: lambda: follow_gradient,
    RANKED: lambda: follow_gradient_ranked,
    "records": lambda: Prioritizer(0, predicts=False),
    OURS: lambda: Prioritizer(0, predicts=True),
    ORACLE: lambda: know_everything,
}
"""For all of them a search finds the same candidates in the same order. "gradient", "records" (ours without a cost
model) and the oracle take them in that order; "gradient, ranked" and ours the best predicted of four batches."""

_LEVELS = (0.25, 0.5, 0.75, 0.95)
"""Device seconds are counted to the latency that the gradient scheduler has after these shares of its batches."""

_POINTS = 60


@dataclass(frozen=True, slots=True)
class Scenario:
    """Workloads that compete for a device."""

    title: str
    jobs: Sequence[int]
    """Number of workloads of each job."""


SCENARIOS: Mapping[str, Scenario] = {
    "one_model": Scenario("one model of 8 workloads", (8,)),
    "three_models": Scenario("three models of different users, 4 workloads each", (4, 4, 4)),
    "short_and_long": Scenario("a job of 2 workloads beside one of 8", (2, 8)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Replay."""
    parser = make_parser("prioritizer", "Device seconds to the same latency, in recorded data.", rounds=100)
    parser.add_argument("--data", type=Path, default=DATA, help="recorded candidates (default: %(default)s)")
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="only every second workload: what is tuned on one is told by the other"
    )
    parser.add_argument(
        "--prepare", type=Path, metavar="DATASET", help="make --data from a data set of benchmarks.collect"
    )
    parser.add_argument("--svg", type=Path, help="write the curves of the first scenario here")
    options = parser.parse_args(argv)
    if options.prepare is not None:
        save(options.data, prepare(options.prepare))
        return 0
    shuffles = options.rounds or (1 if options.quick else 100)
    at = machine()
    recorded = load(options.data)[options.half :: 1 if options.half is None else 2]
    found = {name: _replay(scenario, recorded, shuffles) for name, scenario in SCENARIOS.items()}
    figures = _figures(found, shuffles, at, options)
    for name, scenario in SCENARIOS.items():
        _print(scenario, figures[name])
    curves = _curves(found["one_model"])
    print(text_plot(curves, {}))
    if options.svg is not None:
        ends = {"first": "first batches", "last": "the gradient scheduler's last"}
        panel = Panel(title="one model", curves=curves, lines={}, has_steps=False, **ends)
        options.svg.write_text(svg_plots([panel], title="Latency over device seconds"))
    print_json(figures, wanted=options.json)
    return 0


def _replay(scenario: Scenario, recorded: Sequence[Recorded], shuffles: int) -> list[dict[str, Race]]:
    say(f"{scenario.title}, {shuffles} orders")
    return [
        {name: run(tracks, make()) for name, make in POLICIES.items()}
        for tracks in (_tracks(scenario, recorded, seed) for seed in range(shuffles))
    ]


def _tracks(scenario: Scenario, recorded: Sequence[Recorded], seed: int) -> list[Track]:
    """Draw workloads, their weights in a model, and the orders of their candidates: evolved ones come last."""
    rng = np.random.default_rng(seed)
    jobs = [f"job {number}" for number, size in enumerate(scenario.jobs) for _ in range(size)]
    tracks = []
    for job, index in zip(jobs, rng.choice(len(recorded), len(jobs), replace=False), strict=True):
        one = recorded[index]
        early, late = np.flatnonzero(~one.is_late), np.flatnonzero(one.is_late)
        order = np.concatenate([rng.permutation(early), rng.permutation(late)])
        weight = float(rng.integers(1, 8))
        tracks.append(Track(one.name, job, weight, one.run_secs[order], one.values[:, order], one.slope, one.noise))
    return tracks


def _ratios(races: Sequence[Mapping[str, Race]], name: str) -> list[float]:
    """Return, for each order, device seconds as a share of the gradient scheduler's, mean over the levels."""
    found = []
    for by_policy in races:
        peer = by_policy[PEER]
        levels = [peer.curve[round(share * (len(peer.curve) - 1))][1] for share in _LEVELS]
        shares = [seconds_to(by_policy[name], level) / seconds_to(peer, level) for level in levels]
        found.append(math.fsum(shares) / len(shares))
    return found


def _figures(
    found: Mapping[str, list[dict[str, Race]]], shuffles: int, at: Machine, options: argparse.Namespace
) -> JsonObject:
    by_scenario: JsonObject = {}
    everything: dict[str, list[float]] = {name: [] for name in POLICIES}
    for scenario, races in found.items():
        ratios = {name: _ratios(races, name) for name in POLICIES}
        for name, values in ratios.items():
            everything[name] += values
        by_scenario[scenario] = _summary(ratios)
    total = _summary(everything)
    peer_sec = float(np.mean([races[PEER].device_sec for all_races in found.values() for races in all_races]))
    return {
        "unit": "device seconds to the same latency",
        "peer": round(peer_sec, 3),
        "ours": round(peer_sec * total[OURS]["mean"], 3),
        "ratio": round(1 / total[OURS]["mean"], 4),
        "interval": total[OURS]["interval"],
        "gap_closed": total["gap_closed"],
        "to_ranked_gradient": round(total[OURS]["mean"] / total[RANKED]["mean"], 4),
        "all": total,
        **by_scenario,
        "shuffles": shuffles,
        "quick": options.quick,
        "machine": at,
    }


def _summary(ratios: Mapping[str, Sequence[float]]) -> JsonObject:
    summary: JsonObject = {
        name: {"mean": round(float(np.mean(values)), 4), "interval": interval_of_mean(values)}
        for name, values in ratios.items()
    }
    gap = 1 - summary[ORACLE]["mean"]
    summary["gap_closed"] = round((1 - summary[OURS]["mean"]) / gap, 4) if gap > 0 else None
    return summary


def _print(scenario: Scenario, summary: JsonObject) -> None:
    rows = [
        (name, f"{summary[name]['mean']:.3f}", "{:.3f} to {:.3f}".format(*summary[name]["interval"]))
        for name in POLICIES
    ]
    notes = [f"share of the gap to the oracle that ours closes: {summary['gap_closed']}"]
    print_table(
        f"{scenario.title}: device seconds to the same latency, gradient scheduler = 1",
        ("policy", "mean", "95 %"),
        rows,
        notes,
    )


def _curves(races: Sequence[Mapping[str, Race]]) -> dict[str, list[float]]:
    """Return the mean latency after equal shares of all device seconds."""
    curves: dict[str, list[float]] = {}
    for name in POLICIES:
        sums = np.zeros(_POINTS)
        for by_policy in races:
            secs, latencies = np.array(by_policy[name].curve).T
            at = np.linspace(secs[0], by_policy[PEER].device_sec, _POINTS)
            sums += latencies[np.maximum(np.searchsorted(secs, at, side="right") - 1, 0)]
        curves[name] = (sums / len(races)).tolist()
    return curves


if __name__ == "__main__":
    raise SystemExit(main())
