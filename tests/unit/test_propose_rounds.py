"""The whole loop of the optimizer on its stateless tasks: propose, build, run, learn, propose again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.checking.numerics import make_inputs
from fleet.cost_model.job_trees import learn
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Observation
from fleet.domain.workload import Workload
from fleet.models.model import bundled_model, load_model
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.workloads.extract import extract
from fleet.workloads.programs import matmul

pytestmark = pytest.mark.slow
TARGET = host_target()
COUNT = 8


@pytest.fixture(scope="module")
def pool() -> Iterator[BuildPool]:
    with BuildPool(2, target=TARGET) as pool:
        yield pool


@pytest.fixture(params=["matmul", "conv2d"])
def workload(request: pytest.FixtureRequest, pool: BuildPool) -> Workload:
    if request.param == "matmul":
        return pool.submit(matmul, 128).result()
    found = pool.submit(extract, load_model(bundled_model("squeezenet")), TARGET).result()
    return [one for one in found if "conv2d" in one.name][-1]


def time_once(artifact: Artifact) -> float:
    """Return a rough time per run, which suffices to tell a bad schedule from a good one [s]."""
    import tvm

    inputs = make_inputs(artifact.args, seed=0)
    arrays = [
        tvm.runtime.tensor(np.zeros(item.shape, item.dtype) if isinstance(item, TensorSpec) else item)
        for item in inputs
    ]
    library = tvm.runtime.load_module(str(artifact.path))
    timer = library.time_evaluator("main", tvm.cpu(), number=2, repeat=3)
    return min(timer(*arrays).results)


def build_all(pool: BuildPool, workload: Workload, traces: list[str | None], out_dir: Path) -> list[BuiltCandidate]:
    tasks = [
        BuildTask(mod_json=workload.mod_json, target=TARGET, trace_json=trace, out_dir=str(out_dir)) for trace in traces
    ]
    return [future.result() for future in [pool.submit(build_candidate, task) for task in tasks]]


def propose_all(
    pool: BuildPool, workload: Workload, records: list[Observation], model: bytes | None
) -> list[Candidate]:
    task = ProposeTask(
        mod_json=workload.mod_json,
        target=TARGET,
        records=tuple(records),
        model=model,
        count=COUNT,
        seed=len(records),
        population=24,
    )
    return pool.submit(propose, task).result()


def test_the_second_round_learns_from_the_first(pool: BuildPool, workload: Workload, tmp_path: Path) -> None:
    """Sixteen different candidates of a real operator build and run; the last eight are ranked by a model of
    the first.
    """
    records: list[Observation] = []
    lessons: list[Observation] = []
    model: bytes | None = None
    for round_number in range(2):
        proposals = propose_all(pool, workload, records, model)
        assert len(proposals) == COUNT
        predicted = [proposal.predicted for proposal in proposals]
        assert all(math.isnan(score) for score in predicted) == (round_number == 0)
        assert round_number == 0 or predicted == sorted(predicted, reverse=True)
        built = build_all(pool, workload, [proposal.trace_json for proposal in proposals], tmp_path)
        for proposal, candidate in zip(proposals, built, strict=True):
            assert candidate.features is not None
            run_sec = time_once(candidate.artifact)
            records.append(
                Observation(workload="w", trace_json=proposal.trace_json, origin=proposal.origin, run_sec=run_sec)
            )
            lessons.append(Observation(workload=workload.shash, run_sec=run_sec, features=candidate.features))
        model = pool.submit(learn, lessons).result()
        assert model is not None

    assert all(math.isfinite(record.run_sec) for record in records)
    assert len({record.trace_json for record in records}) == 2 * COUNT
