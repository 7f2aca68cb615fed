"""Large expressions are stored step by step: TVM's analyzer sees few nodes, and results stay right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import AllocBuffer, BufferStore

from cross.targets.target import host_target
from fleet.spaces.space import finished, static_schedule
from fleet.spaces.vector_math.rewriting import with_arithmetic_functions
from fleet.spaces.vector_math.storing import MOST_NODES, analyzed_nodes
from tests.function_errors import NAMES, compiled, function_of, program

pytestmark = pytest.mark.slow

MOST_WRITTEN = 2500
"""Limit on the nodes of a finished program. A sigmoid of a sine has the most, 1,350."""


def _softplus(x: Any) -> Any:
    return tirx.log(tirx.exp(x) + tirx.const(1.0, "float32"))


NESTED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "exp(sin)": (lambda x: tirx.exp(tirx.sin(x)), lambda x: np.exp(np.sin(x))),
    "sigmoid(sin)": (lambda x: tirx.sigmoid(tirx.sin(x)), lambda x: 1 / (1 + np.exp(-np.sin(x)))),
    "tanh(tanh(tanh))": (lambda x: tirx.tanh(tirx.tanh(tirx.tanh(x))), lambda x: np.tanh(np.tanh(np.tanh(x)))),
    "softplus(softplus)": (lambda x: _softplus(_softplus(x)), lambda x: np.log1p(1 + np.exp(x))),
    "x tanh(softplus)": (lambda x: x * tirx.tanh(_softplus(x)), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
}


def _scheduled(function: Callable[[Any], Any], size: int = 4096) -> tvm.IRModule:
    schedule = static_schedule(program(function, size=size), host_target())
    assert schedule is not None
    return finished(schedule.mod, host_target())


def _nodes(mod: tvm.IRModule, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, [(kind, found.append)])
    return found


@pytest.mark.parametrize("name", [*NAMES, *NESTED])
def test_no_function_grows_beyond_the_limit(name: str) -> None:
    """The analyzer visits few nodes of each statement, and the program has few itself."""
    mod = _scheduled(NESTED[name][0] if name in NESTED else function_of(name))

    assert max(analyzed_nodes(store.value) for store in _nodes(mod, BufferStore)) <= MOST_NODES
    assert len(_nodes(mod, Expr)) <= MOST_WRITTEN


@pytest.mark.parametrize("size", [4096, 1003])
@pytest.mark.parametrize("name", NESTED)
def test_nested_functions_are_right(name: str, size: int) -> None:
    """In vectors and, with a size that has no divisor, in scalars."""
    function, right = NESTED[name]
    x = np.linspace(-8, 8, size, dtype=np.float32)

    made = compiled(program(function, size=size), host_target())(x)

    np.testing.assert_allclose(made, right(x.astype(np.float64)), rtol=2e-6, atol=2e-6)


def test_buffers_are_on_the_stack_of_each_thread() -> None:
    """One element per lane; the compiled function takes no memory from the heap."""
    mod = _scheduled(tirx.sin)
    sizes = {tuple(map(int, allocation.buffer.shape)) for allocation in _nodes(mod, AllocBuffer)}

    built = tvm.compile(mod, target=tvm.target.Target(dict(host_target().options)))

    [(lanes,)] = sizes
    assert lanes > 1
    assert "AllocWorkspace" not in built.mod.inspect_source("ll")


def test_a_guarded_load_is_not_moved() -> None:
    """Values inside a condition stay there: outside, the load would be beyond the border."""
    x = tvm.te.placeholder((8,), name="x")
    zero = tirx.const(0.0, "float32")
    shifted = tvm.te.compute((8,), lambda i: tirx.if_then_else(i > 0, tirx.sin(x[i - 1]), zero))

    mod = with_arithmetic_functions(tvm.IRModule({"main": tvm.te.create_prim_func([x, shifted])}))

    assert _nodes(mod, AllocBuffer) == []
    [store] = _nodes(mod, BufferStore)
    assert analyzed_nodes(store.value) > MOST_NODES
