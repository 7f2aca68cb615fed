"""Speed over trials for single layers: random search, stock MetaSchedule guided by its cost model, and ours.

    python -m benchmarks.curves --svg curves.svg --torch-python ~/torch/bin/python
    python -m benchmarks.curves --trials 64 --layers 4 --minutes 60
    python -m benchmarks.curves --quick --json

The layers are ResNet-18's convolutions (float32, one image). Random and model-guided search are stock MetaSchedule on
its own space; ours is `fleet tune`. All are measured by one and the same agent, so that only space and search differ;
the seconds of the stock searches are therefore smaller than with `LocalBuilder` and `RPCRunner`. Beside them ONNX
Runtime and, where it is installed, PyTorch run the layer on as many threads as the machine has physical cores. Speeds
are relative to the fastest schedule that any search found for the layer; a mean over layers is geometric. A schedule's
time is the least of many candidates', so the least of an engine's blocks stands beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/curves.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx

from benchmarks import common
from benchmarks.common import JsonObject
from benchmarks.curve import Curve, Trial, mean_speeds
from benchmarks.engines import Engine, Program
from benchmarks.processes import Process, ProcessFailed, python
from benchmarks.tune_conv2d import RESNET18, Layer, check_torch, run_torch, write_model
from fleet.export.targets import target_of
from fleet.library import Library
from fleet.models.node_by_node import example_inputs
from fleet.reports.plot import Panel, svg_plots, text_plot

_TRIALS, _QUICK_TRIALS = 32, 4
_MINUTES = 18.0
_BATCH = 16
_QUICK_POPULATION = 16
_QUICK_LAYER = 9
"""The smallest: a 1x1 convolution on 14 x 14 pixels."""

_TIMEOUT_SEC = 3600.0
_BLOCK_SEC = 0.3
_BLOCKS = 5
_SEARCHES = ("random", "guided", "ours")
_ENGINES = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch"}
_SHORT = {"onnxruntime": "ORT", "torch": "PyTorch"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("curves", __doc__ or "", rounds=1)
    parser.add_argument("--trials", type=int, help=f"per search and layer (default: {_TRIALS}, quick: {_QUICK_TRIALS})")
    parser.add_argument("--layers", type=int, default=len(RESNET18), help="only the first so many (default: all)")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="begin no layer after (default: %(default)g)")
    parser.add_argument("--threads", type=int, default=common.physical_cores(), help="of the other engines")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot as a picture, too")
    options = parser.parse_args(argv)
    trials = options.trials or (_QUICK_TRIALS if options.quick else _TRIALS)
    layers = [RESNET18[_QUICK_LAYER]] if options.quick else RESNET18[: options.layers]
    machine = common.machine()
    started = time.monotonic()
    found: list[JsonObject] = []
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory, _fleet(Path(directory)) as tracker:
        for number, layer in enumerate(layers):
            if number and time.monotonic() - started > options.minutes * 60:
                common.say(f"{options.minutes:g} minutes are over: {len(layers) - number} layers are left out")
                break
            found.append(_search_all(layer, Path(directory) / f"layer{number}", tracker, options, trials=trials))
    figures = _figures(found, trials)
    _print(figures, found, quick=options.quick, machine=machine)
    if options.svg is not None:
        title = f"{_counted(found)} of ResNet-18: speed over trials, 1 = fastest schedule found"
        options.svg.write_text(svg_plots(_panels(figures, found, trials), title=title))
    common.print_json({**figures, "quick": options.quick, "machine": machine}, wanted=options.json)
    return 0


@contextlib.contextmanager
def _fleet(scratch: Path) -> Iterator[str]:
    """Start a tracker and an agent for this machine; yield the tracker's address."""
    listen = ("--port", 0, "--state-dir")
    with contextlib.ExitStack() as stack:
        command = python("fleet.tracker", *listen, scratch / "tracker", "--no-discovery")
        tracker = stack.enter_context(Process(command, scratch / "tracker.log"))
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        command = python("device_agents", *listen, scratch / "agent", "--tracker", address)
        stack.enter_context(Process(command, scratch / "agent.log")).wait_for(r"agent listening on \S+, serving")
        yield address


