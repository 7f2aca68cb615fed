"""FleetDatabase as MetaSchedule sees it, and records that it keeps apart although TVM's own databases mix them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.domain.measuring import ErrorKind
from fleet.library import Library
from fleet.metaschedule import FleetDatabase
from fleet.workloads import programs
from fleet.workloads.workload import module_of

pytestmark = pytest.mark.slow

X86 = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 4}


def matmul(size: int) -> Any:
    return module_of(programs.matmul(size).mod_json)


def tiled(mod: Any, factor: int, block_name: str = "C") -> Any:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    loops = schedule.get_loops(schedule.get_sblock(block_name))
    schedule.split(loops[0], [None, factor])
    return schedule


def commit(ms: Any, database: Any, mod: Any, schedule: Any, sec: float | None, target: Any = X86) -> None:
    from tvm.target import Target

    workload = database.commit_workload(mod)
    run_secs = None if sec is None else [sec, sec]
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, run_secs, Target(target), None))


def same(mod: Any, other: Any) -> bool:
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(mod, other))


def test_the_best_schedule_is_applied(ms: Any, library: Library) -> None:
    """Record, schedule and module queries all give the fastest candidate; failures and unknown programs give none."""
    from tvm.target import Target

    mod = matmul(16)
    database = FleetDatabase(library, X86, "pi4")
    assert not database.has_workload(mod)
    for factor, sec in ((2, 2e-3), (4, 1e-3), (8, None), (16, 1e10)):
        commit(ms, database, mod, tiled(mod, factor), sec)

    assert database.has_workload(mod)
    assert len(database) == 2
    target = Target(X86)
    assert same(database.query_schedule(mod, target, "main").mod, tiled(mod, 4).mod)
    assert same(database.query_ir_module(mod, target, "main"), tiled(mod, 4).mod)
    record = database.query_tuning_record(mod, target, "main")
    assert [float(getattr(sec, "value", sec)) for sec in record.run_secs] == [1e-3, 1e-3]
    assert database.query_tuning_record(matmul(32), target, "main") is None
    assert [r.error for r in library.records()] == [None, None, ErrorKind.RUN_FAILED, ErrorKind.RUN_FAILED]


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", Path])
def test_a_database_is_opened_by_its_path_or_url(ms: Any, tmp_path: Path, form: str | Callable[[Path], Path]) -> None:
    """A file's path is enough to open a database, and its records are there for the next one."""
    path = tmp_path / "records.sqlite"
    named = form.format(path) if isinstance(form, str) else form(path)
    database = FleetDatabase(named, X86, "pi4")
    commit(ms, database, matmul(16), tiled(matmul(16), 4), 1e-3)
    database.close()

    with Library.open(named) as library:
        assert len(FleetDatabase(library, X86, "pi4")) == 1


def test_other_targets_and_devices_are_kept_apart(ms: Any, library: Library) -> None:
    """The same program tuned for two boards gets each board's own schedule, and a third board none."""
    from tvm.target import Target

    mod = matmul(16)
    commit(ms, FleetDatabase(library, X86, "server"), mod, tiled(mod, 2), 1e-6)
    commit(ms, FleetDatabase(library, ARM, "pi4"), mod, tiled(mod, 4), 1e-3, ARM)
    commit(ms, FleetDatabase(library, ARM, "pi5"), mod, tiled(mod, 8), 1e-4, ARM)

    def factor_for(model: str | None, target: dict[str, Any]) -> int | None:
        module = FleetDatabase(library, None, model).query_ir_module(mod, Target(target), "main")
        return next((f for f in (2, 4, 8) if module is not None and same(module, tiled(mod, f).mod)), None)

    assert factor_for("server", X86) == 2
    assert factor_for("pi4", ARM) == 4
    assert factor_for("pi5", ARM) == 8
    assert factor_for("pi4", X86) is None
    assert factor_for("pi3", ARM) is None
    assert factor_for(None, ARM) == 8
    assert FleetDatabase(library, X86, None).query_ir_module(mod, Target(ARM), "main") is None


