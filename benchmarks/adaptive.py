"""Device seconds per trial: stopping candidates after a quick look, beside stopping them after a whole repeat.

    python -m benchmarks.adaptive --json
    python -m benchmarks.adaptive --record benchmarks/recorded_times.json    # times candidates in full, anew

Recorded: times of candidates of matrix products of four sizes are replayed, in many orders, through the agent's own
schedule of repeats. Live: new candidates are built and timed by the agent's runtime under both rules, in turn; the
choices of both rules are then timed once more, alternating.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/adaptive.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.adaptive_rules import (
    BEFORE,
    LONG_MS,
    LOOKS,
    OURS,
    REPEATS,
    RULES,
    SHORT_MS,
    Outcome,
    Recorded,
    choose,
    loss,
    replay,
    shuffled,
)
from benchmarks.candidates import built
from benchmarks.common import JsonObject
from benchmarks.processes import Process, python
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Evaluator, Stop
from fleet.reports.plot import Panel, svg_plots

RECORDED = Path(__file__).with_name("recorded_times.json")

_SIZES, _QUICK_SIZES = (64, 128, 256, 512), (64,)
_CANDIDATES, _QUICK_CANDIDATES = 32, 10
_SHUFFLES, _QUICK_SHUFFLES = 200, 10
_BUDGET = 0.6
_MOST_LOSS = 0.01
_CONFIDENCE = 0.95
_FULL = Evaluator(repeat=15, min_repeat_ms=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One rule on one workload, over orders or rounds."""

    device_ms: float
    """Per trial, mean."""

    losses: Sequence[float]
    """By which share the chosen candidate was slower than the fastest."""

    stopped: float
    """Share of candidates, mean."""


Results = Mapping[str, Mapping[str, Result]]
"""By rule and workload."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("adaptive", __doc__ or "", rounds=3)
    parser.add_argument("--record", type=Path, help="time candidates in full, write what was found here, and end")
    parser.add_argument("--plot", type=Path, help="write device time per trial over workloads here, as SVG")
    options = parser.parse_args(argv)
    machine = common.machine()
    sizes = _QUICK_SIZES if options.quick else _SIZES
    count = _QUICK_CANDIDATES if options.quick else _CANDIDATES
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        if options.record:
            times = {name: _record(artifacts, scratch) for name, artifacts in built(sizes, count, scratch, 0)}
            options.record.write_text(_to_text(times, machine))
            return 0
        recorded = _replayed(_read(RECORDED), _QUICK_SHUFFLES if options.quick else _SHUFFLES)
        rounds = options.rounds or (1 if options.quick else 3)
        live = _live(sizes, count, rounds, scratch)
    figures = {
        "name": "adaptive",
        "unit": "device ms per trial",
        "budget": f"at most {_BUDGET} of the peer's, the chosen at most {_MOST_LOSS:.0%} slower",
        **_figures(live),
        "recorded": {**_figures(recorded), "rules": _rules_json(recorded)},
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    _print(recorded, live, quick=options.quick, machine=machine)
    if options.plot:
        panels = [_panel("recorded", recorded), _panel("live", live)]
        options.plot.write_text(svg_plots(panels, title="Device ms per trial"))
    common.print_json(figures, wanted=options.json)
    return 0


class _Timer:
    """Times artifacts in a process like an agent's worker, on one thread."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __call__(self, artifact: Artifact, evaluator: Evaluator) -> JsonObject:
        return self._process.ask(
            {
                "path": str(artifact.path),
                "args": [[list(spec.shape), spec.dtype, spec.is_output] for spec in artifact.args],
                "evaluator": asdict(evaluator),
            }
        )


