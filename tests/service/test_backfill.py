"""Records of libraries from before get their features in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cross.targets.target import Target, parse_target
from fleet.building.turns import Turns
from fleet.cost_model.feature_codec import FEATURE_VERSION, NO_PROGRAM, pack_program, unpack_rows
from fleet.domain.keys import trace_digest
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import BuildError
from fleet.library import Library, Record, RecordProgram, StoredWorkload
from fleet.optimizer.backfill import fill_features
from fleet.optimizer.recall import recall, with_features
from tests.contract.test_library_snapshots import Threads

TARGET = parse_target('{"kind":"llvm","mcpu":"x86-64-v3"}')
SCOPE = RecordScope(target_json=TARGET.json, device_model="m", tvm_version="0.27")
POISON = "[[13],[]]"
TURNS = Turns(shares_cores=True)
FOUND = pack_program(17, np.ones((2, 3), np.float32))


class Fragile(Threads):
    """A pool that loses its worker to one trace."""

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(self._recall, *args)

    def _recall(self, mod_json: str, target: Target, traces: list[str]) -> list[RecordProgram]:
        if POISON in traces:
            raise BuildError("the worker crashed")
        return [FOUND] * len(traces)


def add(library: Library, *traces: str, target_json: str = TARGET.json) -> None:
    """Store records without features."""
    scope = replace(SCOPE, target_json=target_json)
    library.add_records(Record(workload="1", scope=scope, trace_json=trace, run_secs=(1.0,)) for trace in traces)


async def test_backfill_skips_a_candidate_that_crashes_its_worker(library: Library) -> None:
    """A fatal candidate is isolated, and not tried again."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    traces = [f"[[{number}],[]]" for number in range(20)]
    add(library, *traces)

    with Fragile(1) as pool:
        count = await fill_features(library, pool, TURNS, rest_sec=0)
        again = await fill_features(library, pool, TURNS, rest_sec=0)

    assert (count, again) == (20, 0)
    found = library.memory.programs("1", feature_version=FEATURE_VERSION)
    assert found == {trace_digest(trace): NO_PROGRAM if trace == POISON else FOUND for trace in traces}


@pytest.mark.parametrize("refused", ["", '{"kind":"llvm","mtriple":"armv7l-linux-gnueabi"}'])
async def test_records_of_a_target_that_is_refused_keep_no_others_waiting(library: Library, refused: str) -> None:
    """Imported records of a refused target stay without features, and earlier records get theirs."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    older = [f"[[{number}],[]]" for number in range(2)]
    add(library, *older)
    newer = [f"[[{number}],[]]" for number in range(20, 40)]
    add(library, *newer, target_json=refused)

    with Fragile(1) as pool:
        count = await fill_features(library, pool, TURNS, rest_sec=0)

    assert count == 22
    found = library.memory.programs("1", feature_version=FEATURE_VERSION)
    expected = dict.fromkeys(older, FOUND) | dict.fromkeys(newer, NO_PROGRAM)
    assert found == {trace_digest(trace): program for trace, program in expected.items()}


async def test_a_job_learns_without_candidates_that_crash_its_worker(library: Library) -> None:
    """A candidate of an earlier job may crash the worker that reads it; the job goes on without it."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    add(library, *(f"[[{number}],[]]" for number in range(20)))
    [item] = recall(library, [Workload(name="w", weight=1, mod_json="{}", shash="1", flop=1.0, args=())], SCOPE)

    with Fragile(1) as pool:
        observed = await with_features(pool, library, item, SCOPE)

    known = {record.trace_json: len(one.features) for record, one in zip(item.records, observed, strict=True)}
    assert known == {f"[[{number}],[]]": 0 if number == 13 else 2 for number in range(20)}


@pytest.mark.slow
async def test_features_match_those_of_the_schedules(library: Library) -> None:
    """A schedule gets its rows and the hash of its program; one that does not apply gets none."""
    from fleet.spaces.space import schedules
    from fleet.workloads.programs import matmul
    from fleet.workloads.traces import trace_json
    from fleet.workloads.workload import module_of

    mod_json = matmul(32).mod_json
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json=mod_json))
    schedule = next(schedules(module_of(mod_json), TARGET))
    add(library, trace_json(schedule), POISON)

    with Threads(1) as pool:
        assert await fill_features(library, pool, TURNS, rest_sec=0) == 2

    found = library.memory.programs("1", feature_version=FEATURE_VERSION)
    made, none = found[trace_digest(trace_json(schedule))], found[trace_digest(POISON)]
    assert len(unpack_rows(made.stores)) > 0
    assert len(made.program_hash) == 16
    assert none == NO_PROGRAM
