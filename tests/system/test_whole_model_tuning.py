"""Schedules that look good alone and are not in the model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tvm.s_tir import Schedule

from cross.targets.target import parse_target
from fleet import aio
from fleet.artifacts.artifact import Artifact
from fleet.building.turns import Turns
from fleet.cli.build import BuildOrder, run_build
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import make_terms
from fleet.domain.measuring import Evaluator
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Library, Record, RecordKind, StoredWorkload
from fleet.local.fleet import LocalFleet
from fleet.model_schedules import schedules
from fleet.models.model import load_model
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.job_run import decided_trace
from fleet.optimizer.whole_model_tuning.placing import Placing
from fleet.optimizer.whole_model_tuning.selection import Lineup
from fleet.spaces.space import static_schedule
from fleet.workloads.extract import compile_model, extract
from fleet.workloads.traces import trace_json
from fleet.workloads.workload import module_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def serial(workload: Workload) -> Schedule:
    """A schedule that does nothing useful: one loop split, the sum innermost as it was written."""
    schedule = Schedule(module_of(workload.mod_json))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.split(schedule.get_loops(block)[0], [None, 2])
    return schedule


async def test_the_model_gets_its_fastest_schedules_in_place(two_products: Path, tmp_path: Path) -> None:
    """The record that claims the best time alone loses to the static schedule in place, there and in later builds."""
    model = load_model(two_products)
    async with (
        LocalFleet() as local,
        aio.connect(local.address) as client,
        SteadyDevice(client, make_terms("cpu", purpose="test")) as steady,
    ):
        inventory = (await steady.device()).inventory
        scope = RecordScope(
            target_json=inventory.target_json,
            device_model=inventory.device_model,
            tvm_version=inventory.tvm_version,
        )
        workloads = extract(model, parse_target(scope.target_json))
        first = workloads[0]
        static = static_schedule(module_of(first.mod_json), parse_target(scope.target_json))
        assert static is not None
        claims = {trace_json(serial(first)): RecordKind.CANDIDATE, trace_json(static): RecordKind.STATIC}

        async def compiled(lineup: Lineup) -> Artifact:
            return compile_model(model, parse_target(scope.target_json), lineup, tmp_path)

        with Library.open(tmp_path / "library.sqlite") as library:
            library.add_workload(StoredWorkload(shash=first.shash, name=first.name, mod_json=first.mod_json))
            library.add_records(
                Record(
                    workload=first.shash,
                    scope=scope,
                    trace_json=trace,
                    run_secs=(1e-9 if kind is RecordKind.CANDIDATE else 1.0,),
                    kind=kind,
                    checked=True,
                )
                for trace, kind in claims.items()
            )
            decided = schedules(library, workloads, scope)
            placing = Placing(
                inputs=model.inputs,
                workloads=workloads,
                device=steady,
                library=library,
                conditions=Conditions(
                    job_name=library.start_job(title="test").name,
                    scope=scope,
                    device_fingerprint="",
                    seed=0,
                    batch_size=1,
                    search_threads=1,
                    enough=1,
                    evaluator=Evaluator(),
                    trial_timeout_sec=60.0,
                    artifact_dir=tmp_path,
                    started_at=-1e9,
                ),
                turns=Turns(shares_cores=False),
                measuring=nullcontext,
            )
            without_places = replace(placing, is_profiled=False)
            unprofiled = await without_places.run(decided, await compiled(decided), await compiled({}), compiled, 1.0)
            noted = await without_places.keep_static(decided)
            static_as_whole = schedules(library, workloads, scope)
            noted_again = await without_places.keep_static(static_as_whole)
            found = await placing.run(decided, await compiled(decided), await compiled({}), compiled, 1.0)
            await placing.keep(found, is_confirmed=False)
            not_confirmed = schedules(library, workloads, scope)
            await placing.keep(found, is_confirmed=True)
            later = schedules(library, workloads, scope)
            tuned_again = WorkloadProgress(workload=first, right={next(iter(claims)): 1e-9})
            again = schedules(library, workloads, scope, {tuned_again.workload.shash: decided_trace(tuned_again)})
            hasty = await placing.run(decided, await compiled(decided), await compiled({}), compiled, 1e12)

    order = BuildOrder(
        workload=str(two_products),
        target=parse_target(scope.target_json),
        output=tmp_path / "built.so",
        library=str(tmp_path / "library.sqlite"),
        shapes={},
    )
    wrong, right = claims
    assert decided == not_confirmed == {first.shash: wrong}
    assert (noted, noted_again) == (True, False)
    assert static_as_whole == {first.shash: right}
    assert (unprofiled.lineup, unprofiled.artifact) == (decided, None)
    assert found.lineup == later == again == {first.shash: right}
    assert found.artifact is not None
    assert found.artifact.digest == run_build(order).artifact.digest
    (placed,) = found.placed
    assert placed.median_sec(placed.selection.options[0]) > placed.median_sec(placed.chosen) > 0
    assert (hasty.lineup, hasty.artifact, hasty.placed) == (decided, None, ())
