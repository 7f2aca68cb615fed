"""Groups of channels that are no whole vectors are padded, and the padding does not reach the outputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import parse_target
from fleet.domain.operators import describe_workload
from fleet.graph.pipeline import lower
from fleet.workloads.workload import workload_of
from tests.unit.graph_models import function_of, random_array, run

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow
TARGET = parse_target(json.dumps({"kind": "llvm", "num-cores": 2}))


@pytest.mark.parametrize(
    ("groups", "width", "padded"),
    [
        (2, 34, 40),
        (2, 68, 80),
        (2, 24, 24),
        (2, 136, 144),
        (2, 6, 6),
        (1, 21, 24),
        (1, 1000, 1008),
        (1, 24, 24),
        (1, 3, 8),
        (1, 1, 8),
    ],
)
def test_channels_are_padded_to_whole_vectors(groups: int, width: int, padded: int) -> None:
    """Each group is padded. Bias and activation stay in the same program; the result and its name are as before."""
    inputs = 8

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        weights = relax.const(random_array(groups * width, inputs, 1, 1))
        found = relax.op.nn.conv2d(x, weights, groups=groups)
        return relax.op.nn.relu(relax.op.add(found, relax.const(random_array(1, groups * width, 1, 1, seed=1))))

    mod, x = function_of([(1, groups * inputs, 5, 5)], body), random_array(1, groups * inputs, 5, 5)

    lowered = lower(mod, TARGET)

    [name] = [variable.name_hint for variable in lowered.get_global_vars() if "conv2d" in variable.name_hint]
    workload = workload_of(lowered[name], name=name)
    expected = f"conv2d 1x1 {'g2 ' if groups > 1 else ''}{groups * inputs}->{groups * width}"
    assert "relu" in name
    assert workload.args[1].shape == (1, 1, inputs, groups * padded)
    assert describe_workload(name, workload.args, workload.mod_json).startswith(expected)
    np.testing.assert_allclose(run(mod, x), run(lowered, x), rtol=1e-4, atol=1e-5)