def _search_all(layer: Layer, scratch: Path, tracker: str, options: argparse.Namespace, *, trials: int) -> JsonObject:
    """Run every search on a layer, once per round, and ONNX Runtime; of several rounds the median one counts."""
    scratch.mkdir()
    model = write_model(scratch / "layer.onnx", [layer])

    def search(name: str, number: int) -> Curve:
        common.say(f"{layer.name}: {name}")
        if name == "ours":
            return _tune(model, scratch / f"library-{number}.sqlite", tracker, trials=trials, seed=number)
        population = ("--population", _QUICK_POPULATION) if options.quick else ()
        command = python(
            *("benchmarks.peers.stock_search", model, "--search", name, "--trials", trials, "--batch", _BATCH),
            *("--seed", number, "--target", target_of("host").json, "--tracker", tracker, *population),
        )
        with Process(command, scratch / f"{name}.log") as process:
            answer = json.loads(process.finish(_TIMEOUT_SEC)[-1])
        return Curve(trials=tuple(Trial(at_sec=at_sec, run_sec=run_sec) for at_sec, run_sec in answer["trials"]))

    sides = {name: (lambda number, name=name: search(name, number)) for name in _SEARCHES}
    rounds = common.alternate(sides, options.rounds or 1)
    middle = {
        name: sorted(curves, key=lambda curve: curve.final_sec)[len(curves) // 2] for name, curves in rounds.items()
    }
    torch_sec = _torch_sec(layer, scratch, options)
    return {
        "layer": layer,
        "curves": middle,
        "onnxruntime_sec": _onnxruntime_sec(model, scratch, options),
        **({} if torch_sec is None else {"torch_sec": torch_sec}),
    }


def _tune(model: Path, library: Path, tracker: str, *, trials: int, seed: int) -> Curve:
    command = python(
        *(
            "fleet.cli.main",
            "tune",
            model,
            "--trials",
            trials,
            "--exhaust",
            "--batch",
            _BATCH,
            "--top",
            1,
            "--seed",
            seed,
        ),
        *("--seed", seed, "--no-model", "--json", "--tracker", tracker, "--library", library),
    )
    started = time.time()
    with Process(command, library.with_suffix(".log")) as process:
        process.finish(_TIMEOUT_SEC)
    with Library.open(str(library)) as opened:
        layer = max(opened.find_workloads(), key=lambda workload: workload.flop)
        records = opened.records(layer.shash)
    return Curve(
        trials=tuple(
            Trial(
                at_sec=record.created_at.timestamp() - started,
                run_sec=record.median_sec if math.isfinite(record.median_sec) else None,
            )
            for record in sorted(records, key=lambda record: record.id)[:trials]  # the static schedules' count, too
        )
    )


def _onnxruntime_sec(model: Path, scratch: Path, options: argparse.Namespace) -> float:
    inputs = scratch / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **example_inputs(onnx.load(str(model)), np.random.default_rng(0)))
    program = Program(name="onnxruntime", engine="onnxruntime", path=model)
    with Engine(program, inputs, threads=options.threads, scratch=scratch) as engine:
        return min(engine.block_ms(_BLOCK_SEC) for _ in range(_BLOCKS)) / 1e3


def _torch_sec(layer: Layer, scratch: Path, options: argparse.Namespace) -> float | None:
    """Return PyTorch's time, None if it is not installed."""
    try:
        check_torch(options.torch_python, is_gpu=False)
    except ProcessFailed as error:
        common.say(f"PyTorch is left out: {error}")
        return None
    answer = run_torch([layer], scratch, options.torch_python, quick=options.quick, threads=options.threads)
    return float(answer["least_us"][0]) / 1e6


def _figures(found: Sequence[JsonObject], trials: int) -> JsonObject:
    fastest = [_fastest(each) for each in found]
    guided = [each["curves"]["guided"] for each in found]
    ours = [each["curves"]["ours"] for each in found]
    goals = [curve.final_sec for curve in guided]
    peer, mine = _mean_trials(guided, goals), _mean_trials(ours, goals)
    return {
        "name": "curves",
        "unit": "trials to 95 % of model-guided search's final speed",
        "peer": peer,
        "ours": mine,
        "ratio": round(peer / mine, 3) if peer and mine else None,
        "trials": trials,
        "layers": [_layer_figures(each) for each in found],
        **{
            f"{engine}_speed": statistics.geometric_mean(
                best / each[f"{engine}_sec"] for best, each in zip(fastest, found, strict=True)
            )
            for engine in _engines(found)
        },
        "mean_speeds": {
            name: mean_speeds([each["curves"][name] for each in found], fastest, trials) for name in _SEARCHES
        },
    }


