"""Builds of a refresh, by the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target
from fleet.domain.making import Making
from fleet.library import Record
from fleet.optimizer.refreshing.workbench import PoolWorkbench, rebuild
from fleet.workloads.programs import matmul
from tests.unit.refreshing_parts import SCOPE

pytestmark = pytest.mark.slow


async def test_a_schedule_is_built_twice_with_the_same_code(tmp_path: Path) -> None:
    """Today's static schedule builds; a schedule that fits no more says so."""
    workload = matmul(16)
    with BuildPool(1) as pool:
        bench = PoolWorkbench.of(pool, host_target(), tmp_path)
        trace = await bench.static_trace(workload)
        assert trace is not None
        first, second = [await bench.build(workload, trace) for _ in range(2)]
        steps = json.loads(trace)
        steps[0][0][2] = ["nowhere", "main"]
        record = Record(workload=workload.shash, scope=SCOPE, trace_json=json.dumps(steps))
        misfit = await rebuild(bench, workload, record, Making(object_digest=first.artifact.object_digest))

    assert first.artifact.object_digest == second.artifact.object_digest != ""
    assert (misfit.build, misfit.is_same) == (None, False)
    assert "does not fit" in misfit.problem
