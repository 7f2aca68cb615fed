"""Records of libraries from before get their features in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from fleet.cost_model.stored import FEATURE_VERSION, NO_PROGRAM, unpack_rows
from fleet.domain.keys import trace_digest
from fleet.domain.scope import RecordScope
from fleet.errors import BuildError
from fleet.library import Library, NewRecord, RecordProgram, StoredWorkload
from fleet.optimizer.backfill import fill_features
from fleet.optimizer.turns import Turns
from tests.contract.test_library_snapshots import Threads

TARGET = '{"kind":"llvm","mcpu":"x86-64-v3"}'
SCOPE = RecordScope(target_json=TARGET, device_model="m", tvm_version="0.27")
POISON = "[[13],[]]"
TURNS = Turns(shares_cores=True)
FOUND = RecordProgram(feature_version=FEATURE_VERSION, stores=b"found")


class Fragile(Threads):
    """A pool whose worker dies of one trace."""

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if POISON in args[-1]:
            return self.submit(self._die)
        return self.submit(lambda: [FOUND] * len(args[-1]))

    def _die(self) -> None:
        raise BuildError("the worker crashed")


def add(library: Library, *traces: str) -> None:
    """Store records without features."""
    library.add_records(NewRecord(workload="1", scope=SCOPE, trace_json=trace, run_secs=(1.0,)) for trace in traces)


async def test_what_kills_its_worker_is_left_without_and_the_others_are_not(library: Library) -> None:
    """It is found among the others, and nobody tries it again."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    traces = [f"[[{number}],[]]" for number in range(20)]
    add(library, *traces)

    with Fragile(1) as pool:
        count = await fill_features(library, pool, TURNS, rest_sec=0)
        again = await fill_features(library, pool, TURNS, rest_sec=0)

    assert (count, again) == (20, 0)
    found = library.memory.programs("1", feature_version=FEATURE_VERSION)
    assert found == {trace_digest(trace): NO_PROGRAM if trace == POISON else FOUND for trace in traces}


@pytest.mark.slow
async def test_features_are_those_of_the_schedules(library: Library) -> None:
    """A schedule gets its rows and the hash of its program; one that does not apply gets none."""
    from fleet.spaces.choose import schedules
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
