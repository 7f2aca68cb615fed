"""Functions as arithmetic: right to float32's precision, also at infinity."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from cross.targets.target import host_target_json
from fleet.spaces.functions import with_arithmetic_functions

pytestmark = pytest.mark.slow

REFERENCES: dict[str, Any] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_right(name: str) -> None:
    """Within 4e-7 of the result, where that is no denormal number; infinities and NaN as the library has them."""
    import tvm
    from tvm import te, topi

    points = [np.linspace(-86, 88.7, 100_000), np.logspace(-9, 1, 1000), -np.logspace(-9, 1, 1000)]
    x = np.concatenate([*points, [np.inf, -np.inf, np.nan, 0.0]]).astype("float32")
    data = te.placeholder(x.shape, name="data")
    mod = with_arithmetic_functions(tvm.IRModule({"main": te.create_prim_func([data, getattr(topi, name)(data)])}))
    result = tvm.runtime.tensor(np.zeros_like(x))

    tvm.compile(mod, target=tvm.target.Target(json.loads(host_target_json())))["main"](tvm.runtime.tensor(x), result)

    with np.errstate(over="ignore"):
        expected = REFERENCES[name](x.astype("float64"))
    np.testing.assert_allclose(result.numpy(), expected, rtol=4e-7, atol=1e-37)


def test_twice_is_as_good_as_once() -> None:
    """A module without functions is returned as it is."""
    import tvm
    from tvm import te, topi

    data = te.placeholder((8,), name="data")
    once = with_arithmetic_functions(tvm.IRModule({"main": te.create_prim_func([data, topi.exp(data)])}))

    assert with_arithmetic_functions(once).same_as(once)


def test_rounded_functions_are_computed_in_vectors() -> None:
    """Of two functions, one in the other's argument: TVM refuses names within what it rounds."""
    import tvm
    from tvm import te, tirx

    data = te.placeholder((64,), "float32", name="data")
    rounded = te.compute((64,), lambda i: tirx.nearbyint(tirx.exp(tirx.erf(data[i])) * 9 + tirx.erf(data[i])))
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, rounded])}))
    [loop] = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    inputs = np.linspace(-3, 3, 64, dtype="float32")
    result = tvm.runtime.tensor(np.zeros(64, "float32"))

    mod = with_arithmetic_functions(schedule.mod)
    tvm.compile(mod, target=tvm.target.Target({"kind": "llvm"}))["main"](tvm.runtime.tensor(inputs), result)

    erf = np.vectorize(math.erf)(inputs)
    np.testing.assert_array_equal(np.rint(np.exp(erf) * 9 + erf).astype("float32"), result.numpy())
