"""Real networks, lowered: what has to be left of layouts, and what must not be left unfused."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fleet.graph.marking import ATTRIBUTE
from fleet.graph.pipeline import lower
from fleet.graph.rebuilding import op_name
from fleet.models.model import bundled_model, import_model, load_model
from tests.unit.graph_models import TARGET, function_of, random_array

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_a_network_is_left_with_one_transpose_and_nothing_unfused(name: str) -> None:
    """The image is converted, once. Each bias, activation and residual is in the program of its convolution."""
    mod = lower(import_model(load_model(bundled_model(name))), TARGET)

    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    called = Counter(
        re.sub(r"\d+$", "", str(value.args[0].name_hint)) for value in values if op_name(value) == "relax.call_tir"
    )
    assert len(values) == sum(called.values()), "main does nothing but call programs"
    assert 1 == sum(count for called_name, count in called.items() if "transpose" in called_name)
    assert not {"add", "multiply", "relu", "conv2d"}.intersection(called)


def test_weights_are_marked() -> None:
    """The second operand of a product with weights may be packed, the input may not."""
    lowered = lower(function_of([(16, 16)], lambda x, emit: times_weights(x)), TARGET)

    assert [[1]] == constants(lowered)


def test_what_is_data_elsewhere_is_not_marked() -> None:
    """One program is called with weights and with data: packing them would break the other call."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return times_weights(relax.op.matmul(times_weights(x), x))

    lowered = lower(function_of([(16, 16)], body), TARGET)

    assert [[]] == constants(lowered)


def times_weights(x: Expr) -> Expr:
    """A product with random weights."""
    from tvm import relax

    return relax.op.matmul(x, relax.const(random_array(16, 16)))


def constants(mod: IRModule) -> list[list[int]]:
    """Return which arguments are marked, by program."""
    programs = [function for var, function in mod.functions.items() if var.name_hint != "main"]
    return [[int(index) for index in program.attrs.get(ATTRIBUTE, [])] for program in programs]
