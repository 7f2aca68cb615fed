"""Stock MetaSchedule through the adapters, with a real tracker and a real agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fleet.library import Library
from fleet.metaschedule import FleetBuilder, FleetCostModel, FleetDatabase, FleetRunner, FleetSpace, load_intrinsics
from fleet.testing import eventually_sync
from fleet.workloads import programs
from fleet.workloads.workload import module_of
from tests.system.fleet_processes import connect, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TARGET = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracker with an agent for this machine."""
    with running_fleet(tmp_path_factory.mktemp("fleet")) as served:
        yield served.address


@pytest.fixture(scope="module")
def ms() -> Any:
    load_intrinsics(TARGET)
    from tvm.s_tir import meta_schedule

    return meta_schedule


def matmul(size: int) -> Any:
    return module_of(programs.matmul(size).mod_json)


def uncompilable() -> Any:
    """A program with an undefined variable."""
    import tvm
    from tvm import te, tirx

    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + tirx.Cast("float32", tirx.Var("unknown", "int32")), name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})


def leases(address: str) -> int:
    with connect(address) as client:
        return len(client.snapshot().leases)


def test_stock_tune_tir_runs_on_a_leased_device(ms: Any, tracker: str, tmp_path: Path) -> None:
    """A few arguments of a stock script change: it measures on the fleet, and leaves only its records.

    The records go to a library and serve only the target and device model that they were measured for.
    """
    from tvm.target import Target

    mod, target = matmul(64), Target(TARGET)
    runner = FleetRunner(tracker, "cpu", idle_sec=1.0, evaluator_config=ms.runner.EvaluatorConfig(1, 2, 1, False))
    builder = FleetBuilder(max_workers=2)
    with Library.open(tmp_path / "library.sqlite") as library:
        ms.tune_tir(
            mod,
            target,
            work_dir=str(tmp_path / "work"),
            max_trials_global=8,
            num_trials_per_iter=4,
            builder=builder,
            runner=runner,
            database=FleetDatabase(library, target, "this machine"),
            strategy=ms.search_strategy.EvolutionarySearch(population_size=16, genetic_num_iters=1),
            cost_model=FleetCostModel(),
            seed=1,
        )

        found = library.records()
        assert len(found) == 8
        assert [record.error_message for record in found if record.error] == []
        assert all(len(record.run_secs) == 2 for record in found)
        assert library.workload(found[0].workload).flop == 2 * 64**3
        again = FleetDatabase(library, None, "this machine")
        assert again.query_tuning_record(mod, target, "main") is not None
        assert again.query_tuning_record(mod, Target("llvm"), "main") is None
        other_board = FleetDatabase(library, None, "another machine")
        assert other_board.query_tuning_record(mod, target, "main") is None
    eventually_sync(lambda: leases(tracker) == 0)
    directory = builder.directory
    assert directory is not None
    assert list(directory.rglob("*.so")) == []
    runner.close()
    builder.close()
    assert not directory.exists()


def test_stock_tune_tir_has_our_schedules_by_one_argument(ms: Any, tracker: str, tmp_path: Path) -> None:
    """It then measures choices from our space, which contain no sampled decisions."""
    from tvm.target import Target

    target = Target(TARGET)
    with closing(FleetBuilder(max_workers=1)) as builder, closing(FleetRunner(tracker, "cpu", idle_sec=0.2)) as runner:
        database = ms.tune_tir(
            matmul(32),
            target,
            work_dir=str(tmp_path),
            max_trials_global=2,
            num_trials_per_iter=2,
            builder=builder,
            runner=runner,
            space=FleetSpace(target, most=2, with_rules=False),
            strategy="replay-trace",
            cost_model="random",
            seed=1,
        )

        records = database.get_all_tuning_records()
    assert [0, 0] == [len(record.trace.decisions) for record in records]
    assert all(float(sec) < 1 for record in records for sec in record.run_secs)


def build(ms: Any, mod: Any, builder: Any) -> str:
    from tvm.target import Target

    [result] = builder.build([ms.builder.BuilderInput(mod, Target(TARGET))])
    assert result.error_msg is None
    return str(result.artifact_path)


