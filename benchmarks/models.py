"""Whole models beside ONNX Runtime and OpenVINO: time of a run, with no trial at all, and tuned.

    python -m benchmarks.models --models squeezenet,bert,held_out
    python -m benchmarks.models --minutes 3 --json

Float32, as many threads as the machine has physical cores, each engine in a process of its own. The engines take turns
in blocks of calls with a rest before each, since the threads of one go on spinning for a while after a call; the median
of a block counts, and of these the median over the rounds. All get the same inputs, and their outputs are compared.
"Static" is the result of `fleet build --untuned`; "tuned" is `fleet build` after `fleet tune` with the given effort.
OpenVINO is optional: pip install 'tvm-fleet[compare-models]'.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/models.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx

from benchmarks import common
from benchmarks.engines import Engine, Program, build_ours, peers, tune
from benchmarks.model_list import ENTRIES, QUICK, Entry, find_entries, write_entry
from benchmarks.model_report import Effort, ModelFigures, figures_of, print_models
from benchmarks.operations import operations
from benchmarks.peak_rate import measure_peak_rate
from benchmarks.processes import ProcessFailed
from fleet.models.node_by_node import example_inputs

_ROUNDS = 5
_REST_SEC = 0.15
"""Longer than the threads of any engine spin after their last call."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("models", __doc__ or "", rounds=_ROUNDS)
    names = ", ".join(entry.name for entry in ENTRIES)
    parser.add_argument("--models", metavar="NAMES", help=f"separated by commas (default: all): {names}; held_out")
    parser.add_argument("--trials", type=int, metavar="N", help="tune each model with so many trials")
    parser.add_argument("--minutes", type=float, metavar="M", help="tune each model for so long")
    parser.add_argument(
        "--threads", type=int, default=common.physical_cores(), help="default: physical cores, %(default)s"
    )
    options = parser.parse_args(argv)
    effort = Effort(
        threads=options.threads,
        rounds=options.rounds or (1 if options.quick else _ROUNDS),
        block_sec=0.1 if options.quick else 0.5,
        trials=options.trials,
        minutes=options.minutes,
    )
    entries = _entries(parser, options.models or (",".join(QUICK) if options.quick else None))
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        peak = measure_peak_rate(effort.threads, scratch)
        found = [_compare(entry, effort, scratch / entry.name) for entry in entries]
    print_models(found, peak, common.doubts(machine, quick=options.quick))
    conditions = {"threads": effort.threads, "rounds": effort.rounds, "quick": options.quick, "machine": machine}
    effort_said = {"trials": effort.trials, "minutes": effort.minutes}
    common.print_json({**figures_of(found, peak), **effort_said, **conditions}, wanted=options.json)
    return 0


def _entries(parser: argparse.ArgumentParser, names: str | None) -> Sequence[Entry]:
    try:
        return find_entries(names) if names else ENTRIES
    except KeyError as error:
        parser.error(f"no model {error}; there are {', '.join(entry.name for entry in ENTRIES)}")


def _compare(entry: Entry, effort: Effort, scratch: Path) -> ModelFigures:
    """Time one model in all engines."""
    scratch.mkdir()
    common.say(f"{entry.name}: building")
    model = write_entry(entry, scratch)
    inputs = scratch / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **example_inputs(onnx.load(str(model)), np.random.default_rng(1)))
    problems: dict[str, str] = {}
    programs = [*peers(model), *_ours(model, effort, scratch, problems)]
    with contextlib.ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for program in programs:
            try:
                engine = Engine(program, inputs, threads=effort.threads, scratch=scratch)
                engines[program.name] = stack.enter_context(engine)
            except ProcessFailed as error:
                problems[program.name] = str(error)
        times = _alternate(engines, effort, problems)
        errors = _errors(engines, problems)
    common.say(f"{entry.name}: {', '.join(f'{name} {ms:.3g} ms' for name, ms in times.items()) or 'nothing ran'}")
    for name, problem in problems.items():
        common.say(f"{entry.name}, {name}: {problem}")
    return ModelFigures(
        entry=entry, operations=operations(model), ms=times, relative_errors=errors, problems=problems, effort=effort
    )


def _ours(model: Path, effort: Effort, scratch: Path, problems: dict[str, str]) -> list[Program]:
    """Build the model without and with tuning; failures are reported and left out."""
    found = []
    try:
        found.append(build_ours("static", model, scratch))
        if effort.tunes:
            common.say(f"{model.stem}: tuning")
            library = tune(model, scratch, trials=effort.trials, minutes=effort.minutes)
            found.append(build_ours("tuned", model, scratch, library=library))
    except ProcessFailed as error:
        problems["static" if not found else "tuned"] = str(error)
    return found


def _alternate(engines: Mapping[str, Engine], effort: Effort, problems: dict[str, str]) -> dict[str, float]:
    """Return the median time of each engine [ms]."""

    def block(name: str) -> float | None:
        if name in problems:
            return None
        time.sleep(_REST_SEC)
        try:
            return engines[name].block_ms(effort.block_sec)
        except ProcessFailed as error:
            problems[name] = str(error)
            return None

    sides = {name: (lambda _, name=name: block(name)) for name in engines}
    rounds = common.alternate(sides, effort.rounds)
    return {
        name: statistics.median(ms for ms in blocks if ms is not None)
        for name, blocks in rounds.items()
        if name not in problems
    }


def _errors(engines: Mapping[str, Engine], problems: Mapping[str, str]) -> dict[str, float]:
    """Return the distance of each engine's outputs from ONNX Runtime's, as a share of their size."""
    outputs = {name: engine.outputs() for name, engine in engines.items() if name not in problems}
    expected = outputs.pop("onnxruntime", None)
    if expected is None:
        return {}
    return {
        name: max(_relative_error(made, right) for made, right in zip(found, expected, strict=True))
        for name, found in outputs.items()
    }


def _relative_error(made: np.ndarray, right: np.ndarray) -> float:
    if made.shape != right.shape:
        return float("inf")
    difference = made.astype(np.float64) - right.astype(np.float64)
    return float(np.linalg.norm(difference) / (np.linalg.norm(right.astype(np.float64)) or 1.0))


if __name__ == "__main__":
    sys.exit(main())
