"""A candidate that is fast because it is wrong never counts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cross.pool.build_pool import BuildPool
from fleet import aio
from fleet.building.build_candidate import BuildTask
from fleet.building.turns import Turns
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import make_terms
from fleet.domain.measuring import ErrorKind, Evaluator
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Library, StoredWorkload
from fleet.local.fleet import LocalFleet
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.invariants import validate
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.loop import TuningLoop
from fleet.workloads.programs import matmul
from fleet.workloads.workload import workload_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def one_product_instead_of_a_sum(size: int) -> Workload:
    """A program with the arguments of a matrix product that leaves the sum out, and is very fast for it."""
    from tvm import te

    left, right = (te.placeholder((size, size), name=name) for name in "AB")
    product = te.compute((size, size), lambda i, j: left[i, 0] * right[0, j], name="C")
    return workload_of(te.create_prim_func([left, right, product]), name="wrong")


class SabotagedPool:
    """The real pool, except that the first candidate of each round is built from another program."""

    def __init__(self, pool: BuildPool, wrong: Workload) -> None:
        self._pool = pool
        self._wrong = wrong
        self._builds = 0
        self.sabotaged: set[str] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(fn, *map(self._spoilt, args), **kwargs)

    def _spoilt(self, task: Any) -> Any:
        if not isinstance(task, BuildTask) or task.trace_json is None:
            return task
        self._builds += 1
        if self._builds % 4 != 1:
            return task
        self.sabotaged.add(task.trace_json)
        return replace(task, mod_json=self._wrong.mod_json, trace_json=None)

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit_within(timeout_sec, fn, *args, **kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return self._pool.submit_near(key, timeout_sec, fn, *args, **kwargs)


async def test_the_fastest_candidate_is_wrong_and_is_not_used(tmp_path: Path) -> None:
    """It is recorded as WRONG_OUTPUT, and the best is a right one, although slower."""
    workload = matmul(96)
    with Library.open(tmp_path / "library.sqlite") as library, BuildPool(2, timeout_sec=60) as pool:
        library.add_workload(
            StoredWorkload(shash=workload.shash, name=workload.name, mod_json=workload.mod_json, args=workload.args)
        )
        sabotaged = SabotagedPool(pool, one_product_instead_of_a_sum(96))
        item = WorkloadProgress(workload=workload)
        notices: list[str] = []
        progress = JobProgress(notice=notices.append)
        async with (
            LocalFleet() as local,
            aio.connect(local.address) as client,
            SteadyDevice(client, make_terms("cpu", purpose="test")) as steady,
        ):
            device = await steady.device()
            job = library.start_job(title="test", trials_total=8)
            core = JobCore(progress)
            conditions = Conditions(
                job_name=job.name,
                scope=RecordScope(
                    target_json=device.inventory.target_json,
                    device_model=device.inventory.device_model,
                    tvm_version=device.inventory.tvm_version,
                ),
                device_fingerprint=device.inventory.host_fingerprint,
                seed=0,
                batch_size=4,
                search_threads=1,
                enough=100,
                evaluator=Evaluator(repeat=2, min_repeat_ms=2),
                trial_timeout_sec=60.0,
                artifact_dir=tmp_path,
                started_at=0.0,
            )
            core.start(conditions, 8, [item])
            loop = TuningLoop(core, device=steady, pool=sabotaged, library=library, turns=Turns(shares_cores=True))
            await loop.measure_untuned()
            await loop.run()
        validate(core)

        records = library.records(workload.shash)
        wrong = [record for record in records if record.error is ErrorKind.WRONG_OUTPUT]
        best = library.best(workload.shash, k=100)

    assert len(sabotaged.sabotaged) == 2
    assert sabotaged.sabotaged == {record.trace_json for record in wrong}
    assert not sabotaged.sabotaged & {record.trace_json for record in best}
    assert item.best_trace is not None
    assert item.best_trace not in sabotaged.sabotaged
    assert item.errors[ErrorKind.WRONG_OUTPUT] == 2
    told = [notice for notice in notices if "gives wrong results" in notice]  # others are about the machine
    assert len(told) == 2, notices
