"""Programs for GPUs without a tuned schedule: TVM's default rules make them run, and leave everything else alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cross.targets.intrinsics import intrinsics_module, target_hint
from cross.targets.target import Target, host_target, parse_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.domain.workload import Workload
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.workloads.default_schedule import default_schedule, needs_schedule
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

HOST = dict(host_target().options)
OPENCL = parse_target(
    json.dumps({"kind": "opencl", "max_threads_per_block": 256, "max_num_threads": 256, "host": HOST})
)
ROCM = parse_target(json.dumps({"kind": "rocm", "mcpu": "gfx1100", "host": HOST}))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return matmul(64)


@pytest.mark.parametrize("target", [OPENCL, ROCM])
def test_gpu_programs_are_bound_to_threads(workload: Workload, target: Target) -> None:
    """The result launches blocks and threads; its workload stays unchanged."""
    before = module_of(workload.mod_json).script()

    scheduled = default_schedule(module_of(workload.mod_json), target)

    assert needs_schedule(target)
    assert "blockIdx.x" in scheduled.script()
    assert module_of(workload.mod_json).script() == before
    assert "blockIdx.x" not in before


def test_scheduled_functions_are_left_unchanged(workload: Workload) -> None:
    """Scheduling twice changes nothing: the rules leave a model's tuned kernels alone."""
    once = default_schedule(module_of(workload.mod_json), OPENCL)

    assert default_schedule(once, OPENCL).script() == once.script()


def test_programs_for_processors_are_only_put_in_order(workload: Workload) -> None:
    """Loops have columns innermost and cores outermost, so that a large product takes no minute, without tiles."""
    text = default_schedule(module_of(workload.mod_json), host_target()).script()

    assert not needs_schedule(host_target())
    assert "T.parallel" in text
    assert "T.unroll" not in text


def test_slow_intrinsics_are_known_before_the_device_is() -> None:
    """A pool that starts before its device is found can load the modules for the device's kind."""
    hints = {kind: target_hint(kind) for kind in ("cuda", "rocm", "opencl", "cpu", None)}

    assert {kind: intrinsics_module(hint) for kind, hint in hints.items() if hint} == {
        "cuda": "tvm.s_tir.tensor_intrin.cuda",
        "rocm": "tvm.s_tir.tensor_intrin.rocm",
    }


@pytest.mark.slow
@pytest.mark.parametrize("target", [OPENCL, ROCM])
def test_gpu_candidates_are_found_built_and_described(workload: Workload, target: Target, tmp_path: Path) -> None:
    """Search, code generation and features for the cost model work for GPUs, with and without a schedule."""
    task = ProposeTask(mod_json=workload.mod_json, target=target, count=2, seed=1)

    proposals = propose(task)
    built = [
        build_candidate(BuildTask(mod_json=workload.mod_json, target=target, trace_json=trace, out_dir=str(tmp_path)))
        for trace in (None, *(proposal.trace_json for proposal in proposals))
    ]

    assert len(proposals) == 2
    assert [proposal.digest for proposal in propose(task)] == [proposal.digest for proposal in proposals]
    assert built[0].features is None
    assert all(candidate.features is not None and len(candidate.features) for candidate in built[1:])
    assert len({candidate.artifact.digest for candidate in built}) == 3
