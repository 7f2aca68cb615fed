"""Stock MetaSchedule's search on one layer, measured by our fleet, so that only the search differs.

    python -m benchmarks.peers.stock_search layer.onnx --search random --trials 64 --target JSON --tracker HOST:PORT

"random" replays random traces of the stock space; "guided" is the default of `tune_tir`: evolution with XGBoost as cost
model. The space is MetaSchedule's own for the layer as TVM imports it. Ends with one JSON line: for each trial the
seconds from the start of the process to the end of its batch, and its time [s], null where it failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import onnx
import psutil
import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms

from fleet.metaschedule import FleetBuilder, FleetRunner, load_intrinsics

_POPULATION = 512
"""MetaSchedule's own default: schedules that are evolved before each batch."""


@derived_object
class Stopwatch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Notes the time of each trial's result."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[tuple[float, float | None]] = []

    def apply(
        self,
        task_scheduler: ms.task_scheduler.TaskScheduler,
        task_id: int,
        measure_candidates: Sequence[ms.MeasureCandidate],
        builder_results: Sequence[ms.builder.BuilderResult],
        runner_results: Sequence[ms.runner.RunnerResult],
    ) -> None:
        """Take the results of a batch."""
        del task_scheduler, task_id, measure_candidates, builder_results
        at_sec = time.time() - psutil.Process().create_time()
        for result in runner_results:
            secs = [float(sec) for sec in result.run_secs or ()]
            self.trials.append((at_sec, statistics.median(secs) if secs else None))


def main() -> None:
    """Search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="an .onnx file with one layer")
    parser.add_argument("--search", choices=("random", "guided"), required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--population", type=int, default=_POPULATION, help="default: %(default)s, as in MetaSchedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", required=True)
    parser.add_argument("--tracker", required=True)
    options = parser.parse_args()
    target = tvm.target.Target(json.loads(options.target))
    load_intrinsics(target)
    is_guided = options.search == "guided"
    evolution = ms.search_strategy.EvolutionarySearch(population_size=options.population)
    watch = Stopwatch()
    builder, runner = FleetBuilder(), FleetRunner(options.tracker, "cpu")
    with tempfile.TemporaryDirectory(prefix="fleet-search-") as work_dir:
        ms.tune_tir(
            mod=_layer(options.model, target),
            target=target,
            work_dir=work_dir,
            max_trials_global=options.trials,
            num_trials_per_iter=min(options.batch, options.trials),
            builder=builder,
            runner=runner,
            database="memory",
            cost_model="xgb" if is_guided else "random",
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), watch],
            strategy=evolution if is_guided else "replay-trace",
            seed=options.seed,
        )
    runner.close()
    builder.close()
    print(json.dumps({"trials": watch.trials}), flush=True)


def _layer(path: Path, target: tvm.target.Target) -> tvm.ir.IRModule:
    """Return the costliest operator of a model, as TVM imports and lowers it by itself."""
    mod = relax.transform.LegalizeOps(enable_warning=False)(from_onnx(onnx.load(str(path))))
    tasks = ms.relax_integration.extract_tasks(mod, target)
    return max((task.dispatched[0] for task in tasks), key=tvm.s_tir.analysis.estimate_tir_flops)


if __name__ == "__main__":
    main()