def test_a_candidate_that_crashes_costs_itself_only(ms: Any, tracker: str, tmp_path: Path) -> None:
    """Its result names the kind; the candidates before and after it have times."""
    builder, runner = FleetBuilder(max_workers=1), FleetRunner(tracker, "cpu", idle_sec=0.2)
    good = build(ms, matmul(32), builder)
    source = tmp_path / "crash.c"
    source.write_text("int __tvm_ffi_main(void* s, void* a, int n, void* r) { __builtin_trap(); return 0; }")
    bad = tmp_path / "crash.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(bad), str(source)], check=True)
    args = ms.arg_info.ArgInfo.from_prim_func(matmul(32)["main"])

    futures = runner.run([ms.runner.RunnerInput(path, "cpu", args) for path in (good, str(bad), good)])
    first, second, third = [future.result() for future in futures]

    assert len(first.run_secs) == 1
    assert second.error_msg.startswith("CRASHED: ")
    assert len(third.run_secs) == 1
    runner.close()
    builder.close()


def test_an_invalid_library_fails_its_own_candidate(ms: Any, tracker: str, tmp_path: Path) -> None:
    """A tar file, as from LocalBuilder, or a missing file, is an error of its candidate."""
    path = tmp_path / "module.tar"
    path.write_bytes(b"no library")
    runner = FleetRunner(tracker, "cpu", idle_sec=0.2)

    futures = runner.run([ms.runner.RunnerInput(str(name), "cpu", []) for name in (path, tmp_path / "none.so")])
    first, second = [future.result() for future in futures]

    assert first.error_msg.startswith("LOAD_FAILED: the artifact is no ELF shared library")
    assert "none.so" in second.error_msg
    runner.close()


def test_a_build_that_fails_is_the_result_of_its_candidate(ms: Any) -> None:
    """A candidate that does not compile has an error as its result; the others are built."""
    from tvm.target import Target

    builder = FleetBuilder(max_workers=2)
    mods = [matmul(16), uncompilable(), matmul(8)]

    results = builder.build([ms.builder.BuilderInput(mod, Target(TARGET)) for mod in mods])

    assert [result.error_msg is None for result in results] == [True, False, True]
    assert results[1].error_msg.startswith("BUILD_FAILED: ")
    assert len({os.path.dirname(r.artifact_path) for r in results if r.artifact_path}) == 2  # noqa: PTH120 - as TVM does
    builder.close()


def test_no_device_ends_the_run_with_the_reason(ms: Any, tracker: str) -> None:
    """A selector without a match and a missing tracker raise an error, since no trial could ever be measured."""
    builder = FleetBuilder(max_workers=1)
    path = build(ms, matmul(8), builder)
    args = ms.arg_info.ArgInfo.from_prim_func(matmul(8)["main"])
    for runner, message in [
        (FleetRunner(tracker, "kind=cuda"), "cuda"),
        (FleetRunner("127.0.0.1:9", "cpu", connect_timeout_sec=0.5), "127.0.0.1:9"),
    ]:
        [future] = runner.run([ms.runner.RunnerInput(path, "cpu", args)])
        with pytest.raises(Exception, match=message):
            future.result()
        runner.close()
    builder.close()


def test_a_lease_that_is_revoked_costs_no_candidate(ms: Any, tracker: str) -> None:
    """Trials in flight when a lease is taken away are measured under the next one."""
    builder, runner = FleetBuilder(max_workers=1), FleetRunner(tracker, "cpu", idle_sec=60.0)
    path = build(ms, matmul(64), builder)
    args = ms.arg_info.ArgInfo.from_prim_func(matmul(64)["main"])
    futures = runner.run([ms.runner.RunnerInput(path, "cpu", args) for _ in range(12)])
    futures[0].result()

    with connect(tracker) as client:
        client.revoke(client.snapshot().leases[0].name, "a test")

    assert [future.result().error_msg for future in futures] == [None] * 12
    runner.close()
    with pytest.raises(Exception, match="closed"):
        runner.run([ms.runner.RunnerInput(path, "cpu", args)])
    builder.close()
