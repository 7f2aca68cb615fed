"""Groups of channels that are no whole vectors are padded, and the padding is never seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.domain.operators import describe_workload
from fleet.graph.pipeline import lower
from fleet.workloads.workload import workload_of
from tests.unit.graph_models import function_of, random_array, run

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow
TARGET = json.dumps({"kind": "llvm", "num-cores": 2})


@pytest.mark.parametrize(("width", "padded"), [(34, 40), (68, 80), (24, 24), (6, 6)])
def test_groups_are_padded_to_whole_vectors(width: int, padded: int) -> None:
    """Bias and activation stay in the same program; the result and its name are as before."""
    groups, inputs = 2, 8

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        weights = relax.const(random_array(groups * width, inputs, 1, 1))
        found = relax.op.nn.conv2d(x, weights, groups=groups)
        return relax.op.nn.relu(relax.op.add(found, relax.const(random_array(1, groups * width, 1, 1, seed=1))))

    mod, x = function_of([(1, groups * inputs, 5, 5)], body), random_array(1, groups * inputs, 5, 5)

    lowered = lower(mod, TARGET)

    [name] = [variable.name_hint for variable in lowered.get_global_vars() if "conv2d" in variable.name_hint]
    workload = workload_of(lowered[name], name=name)
    assert "relu" in name
    assert workload.args[1].shape == (1, 1, inputs, groups * padded)
    assert describe_workload(name, workload.args, workload.mod_json).startswith(f"conv2d 1x1 g2 16->{groups * width}")
    np.testing.assert_allclose(run(mod, x), run(lowered, x), rtol=1e-4, atol=1e-5)
