"""Ranking by the cost model of candidates of unseen workloads, beside MetaSchedule's XGBModel.

Each workload of the frozen split is left out once; both models learn from all other workloads of the data set
(`benchmarks.collect`), on the same records, and rank its candidates: without records of it, and after 8 of its own.
XGBModel gets the records of all workloads, too, which stock `tune_tir` never does. Intervals are over workloads
(bootstrap, 95 %). Nothing runs on a device, so any machine gives the same figures, training times apart.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/cost_model.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.cost_data.dataset import Group, load
from benchmarks.cost_data.ranking import best_of_top
from benchmarks.processes import Process, python
from fleet.cost_model.experts import PARTS
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Context
from fleet.cost_model.training import train_snapshot
from fleet.domain.observation import Observation
from fleet.reports.plot import Panel, svg_plots

DATA = common.REPOSITORY / "benchmarks" / "data" / "x86_64_v4.npz"
SPLIT = common.REPOSITORY / "benchmarks" / "data" / "x86_64_v4.split.json"

_OWN_RECORDS = 8
_TOP = 8
_TRAINED = 4096
_QUICK_WORKLOADS = 2
_TRAINING_TIMEOUT_SEC = 600.0
_LEVELS = np.arange(0.1, 1.0, 0.1)
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One side on one workload that it has not seen."""

    operator: str
    pairs: float
    top: float
    own_space_top: float
    """Best of the first eight among the candidates of its own space, in which all are good; nan if it has none."""

    own_records_pairs: float
    """With 8 records of its own, on its other candidates."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("cost_model", __doc__ or "", rounds=1)
    parser.add_argument("--plot", type=Path, help="write the calibration plot here, as SVG")
    parser.add_argument(
        "--training-only", action="store_true", help="print the training times as JSON and nothing else"
    )
    options = parser.parse_args(argv)
    machine = common.machine()
    groups = [usable(group) for group in load(DATA).groups]
    if options.training_only:
        print(json.dumps(_training_times(groups)), flush=True)
        return 0
    evaluated = json.loads(SPLIT.read_text())["evaluated"]
    if options.quick:
        evaluated = evaluated[:_QUICK_WORKLOADS]
    ours, peers, inside, ablated = [], [], [], []
    for number, shash in enumerate(evaluated):
        left = next(group for group in groups if group.program.shash == shash)
        others = [group for group in groups if group.program.shash != shash and len(group) >= _OWN_RECORDS]
        own = np.random.default_rng(number).permutation(len(left))[:_OWN_RECORDS]
        found, coverage, without = _ours(others, left, own)
        ours.append(found)
        inside.append(coverage)
        ablated.append(without)
        peers.append(_peer(others, left, own))
        common.say(
            f"{number + 1}/{len(evaluated)} {left.program.operator}: ours {found.pairs:.2f}, peer {peers[-1].pairs:.2f}"
        )
    training = {} if options.quick else _train_on_one_thread()
    figures = {**_figures(ours, peers, inside, training), "parts": _of_parts(ablated)}
    _print(figures, machine, quick=options.quick)
    if options.plot:
        observed = [0.0, *np.mean(inside, axis=0).tolist(), 1.0]
        curves = {"observed": observed, "ideal": [0.0, *_LEVELS.tolist(), 1.0]}
        title = "share of times inside our central interval"
        panel = Panel(title=title, curves=curves, lines={}, first="0 %", last="100 %", has_steps=False)
        options.plot.write_text(svg_plots([panel], title="Calibration, workloads left out"))
    common.print_json({**figures, "quick": options.quick, "machine": machine}, wanted=options.json)
    return 0


def usable(group: Group) -> Group:
    """Return the candidates that ran."""
    kept = [index for index in range(len(group)) if np.isfinite(group.run_sec[index]) and len(group.features[index])]
    return replace(
        group,
        features=[group.features[index] for index in kept],
        run_sec=group.run_sec[kept],
        spread=group.spread[kept],
        sources=[group.sources[index] for index in kept],
        traces=[group.traces[index] for index in kept],
        is_disturbed=group.is_disturbed[kept],
    )


def samples_of(
    group: Group, device_model: str = "x86_64_v4", instruction_set: str = "avx512 vnni"
) -> list[Observation]:
    """Return a group in the form that the cost model takes."""
    return [
        Observation(
            workload=group.program.shash,
            run_sec=float(run_sec),
            features=features,
            flop=group.program.flop,
            device_model=device_model,
            instruction_set=instruction_set,
            is_disturbed=bool(is_disturbed),
        )
        for features, run_sec, is_disturbed in zip(group.features, group.run_sec, group.is_disturbed, strict=True)
    ]


def _ours(others: Sequence[Group], left: Group, own: NDArray[np.int64]) -> tuple[Ranked, list[float], dict[str, float]]:
    """Return our model's ranking, the coverage of its intervals, and the pairs that some of its parts rank right."""
    snapshot = train_snapshot(sample for group in others for sample in samples_of(group))
    samples = samples_of(left)
    context = Context(
        flop=left.program.flop, device_model=samples[0].device_model, instruction_set=samples[0].instruction_set
    )
    found = snapshot.predict(left.features, context)
    rest = np.setdiff1d(np.arange(len(left)), own)
    asked = [left.features[index] for index in rest]
    after = snapshot.predict(asked, replace(context, known=[samples[index] for index in own]))
    logs = np.log(left.run_sec)
    coverage = [
        float(((logs >= low) & (logs <= high)).mean())
        for low, high in (np.quantile(found.members, [0.5 - at / 2, 0.5 + at / 2], axis=0) for at in _LEVELS)
    ]
    parts = snapshot.model.parts(snapshot.model.frame(left.features), left.features).mean(axis=0)
    ablated = {
        " and ".join(PARTS[place].name for place in chosen): ranked_right(
            parts[list(chosen)].mean(axis=0), left.run_sec
        )
        for count in range(1, len(PARTS) + 1)
        for chosen in itertools.combinations(range(len(PARTS)), count)
    }
    return _ranked(left, found.log_sec, after.log_sec, rest), coverage, ablated


