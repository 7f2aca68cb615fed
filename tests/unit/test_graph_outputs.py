"""A model's outputs belong to its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.graph.pipeline import lower
from tests.unit.graph_models import TARGET, function_of, random_array
from tests.unit.quick_compile import compile_quickly

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


def test_no_output_shares_memory_with_anything() -> None:
    """An input, a constant and another output are copied; the next call, or a write into one, changes no other."""
    import tvm
    from tvm import relax

    constant = random_array(2, 3, seed=1)

    def body(x: Expr, emit: Emit) -> Expr:
        doubled = emit(relax.op.add(x, x))
        return relax.Tuple([x, relax.const(constant), doubled, doubled])

    lowered = lower(function_of([(2, 3)], body), TARGET)
    relax.analysis.well_formed(lowered)
    machine = relax.VirtualMachine(compile_quickly(lowered), tvm.cpu())
    given = tvm.runtime.tensor(random_array(2, 3))
    first = [np.from_dlpack(output) for output in machine["main"](given)]
    kept = [array.copy() for array in first]
    for array in first[1:3]:
        array += 1
    given.copyfrom(np.zeros((2, 3), "float32"))

    again = [output.numpy() for output in machine["main"](given)]

    np.testing.assert_array_equal(first[0], kept[0])
    np.testing.assert_array_equal(first[3], kept[3])
    np.testing.assert_array_equal(again[1], constant)


@pytest.mark.parametrize("kind", ["of an input", "of an output", "of a reshaped output"])
def test_outputs_in_another_shape_are_no_views(kind: str) -> None:
    """A reshape of an input, or of another output, shared its memory."""
    import tvm
    from tvm import relax

    def body(x: Expr, emit: Emit) -> Expr:
        doubled = emit(relax.op.add(x, x))
        source = x if kind == "of an input" else doubled
        flat = emit(relax.op.reshape(source, (6,)))
        last = emit(relax.op.reshape(emit(relax.op.reshape(source, (1, 6))), (3, 2)))
        return relax.Tuple([flat if kind == "of a reshaped output" else doubled, last])

    lowered = lower(function_of([(2, 3)], body), TARGET)
    machine = relax.VirtualMachine(compile_quickly(lowered), tvm.cpu())
    given = tvm.runtime.tensor(random_array(2, 3))
    outputs = [np.from_dlpack(output) for output in machine["main"](given)]

    relax.analysis.well_formed(lowered)
    assert not np.shares_memory(*outputs)
    assert not any(np.shares_memory(output, np.from_dlpack(given)) for output in outputs)
    expected = np.from_dlpack(given) * (1 if kind == "of an input" else 2)
    np.testing.assert_array_equal(outputs[1], expected.reshape(3, 2))


def test_a_view_of_an_unshared_tensor_is_not_copied() -> None:
    """The view costs nothing."""
    from tvm import relax

    def body(x: Expr, emit: Emit) -> Expr:
        doubled = emit(relax.op.add(x, x))
        return relax.Tuple([emit(relax.op.reshape(doubled, (6,))), emit(relax.op.multiply(x, x))])

    lowered = lower(function_of([(2, 3)], body), TARGET)

    assert not any("copy" in variable.name_hint for variable in lowered.functions)


def test_outputs_without_shared_memory_are_not_copied() -> None:
    """Outputs that share no memory are not copied."""
    from tvm import relax

    lowered = lower(function_of([(2, 3)], lambda x, emit: relax.op.add(x, x)), TARGET)

    assert ["add", "main"] == sorted(variable.name_hint for variable in lowered.functions)
