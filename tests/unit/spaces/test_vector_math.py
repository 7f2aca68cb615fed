"""Functions as arithmetic: errors of at most 4 units in the last place of float32, also at infinity, per vector ISA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cross.targets.target import host_target
from fleet.spaces.vector_math.rewriting import with_arithmetic_functions
from tests import function_errors
from tests.function_errors import (
    CHUNK,
    MOST_ULP,
    NAMES,
    compiled,
    function_of,
    program,
    target_of,
    worst,
    worst_on_neon,
)
from tests.needs import is_absent

pytestmark = pytest.mark.slow

HOST_ISA = str(dict(host_target().options).get("mcpu", ""))

EVERY = 9973
"""Step that gives 430,000 numbers besides the edges; `python -m tests.function_errors` compares all numbers."""

ON_NEON = (*(name for name in NAMES if not name.startswith("x^")), "x^5", "x^6", "x^-2", "x^0.5", "x^2.2")
"""Functions tested on ARM. Other exponents use the same code."""

PAIRS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e9, -1e9, 1e38, -1e38, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"] if HOST_ISA.startswith("x86-64") else [None])
@pytest.mark.parametrize("name", NAMES)
def test_functions_are_right(name: str, mcpu: str | None) -> None:
    """Errors stay within the limit with vectors of 256 and 512 bits, and with this machine's own."""
    if mcpu is not None and not mcpu <= HOST_ISA:
        pytest.skip(f"this machine runs {HOST_ISA} code")

    assert worst(name, target_of(mcpu), every=EVERY).ulp <= MOST_ULP


@pytest.mark.parametrize(
    ("made", "right", "is_allowed"),
    [
        (math.inf, 3.4028234e38, True),
        (3.4028234e38, 1e39, True),
        (math.inf, 3.4e38, False),
        (1e38, math.inf, False),
        (-math.inf, math.inf, False),
        (math.nan, math.inf, False),
    ],
)
def test_an_overflow_is_allowed_next_to_the_largest_number_only(made: float, right: float, is_allowed: bool) -> None:
    found = function_errors.errors(np.array([made], np.float32), np.array([right]))
    assert bool(found[0] <= MOST_ULP) is is_allowed


@pytest.mark.skipif(is_absent(function_errors.QEMU), reason=f"no {function_errors.QEMU}")
@pytest.mark.timeout(480)  # an emulated processor, on a machine that may be busy
@pytest.mark.parametrize("name", ON_NEON)
def test_functions_are_right_on_arm(name: str) -> None:
    """Errors stay within the limit with the vectors of 64-bit ARM, at the edges of each range."""
    assert worst_on_neon(name, every=0).ulp <= MOST_ULP


def test_powers_with_exponents_that_are_data_are_right() -> None:
    """Signs, zeros, infinities and NaN of all pairs equal C's; other pairs are right to 4 units in the last place."""
    from tvm import tirx

    rng = np.random.default_rng(0)
    bases = np.concatenate([np.repeat(PAIRS, len(PAIRS)), rng.lognormal(0, 3, CHUNK), np.linspace(0.9, 1.1, CHUNK)])
    exponents = np.concatenate([np.tile(PAIRS, len(PAIRS)), rng.normal(0, 12, CHUNK), np.linspace(-800, 800, CHUNK)])
    x, y = (np.resize(each, 3 * CHUNK).astype(np.float32) for each in (bases, exponents))

    made = compiled(program(tirx.power, size=x.size, arguments=2), host_target())(x, y)

    with np.errstate(all="ignore"):
        right = np.power(x.astype(np.float64), y.astype(np.float64))
    ulp = function_errors.errors(made, right)
    wrong = [(float(x[at]), float(y[at]), float(made[at]), float(right[at])) for at in np.flatnonzero(ulp > MOST_ULP)]
    assert wrong[:5] == []
    zeros = (made == 0) & (right == 0)
    np.testing.assert_array_equal(np.signbit(made[zeros]), np.signbit(right[zeros]))


def test_the_factor_of_mish_is_one_quotient() -> None:
    """It is right to 4 units in the last place, also where it saturates, and infinity and NaN stay right."""
    from tvm import tirx

    x = np.concatenate([np.linspace(-120, 60, CHUNK - 3), [-np.inf, np.inf, np.nan]]).astype(np.float32)

    made = compiled(program(lambda value: tirx.tanh(tirx.log1p(tirx.exp(value)))), host_target())(x)

    with np.errstate(over="ignore"):
        right = np.where(x > 40, 1.0, np.tanh(np.log1p(np.exp(np.minimum(x, 40).astype(np.float64)))))
    assert np.isnan(made[-1])
    assert np.max(function_errors.errors(made[:-1], right[:-1])) <= MOST_ULP


def test_half_precision_is_computed_in_float32() -> None:
    """The only error is the rounding to the result's type."""
    from tvm import tirx

    def function(x: Any) -> Any:
        return tirx.tanh(x.astype("float16")).astype("float32")

    x = np.linspace(-3, 3, CHUNK, dtype=np.float32)

    made = compiled(program(function), host_target())(x)

    np.testing.assert_allclose(made, np.tanh(x.astype(np.float16).astype(np.float32)), rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("x^")])
def test_no_function_is_left_to_the_c_library(name: str) -> None:
    """TVM has its operators in two namespaces."""
    mod = program(function_of(name))

    assert not with_arithmetic_functions(mod).same_as(mod)


def test_twice_is_as_good_as_once() -> None:
    """A module without functions is returned as it is."""
    import tvm
    from tvm import te, topi

    data = te.placeholder((8,), name="data")
    once = with_arithmetic_functions(tvm.IRModule({"main": te.create_prim_func([data, topi.exp(data)])}))

    assert with_arithmetic_functions(once).same_as(once)


def test_rounded_functions_are_computed_in_vectors() -> None:
    """Nested functions are vectorized, too, although TVM refuses their names inside a rounding."""
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