def _peer(others: Sequence[Group], left: Group, own: NDArray[np.int64]) -> Ranked:
    rest = np.setdiff1d(np.arange(len(left)), own)
    before = _xgb_model(others)(left.features)
    first = replace(left, features=[left.features[index] for index in own], run_sec=left.run_sec[own])
    after = _xgb_model([*others, first])([left.features[index] for index in rest])
    return _ranked(left, -before, -after, rest)


def _xgb_model(
    groups: Sequence[Group],
) -> Callable[[Sequence[NDArray[np.float32]]], NDArray[np.float64]]:
    """Train MetaSchedule's XGBModel on records as its `update` does, and return a function that predicts scores."""
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    model = XGBModel(num_tuning_cores=1, num_warmup_samples=0)
    features = [one for group in groups for one in group.features]
    scores = np.concatenate([group.run_sec.min() / group.run_sec for group in groups])
    model._train(features, scores.astype("float32"))  # noqa: SLF001 - `update` wants TVM's candidates
    return lambda asked: np.asarray(model._predict(list(asked)))  # noqa: SLF001


def _ranked(left: Group, before: NDArray[np.floating], after: NDArray[np.floating], rest: NDArray[np.int64]) -> Ranked:
    own_space = np.array([index for index, source in enumerate(left.sources) if source == "own"], int)
    has_space = len(own_space) > 2 * _TOP
    return Ranked(
        operator=left.program.operator,
        pairs=ranked_right(before, left.run_sec),
        top=best_of_top(before, left.run_sec, _TOP),
        own_space_top=best_of_top(before[own_space], left.run_sec[own_space], _TOP) if has_space else float("nan"),
        own_records_pairs=ranked_right(after, left.run_sec[rest]),
    )


def _train_on_one_thread() -> dict[str, float]:
    """Train in a process with a single-threaded matrix library, as in workers of the pool: waiting threads count,
    too.
    """
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = python("benchmarks.cost_model", "--training-only")
    with tempfile.TemporaryDirectory() as folder, Process(command, Path(folder) / "log", environment=one) as process:
        times: dict[str, float] = json.loads(process.finish(_TRAINING_TIMEOUT_SEC)[-1])
    return times


