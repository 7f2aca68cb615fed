"""Makes Relax modules of fragments."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fleet.errors import InvalidRequest
from fleet.fragments.fragment import Call, Fragment, Operand, Shape, Tensor
from fleet.fragments.operators import ATTRIBUTES
from fleet.graph.constants import shape_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from fleet.graph.constants import Array

PREFIX = "relax."
_PERIOD = 97
"""Values of holes repeat after so many numbers: no pass may take them for a constant of equal numbers."""


def to_relax(fragment: Fragment) -> IRModule:
    """Return a module whose `main` computes a fragment.

    Raises:
        InvalidRequest: TVM refuses an operator with these shapes, types or attributes.
    """
    from tvm import relax

    builder = relax.BlockBuilder()
    try:
        params = [relax.Var(f"i{n}", relax.TensorType(one.shape, one.dtype)) for n, one in enumerate(fragment.inputs)]
        values: dict[str, Expr] = {f"i{n}": param for n, param in enumerate(params)}
        values |= {f"w{n}": relax.const(_numbers(one, n), one.dtype) for n, one in enumerate(fragment.weights)}
        with builder.function("main", params):
            with builder.dataflow():
                for n, call in enumerate(fragment.calls):
                    values[f"c{n}"] = builder.emit(_call(call, values))
                result = builder.emit_output(values[f"c{len(fragment.calls) - 1}"])
            builder.emit_func_output(result)
        return builder.finalize()
    except Exception as error:  # TVM's inference raises many classes
        raise InvalidRequest(f"TVM refuses the fragment: {' '.join(str(error).split())[-200:]}") from error


def shapes_of(fragment: Fragment) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a fragment's tensors by name, as TVM infers them; open ones are left out.

    Raises:
        InvalidRequest: TVM refuses it.
    """
    from tvm import relax

    found = {f"i{n}": one.shape for n, one in enumerate(fragment.inputs)}
    found |= {f"w{n}": one.shape for n, one in enumerate(fragment.weights)}
    for n, binding in enumerate(to_relax(fragment)["main"].body.blocks[0].bindings[: len(fragment.calls)]):
        kind = binding.var.ty
        fields = enumerate(kind.fields) if isinstance(kind, relax.TupleType) else ()
        items = {f"c{n}.{item}": relax.Var("item", field) for item, field in fields} or {f"c{n}": binding.var}
        found |= {name: shape for name, item in items.items() if (shape := shape_of(item)) is not None}
    return found


def attributes_type(operator: str) -> str:
    """Return TVM's type of an operator's attributes; empty if it has none."""
    import tvm

    return ATTRIBUTES.get(operator) or str(tvm.ir.Op.get(f"{PREFIX}{operator}").attrs_type_key)


def _call(call: Call, values: Mapping[str, Expr]) -> Expr:
    import tvm
    from tvm import relax

    operands = [_operand(operand, values) for operand in call.operands]
    attributes = {key: list(value) if isinstance(value, tuple) else value for key, value in call.attributes.items()}
    attrs = tvm.ir.make_node(attributes_type(call.operator), **attributes) if attributes else None
    return relax.Call(tvm.ir.Op.get(f"{PREFIX}{call.operator}"), operands, attrs)


def _operand(operand: Operand, values: Mapping[str, Expr]) -> Expr:
    from tvm import relax

    if isinstance(operand, str):
        name, _, item = operand.partition(".")
        return relax.TupleGetItem(values[name], int(item)) if item else values[name]
    if isinstance(operand, Shape):
        return relax.ShapeExpr(list(operand.shape))
    if isinstance(operand, tuple):
        return relax.Tuple([_operand(one, values) for one in operand])
    return relax.prim_value(operand)


@functools.lru_cache(maxsize=8)
def _numbers(tensor: Tensor, number: int) -> Array:
    """Return values for a weight: its own, else different ones for each weight of a fragment."""
    if tensor.values:
        values = np.asarray(tensor.values, dtype=tensor.dtype)
        return np.full(tensor.shape, values[0]) if values.size == 1 else values.reshape(tensor.shape)
    ramp = (np.arange(math.prod(tensor.shape)) + number) % _PERIOD
    if tensor.dtype.startswith("float"):
        return ((ramp + 1) / (_PERIOD * (number + 1))).astype(tensor.dtype).reshape(tensor.shape)
    return ramp.astype(tensor.dtype).reshape(tensor.shape)
