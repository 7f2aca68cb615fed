"""Programs that kept fragments have today, and records of other programs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cross.targets.target import host_target
from fleet.domain.freshness import StaleReason
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import BuildError
from fleet.fragments.lowering import Reason, lowered_today
from fleet.fragments.stored import to_stored
from fleet.library import Library, Record
from fleet.optimizer.refreshing.changed_code import judge_code
from fleet.optimizer.refreshing.programs import lower_again
from tests.fragments import product_entry

TARGET = host_target()


@dataclass(frozen=True)
class CrashingPool:
    """Crashes on each batch with a bad fragment."""

    made: Workload
    sizes: list[int]

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        contents, _ = args
        self.sizes.append(len(contents))
        answer: Future[Any] = Future()
        if b"crash" in contents:
            answer.set_exception(BuildError("the worker crashed"))
        else:
            answer.set_result([self.made for _ in contents])
        return answer


async def test_a_fragment_that_crashes_its_worker_costs_itself_only() -> None:
    """Its batch is halved until it is alone; all others get their programs."""
    contents = {str(number): b"good" for number in range(40)} | {"21": b"crash"}
    made = Workload(shash="7", name="matmul", mod_json="{}", weight=1)
    sizes: list[int] = []

    found = await lower_again(CrashingPool(made, sizes), contents, TARGET, narrate=print)  # type: ignore[arg-type]

    assert found.programs.keys() == contents.keys() - {"21"}
    assert found.changed.keys() == found.programs.keys() - {"7"}
    assert {shash: one.reason for shash, one in found.refusals.items()} == {"21": Reason.CRASH}
    assert found.refusal == "TVM crashed or took over a minute: the worker crashed"
    assert sorted(sizes) == [1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 16]


@pytest.mark.slow
async def test_records_of_other_programs_are_stale(tmp_path: Path) -> None:
    """Operators are lowered in a confined worker. Fragments that cannot be read are counted, not guessed. Once the new
    program has records, those of the former one are not stale."""
    content, other = (to_stored(product_entry(16, 16, columns).fragment) for columns in (16, 32))
    assert content is not None
    assert other is not None
    today = lowered_today(content, TARGET)
    assert isinstance(today, Workload)
    scope = RecordScope(target_json=TARGET.json, device_model="cpu", tvm_version="1")
    with Library.open(tmp_path / "library.sqlite") as library:
        ids = {}
        for shash in (today.shash, "changed", "followed", "broken", "unknown"):
            library.add_workload(replace(today, shash=shash))
            ids[shash] = library.add_record(Record(workload=shash, scope=scope, trace_json="[]", run_secs=(1e-3,))).id
        kept = {today.shash: content, "changed": other, "followed": content, "broken": content[:-9]}
        library.add_fragments(TARGET.json, kept)

        found = await judge_code(library, [scope, replace(scope, tvm_version="2")], workers=1)

    assert found.by_reason[StaleReason.PROGRAM] == {ids["changed"]}
    assert found.unknown_programs == {ids["broken"], ids["unknown"]}
    assert (found.refused, found.refusal) == (1, "stored in no known form: stored fragment: is cut off")
    assert found.within({ids["broken"]}).unknown_programs == {ids["broken"]}
