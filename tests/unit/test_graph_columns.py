"""Columns of products that are no whole vectors are padded, and the padding is never seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import parse_target
from fleet.graph.marking import calls_of
from fleet.graph.pipeline import lower
from tests.unit.graph_models import function_of, random_array, run

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow
TARGET = parse_target(json.dumps({"kind": "llvm", "num-cores": 2}))


def test_columns_are_padded_to_whole_vectors() -> None:
    """Three products, of 20, 16 and 1 columns; bias and activation stay in the program of the first."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        first = emit(relax.op.matmul(x, relax.const(random_array(12, 20))))
        hidden = emit(relax.op.nn.relu(emit(relax.op.add(first, relax.const(random_array(20, seed=1))))))
        second = emit(relax.op.matmul(hidden, relax.const(random_array(20, 16, seed=2))))
        return relax.op.matmul(second, relax.const(random_array(16, 1, seed=3)))

    mod, x = function_of([(2, 3, 12)], body), random_array(2, 3, 12)

    lowered = lower(mod, TARGET)

    weights = {
        variable.name_hint: tuple(int(size) for size in lowered[variable].params[1].shape)
        for variable in calls_of(lowered)
    }
    assert [(12, 24), (16, 8), (20, 16)] == sorted(weights.values())
    assert [(12, 24)] == [shape for name, shape in weights.items() if "add" in name and "relu" in name]
    np.testing.assert_allclose(run(mod, x), run(lowered, x), rtol=1e-4, atol=1e-5)


def test_products_of_data_are_left() -> None:
    """Only constants can be padded before a run."""
    lowered = lower(function_of([(4, 6), (6, 5)], lambda x, y, emit: matmul(x, y)), TARGET)

    [program] = calls_of(lowered)
    assert (6, 5) == tuple(int(size) for size in lowered[program].params[1].shape)


def matmul(x: Expr, y: Expr) -> Expr:
    from tvm import relax

    return relax.op.matmul(x, y)