@contextlib.contextmanager
def _timer(scratch: Path) -> Iterator[_Timer]:
    one_thread = {"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with Process(python("benchmarks.kernel_timer"), scratch / "timer.log", environment=one_thread) as process:
        process.wait_for("^ready$")
        yield _Timer(process)


def _record(artifacts: Sequence[Artifact], scratch: Path) -> list[Recorded]:
    found = []
    with _timer(scratch) as timer:
        for artifact in artifacts:
            first = timer(artifact, Evaluator())["run_secs"][0]
            number = max(1, math.ceil(0.0005 / first))
            found.append(
                Recorded(
                    timer(artifact, Evaluator(number=number, repeat=LOOKS))["run_secs"],
                    *(
                        timer(artifact, Evaluator(repeat=REPEATS, min_repeat_ms=length))["run_secs"]
                        for length in (SHORT_MS, LONG_MS)
                    ),
                )
            )
    return found


def _to_text(times: Mapping[str, Sequence[Recorded]], machine: common.Machine) -> str:
    def short(secs: Sequence[float]) -> list[float]:
        return [float(f"{sec:.4g}") for sec in secs]

    workloads = {
        name: [[short(one.looks), short(one.short), short(one.long)] for one in found] for name, found in times.items()
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in workloads.items()]
    return f'{{"machine": {json.dumps(machine)},\n "workloads": {{\n' + ",\n".join(lines) + "\n}}\n"


def _read(path: Path) -> dict[str, list[Recorded]]:
    workloads = json.loads(path.read_text())["workloads"]
    return {name: [Recorded(*times) for times in found] for name, found in workloads.items()}


def _replayed(times: Mapping[str, Sequence[Recorded]], shuffles: int) -> Results:
    return {
        rule_name: {
            name: _joined(
                [
                    (outcome := replay(mixed, rule), loss(mixed, outcome.chosen), len(mixed))
                    for mixed in (shuffled(candidates, seed) for seed in range(shuffles))
                ]
            )
            for name, candidates in times.items()
        }
        for rule_name, rule in RULES.items()
    }


def _live(sizes: Sequence[int], count: int, rounds: int, scratch: Path) -> Results:
    outcomes: dict[str, dict[str, list[tuple[Outcome, float, int]]]] = {BEFORE: {}, OURS: {}}
    for seed in range(rounds):
        for name, artifacts in built(sizes, count, scratch, seed + 1):
            with _timer(scratch) as timer:
                found = {side: _search(timer, artifacts, side) for side in (BEFORE, OURS)[:: 1 if seed % 2 else -1]}
                secs = _compared(timer, [artifacts[outcome.chosen] for outcome in found.values()])
            fastest = min(secs)
            for (side, outcome), sec in zip(found.items(), secs, strict=True):
                outcomes[side].setdefault(name, []).append((outcome, sec / fastest - 1, len(artifacts)))
    return {side: {name: _joined(found) for name, found in by_name.items()} for side, by_name in outcomes.items()}


def _search(timer: _Timer, artifacts: Sequence[Artifact], side: str) -> Outcome:
    def measure(index: int, evaluator: Evaluator) -> tuple[float, float, Stop | None]:
        answer = timer(artifacts[index], evaluator)
        stopped = Stop(answer["stopped"]) if answer["stopped"] else None
        return statistics.median(answer["run_secs"]), answer["device_sec"], stopped

    return choose(len(artifacts), RULES[side], measure)


def _compared(timer: _Timer, chosen: Sequence[Artifact]) -> list[float]:
    """Return the time of each choice, timed in turn [s]; a common choice of both rules has ratio 1."""
    if len({artifact.digest for artifact in chosen}) == 1:
        return [1.0] * len(chosen)
    single = [[timer(one, Evaluator(min_repeat_ms=20))["run_secs"][0] for one in chosen] for _ in range(_FULL.repeat)]
    return [min(secs) for secs in zip(*single, strict=True)]


def _joined(outcomes: Sequence[tuple[Outcome, float, int]]) -> Result:
    return Result(
        device_ms=statistics.fmean(outcome.device_sec for outcome, _, _ in outcomes) * 1e3,
        losses=[lost for _, lost, _ in outcomes],
        stopped=statistics.fmean(outcome.stopped / count for outcome, _, count in outcomes),
    )


def _figures(results: Results) -> dict[str, object]:
    """Return device milliseconds of both rules, their ratio, and how much slower the chosen candidates are."""
    peer, ours = ([result.device_ms for result in results[side].values()] for side in (BEFORE, OURS))
    shares = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    losses = {
        side: statistics.fmean(statistics.fmean(result.losses) for result in results[side].values())
        for side in (BEFORE, OURS)
    }
    return {
        "peer": round(statistics.fmean(peer), 3),
        "ours": round(statistics.fmean(ours), 3),
        "ratio": round(statistics.fmean(peer) / statistics.fmean(ours), 3),
        "share": round(statistics.fmean(ours) / statistics.fmean(peer), 3),
        "share_mean_of_workloads": round(statistics.geometric_mean(shares), 3),
        "share_interval": [round(end, 3) for end in _interval(shares)],
        "peer_loss": round(losses[BEFORE], 4),
        "ours_loss": round(losses[OURS], 4),
        "is_within_budget": statistics.geometric_mean(shares) <= _BUDGET
        and losses[OURS] - losses[BEFORE] <= _MOST_LOSS,
    }


def _panel(title: str, results: Results) -> Panel:
    """Draw both rules over the workloads, the smallest first."""
    names = list(results[OURS])
    curves = {side: [results[side][name].device_ms for name in names] for side in (BEFORE, OURS)}
    return Panel(title=f"{title}, of each workload", curves=curves, lines={}, first=names[0], last=names[-1])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of the geometric mean over workloads."""
    chance = random.Random(0)
    means = sorted(statistics.geometric_mean(chance.choices(values, k=len(values))) for _ in range(1000))
    outside = round((1 - _CONFIDENCE) / 2 * len(means))
    return means[outside], means[-1 - outside]


def _rules_json(results: Results) -> dict[str, object]:
    return {
        rule: {
            "device_ms": {name: round(result.device_ms, 3) for name, result in by_name.items()},
            "stopped": {name: round(result.stopped, 3) for name, result in by_name.items()},
            "mean_loss": {name: round(statistics.fmean(result.losses), 4) for name, result in by_name.items()},
            "most_loss": {name: round(max(result.losses), 4) for name, result in by_name.items()},
        }
        for rule, by_name in results.items()
    }


def _print(recorded: Results, live: Results, *, quick: bool, machine: common.Machine) -> None:
    for title, results in (("recorded", recorded), ("live", live)):
        names = list(results[BEFORE])
        rows = [
            (
                rule,
                *(f"{by_name[name].device_ms:.2f}" for name in names),
                f"{statistics.geometric_mean(by_name[n].device_ms / results[BEFORE][n].device_ms for n in names):.2f}",
                f"{max(statistics.fmean(by_name[name].losses) for name in names):.2%}",
                f"{statistics.fmean(by_name[name].stopped for name in names):.0%}",
            )
            for rule, by_name in results.items()
        ]
        columns = ("rule", *names, "share", "slower", "stopped")
        notes = ["share of the first rule's; slower: mean over orders, of the worst workload"]
        if title == "live":
            notes += _bars(results) + common.doubts(machine, quick=quick)
        common.print_table(f"{title}: device ms per trial", columns, rows, notes)


def _bars(results: Results) -> list[str]:
    """Draw the share of device time per workload."""
    names = list(results[BEFORE])
    shares = {name: results[OURS][name].device_ms / results[BEFORE][name].device_ms for name in names}
    return [f"{name:>12} {'#' * round(40 * min(share, 1.5)):<60} {share:.2f}" for name, share in shares.items()]


if __name__ == "__main__":
    sys.exit(main())