def test_stock_databases_apply_schedules_of_another_board(ms: Any) -> None:
    """TVM's own database applies a schedule of another board, which is the reason for FleetDatabase."""
    from tvm.target import Target

    mod = matmul(16)
    stock = ms.database.MemoryDatabase()
    commit(ms, stock, mod, tiled(mod, 2), 1e-6, ARM)

    assert stock.query_ir_module(mod, Target(X86), "main") is not None


def test_a_search_starts_from_the_best(ms: Any, library: Library) -> None:
    """get_top_k gives the fastest first, of this target only; get_all gives every record with a time."""
    mod = matmul(16)
    database = FleetDatabase(library, X86, "pi4")
    for factor, sec in ((2, 3e-3), (4, 1e-3), (8, 2e-3)):
        commit(ms, database, mod, tiled(mod, factor), sec)
    commit(ms, database, mod, tiled(mod, 16), 1e-9, ARM)
    workload = database.commit_workload(mod)

    top = database.get_top_k(workload, 2)

    assert [same(record.workload.mod, mod) for record in top] == [True, True]
    factors = [json.loads(json.dumps(record.as_json()[0]))[0][-1][1][-1] for record in top]
    assert factors == [4, 8]
    assert len(database.get_all_tuning_records()) == 3


def test_a_wrong_candidate_is_not_applied(ms: Any, library: Library) -> None:
    """A schedule with wrong output is replaced by the next best; with `checked`, only compared schedules count."""
    from tvm.target import Target

    mod = matmul(16)
    database = FleetDatabase(library, X86, "pi4")
    commit(ms, database, mod, tiled(mod, 2), 1e-3)
    commit(ms, database, mod, tiled(mod, 4), 2e-3)
    fast, slow = library.records()
    library.mark_wrong(fast.id)
    strict = FleetDatabase(library, X86, "pi4", checked=True)

    assert same(database.query_ir_module(mod, Target(X86), "main"), tiled(mod, 4).mod)
    assert strict.query_ir_module(mod, Target(X86), "main") is None
    library.mark_checked(slow.id)
    assert strict.query_ir_module(mod, Target(X86), "main") is not None


def test_another_tvm_version_is_not_applied(ms: Any, library: Library) -> None:
    """A trace means something to the TVM that wrote it only; asking for all versions is explicit."""
    from tvm.target import Target

    mod = matmul(16)
    commit(ms, FleetDatabase(library, X86, "pi4", tvm_version="0.19.0"), mod, tiled(mod, 2), 1e-3)

    assert FleetDatabase(library, X86, "pi4").query_ir_module(mod, Target(X86), "main") is None
    assert FleetDatabase(library, X86, "pi4", tvm_version="").query_ir_module(mod, Target(X86), "main") is not None


def test_tuning_without_a_device_model_fails_at_once(ms: Any, library: Library) -> None:
    """The first thing a tuning run commits is its program: better then than after the first round."""
    with pytest.raises(Exception, match="name the device model"):
        FleetDatabase(library, X86).commit_workload(matmul(16))


def test_a_model_gets_the_schedules_of_its_own_board(ms: Any, library: Library) -> None:
    """The pass that applies a database works with ours, and schedules a function only for the board it was tuned
    for.
    """
    import tvm
    from tvm import relax
    from tvm.relax.transform import MetaScheduleApplyDatabase
    from tvm.target import Target

    lowered = relax.transform.LegalizeOps()(relax_matmul())
    mod = tvm.IRModule({"main": lowered["matmul"].with_attr("global_symbol", "main")})
    commit(ms, FleetDatabase(library, X86, "pi4"), mod, tiled(mod, 4, "matmul"), 1e-3)

    library.mark_checked(library.records()[0].id)

    def is_scheduled(target: dict[str, Any], model_name: str) -> bool:
        with warnings.catch_warnings(action="ignore"), Target(target), FleetDatabase(library, None, model_name):
            return "is_scheduled" in str(MetaScheduleApplyDatabase()(lowered)["matmul"].attrs)

    assert is_scheduled(X86, "pi4")
    assert not is_scheduled(ARM, "pi4")
    assert not is_scheduled(X86, "pi5")


