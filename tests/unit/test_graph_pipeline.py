"""Real networks, lowered: the remaining layouts and transposes, and no unfused operators."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import fleet
from cross.targets.target import make_target
from fleet.graph.marking import ATTRIBUTE
from fleet.graph.pipeline import lower, steps
from fleet.graph.rebuilding import op_name
from fleet.models.model import bundled_model, import_model, load_model
from fleet.workloads.applying import workload_hash, workload_module
from tests.unit.graph_models import TARGET, function_of, random_array

if TYPE_CHECKING:
    from pathlib import Path

    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_a_network_keeps_one_transpose_and_no_unfused_operator(name: str) -> None:
    """The image is converted, once. Each bias, activation and residual is in the program of its convolution."""
    mod = lower(import_model(load_model(bundled_model(name))), TARGET)

    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    called = Counter(
        re.sub(r"\d+$", "", str(value.args[0].name_hint)) for value in values if op_name(value) == "relax.call_tir"
    )
    assert len(values) == sum(called.values()), "main does nothing but call programs"
    assert 1 == sum(count for called_name, count in called.items() if "transpose" in called_name)
    assert not {"add", "multiply", "relu", "conv2d"}.intersection(called)


def test_every_function_of_a_module_gets_the_passes() -> None:
    """All functions of a module are rewritten, as TVM's own exporters name them, except those claimed by another
    compiler.
    """
    from tvm import relax

    builder = relax.BlockBuilder()
    for name, attrs in (("prefill", {}), ("decode", {}), ("claimed", {"Codegen": "vendor"})):
        image = relax.Var("image", relax.TensorType((1, 16, 12, 12), "float32"))
        with builder.function(name, [image], attrs):
            weights = relax.const(random_array(16, 16, 3, 3))
            builder.emit_func_output(builder.emit(relax.op.nn.conv2d(image, weights, padding=1)))
    mod = builder.finalize()

    with make_target(TARGET):
        for step in steps(TARGET)[:4]:
            mod = step.run(mod)

    layouts = {
        variable.name_hint: re.findall(r'data_layout="(\w+)"', function.script())
        for variable, function in mod.functions.items()
    }
    assert layouts == {"prefill": ["NHWC"], "decode": ["NHWC"], "claimed": ["NCHW"]}


def test_weights_are_marked() -> None:
    """The second operand of a product with weights may be packed, the input may not."""
    lowered = lower(function_of([(16, 16)], lambda x, emit: times_weights(x)), TARGET)

    assert [[1]] == constants(lowered)


def test_weights_that_are_also_data_are_not_marked() -> None:
    """One program is called with weights and with data: packing them would break the other call."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return times_weights(relax.op.matmul(times_weights(x), x))

    lowered = lower(function_of([(16, 16)], body), TARGET)

    assert [[]] == constants(lowered)


def test_records_are_of_programs_and_not_of_a_pipeline() -> None:
    """Without one pass, the programs that it would have changed are other workloads without records; the others keep
    theirs.
    """

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        convolved = relax.op.nn.conv2d(x, relax.const(random_array(16, 16, 3, 3)), padding=1)
        return times_weights(emit(relax.op.mean(convolved, [2, 3])))

    mod = function_of([(1, 16, 12, 12)], body)

    found = [workloads(mod, without=name) for name in ("", "filter")]

    assert found[0].keys() & found[1].keys() >= {"mean", "matmul"}
    changed = {name for name in found[0].keys() | found[1].keys() if found[0].get(name) != found[1].get(name)}
    assert changed == {name for name in changed if "conv2d" in name} != set()


def workloads(mod: IRModule, *, without: str) -> dict[str, str]:
    """Return the structural hash of each program, by its name, where the pipeline lacks a pass."""
    with make_target(TARGET):
        for step in steps(TARGET):
            mod = mod if step.name == without else step.run(mod)
    programs = {var.name_hint: function for var, function in mod.functions.items() if var.name_hint != "main"}
    return {name: workload_hash(workload_module(function)) for name, function in programs.items()}


def test_a_record_with_constant_weights_does_not_match_a_parameter() -> None:
    """A schedule may pack constant weights: the same loops with a parameter instead are another workload."""
    [weighted], [unweighted] = (
        [workload_hash(workload_module(function)) for function in lowered.functions.values() if is_program(function)]
        for lowered in (
            lower(function_of([(16, 16)], lambda x, emit: times_weights(x)), TARGET),
            lower(function_of([(16, 16), (16, 16)], lambda x, y, emit: product(x, y)), TARGET),
        )
    )

    assert weighted != unweighted


def test_tensors_that_do_not_meet_share_memory(tmp_path: Path) -> None:
    """That is planned at compile time: two pieces serve five results, of which two are alive at a time."""

    def body(x: Expr, emit: Emit) -> Expr:
        for _ in range(6):
            x = emit(times_weights(x))
        return x

    planned = fleet.pipeline(dict(TARGET.options), library=tmp_path / "none.sqlite")(function_of([(16, 16)], body))

    found = Counter(re.findall(r"alloc_(storage|tensor)", planned["main"].script()))
    assert (3, 6) == (found["storage"], found["tensor"]), "the sixth result is the model's user's"


def times_weights(x: Expr) -> Expr:
    """A product with random weights."""
    from tvm import relax

    return relax.op.matmul(x, relax.const(random_array(16, 16)))


def product(x: Expr, y: Expr) -> Expr:
    """A product of data."""
    from tvm import relax

    return relax.op.matmul(x, y)


def is_program(function: object) -> bool:
    """Tell whether a function is a tensor program."""
    from tvm.tirx import PrimFunc

    return isinstance(function, PrimFunc)


def constants(mod: IRModule) -> list[list[int]]:
    """Return which arguments are marked, by program."""
    programs = [function for var, function in mod.functions.items() if var.name_hint != "main"]
    return [[int(index) for index in program.attrs.get(ATTRIBUTE, [])] for program in programs]
