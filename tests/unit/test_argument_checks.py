"""Programs of a model that check their arguments, and programs that are compiled at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import ir, relax, tirx
from tvm.ir import IRModule

from cross.compile.argument_checks import called_programs
from cross.compile.library import build_relax
from cross.targets.target import host_target, make_target
from tests.unit.test_workloads_squeezenet import run_model


def test_only_programs_on_arguments_of_the_model_check_theirs() -> None:
    """Views of inner tensors are inner tensors; a program that gets both kinds checks."""
    found = called_programs(planned())

    assert found == {"tir_exp": True, "tir_negative": False, "tir_negative1": True, "add": False}


def test_programs_that_nothing_calls_are_not_compiled() -> None:
    """The programs of both reshapes became views."""
    left = {name.name_hint for name in planned().functions} - called_programs(planned()).keys()

    assert left == {"main", "reshape", "reshape1"}


def test_programs_with_own_assertions_keep_them() -> None:
    """`refuse_shapes`, which gets no argument, is one."""
    mod = IRModule(dict(planned().functions))
    inner = mod["tir_negative"]
    refusal = tirx.AssertStmt(tirx.const(False, "bool"), ir.StringImm("ValueError"), [ir.StringImm("refused")])
    mod["tir_negative"] = inner.with_body(tirx.SeqStmt([refusal, inner.body]))

    assert called_programs(mod)["tir_negative"]


@pytest.mark.slow
def test_compiled_model_still_refuses_wrong_arguments(tmp_path: Path) -> None:
    """Its answers are right, and arguments of another shape or type are refused."""
    built = build_relax(lowered(), host_target(), tmp_path)
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)

    (found,) = run_model(built, [x])

    np.testing.assert_allclose(found, np.exp(x) - x, rtol=1e-5)
    for wrong in (np.zeros((4, 5), np.float32), np.zeros((4, 4), np.int32)):
        with pytest.raises(Exception, match="loc=param"):  # TVM's classes differ by version
            run_model(built, [wrong])


def lowered() -> IRModule:
    """Return programs on the model's argument, on inner tensors, and (`tir_negative1`) on both."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(builder.emit(relax.op.exp(x)), (16,)))
            square = builder.emit(relax.op.reshape(builder.emit(relax.op.negative(flat)), (4, 4)))
            result = builder.emit_output(relax.op.add(relax.op.negative(square), relax.op.negative(x)))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def planned() -> IRModule:
    with make_target(host_target()):
        return relax.get_pipeline("default")(lowered())