def test_compile_relax_applies_the_library(ms: Any, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of an extracted task are found by compile_relax, and the model computes the same."""
    import numpy as np
    import tvm
    from tvm import relax
    from tvm.target import Target

    model, target = relax_matmul(), Target(X86)
    database = FleetDatabase(library, X86, "pi4")
    names = ("LegalizeOps", "AnnotateTIROpPattern", "FoldConstant", "FuseOps", "FuseTIR")
    fused = tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])(model)
    [task] = ms.relax_integration.extract_tasks(fused, target)
    mod = task.dispatched[0]
    commit(ms, database, mod, tiled(mod, 4, "matmul"), 1e-3)
    library.mark_checked(library.records()[0].id)
    found: list[Any] = []
    best = library.best
    monkeypatch.setattr(library, "best", lambda *args, **options: found.extend(r := best(*args, **options)) or r)

    executable = ms.relax_integration.compile_relax(database=database, mod=model, target=target, params=None)

    assert [record.median_sec for record in found] == [1e-3]
    x = np.random.default_rng(0).random((16, 16), dtype="float32")
    outputs = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(x))
    np.testing.assert_allclose(outputs.numpy(), x @ x, rtol=1e-5)


def relax_matmul() -> Any:
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 16), "float32"))
    y = relax.Var("y", relax.TensorType((16, 16), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.matmul(x, y)))
        builder.emit_func_output(out)
    return builder.get()


def test_a_module_without_any_record_is_warned_of(ms: Any, library: Library) -> None:
    """After `fleet tune`, stock lowering with a database found 0 of 6 programs without a warning."""
    import tvm
    from tvm.target import Target

    database = FleetDatabase(library, X86, "pi4")
    commit(ms, database, matmul(16), tiled(matmul(16), 4), 1e-3)
    applied = tvm.relax.transform.MetaScheduleApplyDatabase

    def apply_and_fail() -> None:
        applied()(matmul(32))
        raise RuntimeError("the compilation ends")

    with pytest.warns(UserWarning, match=r"records for 0 of 1 programs.*relax_pipeline=fleet\.pipeline"):  # noqa: SIM117
        with Target(X86), database:
            applied()(matmul(32))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with Target(X86), database:
            pass  # nothing was looked for
        with pytest.raises(RuntimeError, match="ends"), Target(X86), database:
            apply_and_fail()
    assert [str(one.message) for one in told if "records for" in str(one.message)] == []


def test_a_module_with_few_records_is_warned_of(ms: Any, library: Library) -> None:
    """A model that `fleet tune` tuned has a program or two that stock lowering happens to cut alike."""
    import tvm
    from tvm.target import Target

    database = FleetDatabase(library, X86, "pi4")
    commit(ms, database, matmul(16), tiled(matmul(16), 4), 1e-3)
    library.mark_checked(library.records()[0].id)

    def compile_three() -> None:
        with Target(X86), database:
            for size in (16, 32, 64):
                tvm.relax.transform.MetaScheduleApplyDatabase()(matmul(size))

    with pytest.warns(UserWarning, match="records for 1 of 3 programs"):
        compile_three()


def test_unchecked_schedules_are_reported_once(ms: Any, library: Library) -> None:
    """Outputs of imported records were never compared."""
    import tvm
    from tvm.target import Target

    database = FleetDatabase(library, X86, "pi4")
    commit(ms, database, matmul(16), tiled(matmul(16), 4), 1e-3)
    applied = tvm.relax.transform.MetaScheduleApplyDatabase

    with pytest.warns(UserWarning, match=r"1 of 1 schedules were never checked.*checked=True") as told:  # noqa: SIM117
        with Target(X86), database:
            applied()(matmul(16))
    assert len(told) == 1
    library.mark_checked(library.records()[0].id)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with Target(X86), database:
            applied()(matmul(16))


def test_a_database_names_itself(library: Library) -> None:
    assert repr(FleetDatabase(library, X86, "pi4")).startswith(f"FleetDatabase({library.url!r}, target='{{")
    assert "device_model='pi4'" in repr(FleetDatabase(library, X86, "pi4"))


def test_programs_have_readable_names(ms: Any, library: Library) -> None:
    database = FleetDatabase(library, X86, "pi4")
    database.commit_workload(matmul(16))

    assert [workload.name for workload in library.find_workloads()] == ["main_C_16x16"]