def _training_times(groups: Sequence[Group]) -> dict[str, float]:
    """Return processor seconds to train on 4,096 records, by side."""
    repeated = (replace(group, program=replace(group.program, shash=f"{round_}{group.program.shash}"))
                for round_ in range(10) for group in groups if len(group) >= _OWN_RECORDS)  # fmt: skip
    chosen, left = [], _TRAINED
    for group in repeated:
        part = replace(
            group, features=group.features[:left], run_sec=group.run_sec[:left], is_disturbed=group.is_disturbed[:left]
        )
        chosen.append(part)
        left -= len(part)
        if left < _OWN_RECORDS:
            break
    samples = [sample for group in chosen for sample in samples_of(group)]
    return {"ours": _cpu_sec(lambda: train_snapshot(samples)), "peer": _cpu_sec(lambda: _xgb_model(chosen))}


def _cpu_sec(work: Callable[[], object]) -> float:
    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(3))


def _interval(values: Sequence[float]) -> list[float]:
    """Return mean and 95 % interval over workloads."""
    array = np.array([value for value in values if not np.isnan(value)])
    if not len(array):
        return [float("nan")] * 3
    means = np.random.default_rng(0).choice(array, (_RESAMPLES, len(array))).mean(axis=1)
    return [round(float(found), 4) for found in (array.mean(), *np.quantile(means, [0.025, 0.975]))]


def _figures(
    ours: Sequence[Ranked], peers: Sequence[Ranked], inside: Sequence[list[float]], training: dict[str, float]
) -> common.JsonObject:
    names = ("pairs", "top", "own_space_top", "own_records_pairs")
    of_side = {
        side: {name: _interval([getattr(found, name) for found in ranked]) for name in names}
        for side, ranked in (("ours", ours), ("peer", peers))
    }
    covered = zip(_LEVELS, np.mean(inside, axis=0), strict=True)
    pairs = list(zip(ours, peers, strict=True))
    difference = [one.pairs - other.pairs for one, other in pairs]
    return {
        "name": "cost_model",
        "unit": "share of pairs ranked right in workloads never seen",
        "peer": of_side["peer"]["pairs"][0],
        "ours": of_side["ours"]["pairs"][0],
        "ratio": round(of_side["ours"]["pairs"][0] / of_side["peer"]["pairs"][0], 3),
        "difference": _interval(difference),
        "workloads": len(ours),
        "intervals": of_side,
        "coverage": {f"{at:.1f}": round(float(found), 3) for at, found in covered},
        "training_cpu_sec": {side: round(sec, 2) for side, sec in training.items()},
        "by_workload": {one.operator: [round(one.pairs, 3), round(other.pairs, 3)] for one, other in pairs},
    }


def _of_parts(ablated: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return the pairs that each combination of parts ranks right, with intervals."""
    return {name: _interval([found[name] for found in ablated]) for name in ablated[0]}


def _print(figures: common.JsonObject, machine: common.Machine, *, quick: bool) -> None:
    intervals = figures["intervals"]
    training, coverage = figures["training_cpu_sec"], figures["coverage"]

    def shown(side: str, name: str) -> str:
        mean, low, high = intervals[side][name]
        return f"{mean:.3f} ({low:.3f}-{high:.3f})"

    labels = {
        "pairs": "pairs right, never seen",
        "top": "best of top 8, never seen",
        "own_space_top": "the same within its own space",
        "own_records_pairs": "pairs right, 8 own records",
    }
    rows = [(label, shown("peer", name), shown("ours", name)) for name, label in labels.items()]
    if training:
        rows.append(("training on 4,096 records [CPU s]", f"{training['peer']:.2f}", f"{training['ours']:.2f}"))
    notes = [
        f"mean and 95 % interval over {figures['workloads']} workloads, each left out once",
        f"of what was measured, {coverage['0.8']:.0%} lie within our central 80 %",
        *common.doubts(machine, quick=quick),
    ]
    common.print_table("ranking candidates", ("", "XGBModel", "ours"), rows, notes)
    parts = [(name, f"{mean:.3f} ({low:.3f}-{high:.3f})") for name, (mean, low, high) in figures["parts"].items()]
    common.print_table("pairs ranked right by some parts of our model", ("parts", "ours"), parts, [])


if __name__ == "__main__":
    sys.exit(main())