def _fastest(found: JsonObject) -> float:
    """Return the best time that any search found for a layer."""
    return float(min(curve.final_sec for curve in found["curves"].values()))


def _engines(found: Sequence[JsonObject]) -> list[str]:
    """Return the other engines that ran every layer."""
    return [engine for engine in _ENGINES if all(f"{engine}_sec" in each for each in found)]


def _mean_trials(curves: Sequence[Curve], goals: Sequence[float]) -> float | None:
    """Return the geometric mean of the trials to these times; None when one is never reached."""
    reached = [curve.reaches(goal) for curve, goal in zip(curves, goals, strict=True)]
    counts = [each.trials for each in reached if each is not None]
    return round(statistics.geometric_mean(counts), 2) if counts and len(counts) == len(reached) else None


def _layer_figures(found: JsonObject) -> JsonObject:
    searches = {}
    for name, curve in found["curves"].items():
        reached = curve.reaches(curve.final_sec)
        searches[name] = {
            "final_us": round(curve.final_sec * 1e6, 2) if math.isfinite(curve.final_sec) else None,
            "trials_to_95": reached.trials if reached else None,
            "sec_to_95": round(reached.sec, 2) if reached else None,
            "failed": sum(trial.run_sec is None for trial in curve.trials),
            "all_trials": [(round(trial.at_sec, 2), trial.run_sec) for trial in curve.trials],
        }
    engines = {f"{engine}_us": round(found[f"{engine}_sec"] * 1e6, 2) for engine in _engines([found])}
    return {"layer": found["layer"].name, **engines, **searches}


def _lines(figures: JsonObject) -> Mapping[str, float]:
    speeds = {title: figures.get(f"{engine}_speed") for engine, title in _ENGINES.items()}
    return {title: speed for title, speed in speeds.items() if speed is not None}


def _panels(figures: JsonObject, found: Sequence[JsonObject], trials: int) -> list[Panel]:
    """Return a plot for each layer and, if there are several, of their mean."""
    panels = [
        Panel(
            title=each["layer"].name,
            curves={name: each["curves"][name].speeds(_fastest(each), trials) for name in _SEARCHES},
            lines={_ENGINES[engine]: _fastest(each) / each[f"{engine}_sec"] for engine in _engines([each])},
        )
        for each in found
    ]
    mean = Panel(title="geometric mean", curves=figures["mean_speeds"], lines=_lines(figures))
    return [*panels, mean] if len(panels) > 1 else panels


def _counted(found: Sequence[JsonObject]) -> str:
    return f"{len(found)} layers" if len(found) > 1 else "1 layer"


def _print(figures: JsonObject, found: Sequence[JsonObject], *, quick: bool, machine: common.Machine) -> None:
    def shown(each: JsonObject) -> tuple[str, ...]:
        final = "-" if each["final_us"] is None else f"{each['final_us']:.0f}"
        return (final, str(each["trials_to_95"]), f"{each['sec_to_95']:.0f}" if each["sec_to_95"] else "-")

    engines = _engines(found)
    rows = [
        (
            row["layer"],
            *(f"{row[f'{engine}_us']:.0f}" for engine in engines),
            *(text for name in _SEARCHES for text in shown(row[name])),
        )
        for row in figures["layers"]
    ]
    engine_columns = [_SHORT[engine] for engine in engines]
    columns = ("layer", *engine_columns, *(text for name in _SEARCHES for text in (name, "trials", "s")))
    notes = [
        f"{figures['trials']} trials each; best time [us], trials and seconds to 95 % of the search's own final speed"
    ]
    notes += [f"to 95 % of guided's final speed: guided {figures['peer']} trials, ours {figures['ours']}"]
    notes += common.doubts(machine, quick=quick)
    common.print_table(f"{_counted(found)} of ResNet-18", columns, rows, notes)
    print(text_plot(figures["mean_speeds"], _lines(figures)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
