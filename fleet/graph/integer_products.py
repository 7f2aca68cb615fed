"""Fuses an integer convolution with its padding into one tensor program, and widens operands where needed.

Apart, the padded data would go through memory once more. An instruction that multiplies 16-bit integers gets its data
widened while it is padded; the weights are constants, and are widened here.
"""

from __future__ import annotations

from tvm import te, tirx, topi
from tvm.relax import Call, Expr
from tvm.te import Tensor

from cross.targets.integer_units import IntegerUnit
from fleet.graph.constants import array_of, constant, dtype_of
from fleet.graph.rebuilding import Rebuild, Rule

_FUSES_WITH_ELEMENTWISE = 4
"""TVM's number for operators that later element-wise ones are fused into (kOutEWiseFusable). It cannot tell by
itself."""


def integer_product_rules(unit: IntegerUnit) -> dict[str, Rule]:
    """Return the rules for a processor's instruction, for models with channels last."""

    def convolve(rebuild: Rebuild, call: Call) -> Expr | None:
        weights = array_of(rebuild, call.args[1])
        if not _is_of_codes(call, unit) or weights is None or str(call.attrs.data_layout) != "NHWC":
            return None
        padded = rebuild.call_only_for(call.args[0], "relax.nn.pad")
        if padded is None and unit.data == unit.data_operand:
            return None
        source = call.args[0] if padded is None else padded.args[0]
        zero = 0 if padded is None else int(padded.attrs.pad_value)
        widths = [0] * 8 if padded is None else [int(width) for width in padded.attrs.pad_width]
        top, left, bottom, right = (int(width) for width in call.attrs.padding)
        if zero and any((top, left, bottom, right)):
            return None  # padded twice, and differently
        inner = [0, 0, top, bottom, left, right, 0, 0]
        before, after = ([a + b for a, b in zip(widths[i::2], inner[i::2], strict=True)] for i in (0, 1))

        def compute(data: Tensor, kernel: Tensor) -> Tensor:
            if any((*before, *after)):
                data = topi.nn.pad(data, before, after, tirx.const(zero, unit.data), name="pad_temp")
            strides, dilation = ([int(n) for n in values] for values in (call.attrs.strides, call.attrs.dilation))
            data = _widened(data, unit)
            return topi.nn.conv(data, kernel, strides, [0] * 4, dilation, 1, "NHWC", "HWIO", "int32")

        return _call(rebuild, compute, source, constant(weights, unit.weights), "conv2d")

    def multiply(rebuild: Rebuild, call: Call) -> Expr | None:
        weights = array_of(rebuild, call.args[1])
        if not _is_of_codes(call, unit) or weights is None or unit.data == unit.data_operand:
            return None

        def compute(data: Tensor, matrix: Tensor) -> Tensor:
            wide = _widened(data, unit)
            k = te.reduce_axis((0, matrix.shape[0]), name="k")

            def summed(*at: te.Var) -> te.Expr:
                return te.sum(wide(*at[:-1], k).astype("int32") * matrix(k, at[-1]).astype("int32"), axis=k)

            return te.compute((*data.shape[:-1], matrix.shape[1]), summed, name="matmul")

        return _call(rebuild, compute, call.args[0], constant(weights, unit.weights), "matmul")

    return {"relax.matmul": multiply, "relax.nn.conv2d": convolve}


def _is_of_codes(call: Call, unit: IntegerUnit) -> bool:
    return str(call.attrs.out_dtype) == "int32" and dtype_of(call.args[0]) == unit.data


def _widened(data: Tensor, unit: IntegerUnit) -> Tensor:
    return data if unit.data == unit.data_operand else topi.cast(data, unit.data_operand)


def _call(rebuild: Rebuild, compute: object, data: Expr, weights: Expr, name: str) -> Expr:
    known = {"op_pattern": _FUSES_WITH_ELEMENTWISE}
    return rebuild.builder.call_te(compute, data, weights, primfunc_name_hint=name, primfunc_attrs=known)
