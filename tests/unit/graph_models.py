"""Small Relax functions for the tests of fleet.graph, and running them on this machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from cross.targets.intrinsics import keep_package_light
from cross.targets.target import host_target
from fleet.graph.rebuilding import op_name
from tests.unit.quick_compile import compile_quickly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tvm.ir import IRModule
    from tvm.relax import Expr

    Emit = Callable[[Expr], Expr]

TARGET = host_target()


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def function_of(shapes: Sequence[tuple[object, ...]], body: Callable[..., Expr]) -> IRModule:
    """Return a module with a main that takes float32 tensors and returns the result of `body`.

    The last argument of `body` names a value; a value that is read twice needs a name.
    """
    keep_package_light()
    from tvm import relax

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(*params, builder.emit))
        builder.emit_func_output(result)
    return builder.finalize()


def operators(mod: IRModule) -> Counter[str]:
    """Return how often main calls each operator, without "relax."."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return Counter(op_name(value).removeprefix("relax.") for value in values if op_name(value))


def run(mod: IRModule, *inputs: np.ndarray) -> np.ndarray:
    """Return main's output for these inputs."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(compile_quickly(mod), tvm.cpu())
    return np.asarray(machine["main"](*map(tvm.runtime.tensor, inputs)).numpy())
