"""Computes quantized models in integers: between QuantizeLinear and DequantizeLinear no float is stored in memory.

A quantized model says "dequantize, convolve in float, quantize". With integers x, w, zero point z and scales s that is

    s_x * s_w * (sum(x * w) - z * sum(w))

so a convolution or product becomes one of integers, a shift by constants of its output channel, and one multiplication.
The rounding behind it stays ONNX's: to the nearest, ties to even, clipped to the type. Other operators than products
and moves of data (additions, activations, means) are computed in float in place, and fused with their neighbours.

Rules look backwards for "dequantize(codes)", which so means "these numbers in memory". Codes are kept in the dtype that
the processor multiplies: uint8 on x86, where int8 ones are shifted by 128 together with their zero point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import IRModule
from tvm.relax import Call, Expr, Var

from cross.targets.integer_units import IntegerUnit
from fleet.graph.constants import Array, array_of, constant, dtype_of, is_constant, shape_of
from fleet.graph.folding import FOLDING, fold
from fleet.graph.rebuilding import Rebuild, Rule, rewrite, with_attrs
from fleet.graph.transposes import transposed_axes

_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_LARGEST_SUM = 2**31 // (255 * 128)
"""Terms that an int32 can sum in the worst case."""

_ROUNDING = 2.0**-21
"""Relative distance allowed between a bias and a whole number of steps, if it was made by multiplying in float32."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized tensor: its value is (codes - zero) * scale."""

    codes: Expr
    scale: np.float32
    zero: int

    def real(self) -> Expr:
        """Return the dequantized numbers, as rules recognize them."""
        zero = relax.const(np.array(self.zero, dtype_of(self.codes)))
        return relax.op.dequantize(self.codes, relax.const(self.scale), zero, axis=-1, out_dtype="float32")


@dataclass(frozen=True, slots=True)
class Weights:
    """Quantized constant weights, their zero points subtracted."""

    values: Array
    """int8."""

    scale: Array
    """float32, one, or one for each index of the output channel."""


def in_integers(mod: IRModule, unit: IntegerUnit) -> IRModule:
    """Return the module with its quantized products in integers, in the form of the processor's instruction."""
    rules = _IntegerRules(unit)
    own: dict[str, Rule] = {
        "relax.add": rules.add_bias,
        "relax.dequantize": rules.dequantize,
        "relax.matmul": rules.multiply,
        "relax.nn.conv2d": rules.convolve,
        "relax.quantize": rules.quantize,
        **dict.fromkeys((f"relax.{name}" for name in _MOVING), rules.move),
    }
    folding = {name: rule for name, rule in FOLDING.items() if name != "relax.dequantize"}  # weights stay codes
    return rewrite(rewrite(mod, own, folding), {"relax.dequantize": _in_float})


def _in_float(rebuild: Rebuild, call: Call) -> Expr | None:
    """Write a remaining dequantization as arithmetic with scales as arguments, so that programs do not depend on
    them.
    """
    found = codes_of(rebuild, call)
    if found is None:
        return None
    real = rebuild.bind(relax.op.astype(found.codes, "float32"))
    if found.zero:
        real = rebuild.bind(relax.op.add(real, _number(-found.zero)))
    return relax.op.multiply(real, _number(float(found.scale)))


def codes_of(rebuild: Rebuild, expr: Expr) -> Codes | None:
    """Return the codes of a dequantized tensor; None if it is a constant, or has one scale per channel."""
    call = rebuild.call_of(expr, "relax.dequantize")
    if call is None or is_constant(rebuild.bound_to(call.args[0])) or dtype_of(call.args[0]) not in _RANGES:
        return None
    scale, zero = (array_of(rebuild, arg) for arg in list(call.args)[1:])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or str(call.attrs.out_dtype) != "float32":
        return None
    return Codes(call.args[0], np.float32(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]))


class _IntegerRules:
    """Rewrite rules that track the variables whose codes are stored in the other dtype."""

    def __init__(self, unit: IntegerUnit) -> None:
        self._unit = unit
        self._kept: dict[Var, Expr] = {}

    def dequantize(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Read stored codes; compute a bias, which has 32-bit codes."""
        if dtype_of(call.args[0]) == "int32":
            return fold(rebuild, call)
        found = codes_of(rebuild, call)
        if found is None or dtype_of(found.codes) == self._unit.data:
            return None
        kept = self._kept.get(found.codes)
        shift = self._shift_from(dtype_of(found.codes))
        if kept is None:
            kept = _shifted(rebuild, found.codes, shift, self._unit.data)
        return Codes(kept, found.scale, found.zero + shift).real()

    def quantize(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Quantize to the stored dtype; codes in the model's dtype are computed for other readers."""
        scale, zero = (array_of(rebuild, arg) for arg in list(call.args)[1:])
        dtype = str(call.attrs.out_dtype)
        if dtype not in _RANGES or scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        shift = self._shift_from(dtype)
        step, at = np.float32(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]) + shift
        before = codes_of(rebuild, call.args[0])
        if before is not None and (before.scale, before.zero, dtype_of(before.codes)) == (step, at, self._unit.data):
            codes = before.codes
        else:
            codes = self._rounded(rebuild, call.args[0], step, at)
        if dtype == self._unit.data:
            return codes
        shifted = _shifted(rebuild, codes, -shift, dtype)
        self._kept[shifted] = codes
        return shifted

    def convolve(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Convolve codes; the convolution pads with the zero point."""
        layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
        data = self._codes(rebuild, call.args[0])
        weights = _weights_of(rebuild, call.args[1], kernel_layout.find("O"))
        if data is None or weights is None or int(call.attrs.groups) != 1 or str(call.attrs.out_layout) != layout:
            return None
        values, inputs = weights.values, kernel_layout.index("I")
        added = -values.shape[inputs] % self._unit.group
        values = np.pad(values, [(0, added if axis == inputs else 0) for axis in range(values.ndim)])
        if not self._can_multiply(values, kernel_layout.index("O")):
            return None
        padding = [int(width) for width in call.attrs.padding]
        pads = {"H": (padding[0], padding[2]), "W": (padding[1], padding[3]), "C": (0, added)}
        widths = [width for axis in layout for width in pads.get(axis, (0, 0))]
        source = data.codes
        changed: dict[str, object] = {"out_dtype": "int32"}
        if any(widths) and (added or data.zero):
            source = rebuild.bind(relax.op.nn.pad(source, widths, pad_value=float(data.zero)))
            changed["padding"] = [0] * len(padding)
        summed = rebuild.bind(with_attrs(call, [source, constant(values)], changed))
        return _scaled(rebuild, summed, data, weights, kernel_layout.index("O"), layout.index("C"))

    def multiply(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Multiply codes by a matrix of weights."""
        data, weights = self._codes(rebuild, call.args[0]), _weights_of(rebuild, call.args[1], 1)
        if data is None or weights is None or weights.values.ndim != 2 or len(shape_of(call.args[0]) or ()) < 2:
            return None  # a vector, or a tensor of unknown shape
        if weights.values.shape[0] % self._unit.group or not self._can_multiply(weights.values, 1):
            return None
        summed = rebuild.bind(relax.op.matmul(data.codes, constant(weights.values), out_dtype="int32"))
        return _scaled(rebuild, summed, data, weights, 1, -1)

    def add_bias(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Add a bias to the sums if it is a whole number of their steps, as quantizers make it."""
        for product, other in ((call.args[0], call.args[1]), (call.args[1], call.args[0])):
            sums, steps = _sums_of(rebuild, product)
            bias = array_of(rebuild, other)
            if sums is None or steps is None or bias is None or bias.dtype != np.float32:
                continue
            if np.broadcast_shapes(bias.shape, steps.shape) != np.broadcast_shapes(steps.shape, (1,) * bias.ndim):
                continue  # it differs from pixel to pixel
            exact = bias.astype(np.float64) / steps
            whole = np.rint(exact)
            if np.any(np.abs(exact - whole) > _ROUNDING * np.abs(whole)) or np.any(np.abs(whole) >= 2**30):
                continue
            summed = rebuild.bind(relax.op.add(sums, constant(whole, "int32")))
            return relax.op.multiply(rebuild.bind(relax.op.astype(summed, "float32")), constant(steps))
        return None

    def move(self, rebuild: Rebuild, call: Call) -> Expr | None:
        """Move codes, or take their maximum, instead of dequantized numbers."""
        found = self._codes(rebuild, call.args[0])
        if found is None:
            return None
        moved = rebuild.bind(with_attrs(call, [found.codes, *list(call.args)[1:]], {}))
        return Codes(moved, found.scale, found.zero).real()

    def _codes(self, rebuild: Rebuild, expr: Expr) -> Codes | None:
        found = codes_of(rebuild, expr)
        return found if found is not None and dtype_of(found.codes) == self._unit.data else None

    def _can_multiply(self, values: Array, columns: int) -> bool:
        terms = values.size // values.shape[columns]
        return bool(values.shape[columns] % self._unit.widths[-1] == 0) and terms <= _LARGEST_SUM

    def _shift_from(self, dtype: str) -> int:
        """Return the offset between codes of a dtype and the stored ones."""
        return _RANGES[self._unit.data][0] - _RANGES[dtype][0]

    def _rounded(self, rebuild: Rebuild, value: Expr, scale: np.float32, zero: int) -> Expr:
        low, high = _RANGES[self._unit.data]
        activation = rebuild.call_only_for(value, "relax.nn.relu")
        if activation is not None:
            low, value = max(low, zero), activation.args[0]
        sums, steps = _sums_of(rebuild, value)
        if sums is not None and steps is not None:
            value, steps = rebuild.bind(relax.op.astype(sums, "float32")), steps / scale
        else:
            steps = np.array([1 / scale], "float32")
        scaled = rebuild.bind(relax.op.multiply(value, constant(steps, "float32")))
        rounded = rebuild.bind(relax.op.round(scaled))
        if zero:
            rounded = rebuild.bind(relax.op.add(rounded, _number(zero)))
        return rebuild.bind(relax.op.astype(rebuild.bind(relax.op.clip(rounded, low, high)), self._unit.data))


def _sums_of(rebuild: Rebuild, expr: Expr) -> tuple[Expr, Array] | tuple[None, None]:
    """Return the integer sums behind a value, and their constant scale."""
    scaled = rebuild.call_only_for(expr, "relax.multiply")
    cast = None if scaled is None else rebuild.call_of(scaled.args[0], "relax.astype")
    steps = None if scaled is None else array_of(rebuild, scaled.args[1])
    if cast is None or steps is None or dtype_of(cast.args[0]) != "int32":
        return None, None
    return cast.args[0], steps


def _scaled(rebuild: Rebuild, summed: Expr, data: Codes, weights: Weights, columns: int, channels: int) -> Expr:
    """Return dequantized sums of products of codes.

    Args:
        columns: axis of the weights that has the output channels.
        channels: axis of the sums that has them.
    """
    rank = int(summed.ty.ndim)
    shape = [-1 if axis == channels % rank else 1 for axis in range(rank)]
    others = tuple(axis for axis in range(weights.values.ndim) if axis != columns)
    shift = -data.zero * weights.values.astype(np.int64).sum(axis=others)
    if np.any(shift):
        summed = rebuild.bind(relax.op.add(summed, constant(shift.reshape(shape), "int32")))
    steps = np.broadcast_to(data.scale * weights.scale, shift.shape)
    real = rebuild.bind(relax.op.astype(summed, "float32"))
    return relax.op.multiply(real, constant(steps.reshape(shape), "float32"))


def _weights_of(rebuild: Rebuild, expr: Expr, columns: int) -> Weights | None:
    """Return constant weights with one scale, or one per index of their axis `columns`; else None."""
    turned = rebuild.call_of(expr, "relax.permute_dims")
    axes = None if turned is None else transposed_axes(turned)
    call = rebuild.call_of(expr if turned is None else turned.args[0], "relax.dequantize")
    if call is None:
        return None
    codes, scale, zero = (array_of(rebuild, arg) for arg in call.args)
    if codes is None or scale is None or zero is None or str(codes.dtype) not in _RANGES:
        return None
    axis = int(call.attrs.axis) % codes.ndim
    by_axis = [-1 if dim == axis else 1 for dim in range(codes.ndim)]
    values = codes.astype(np.int16) - (zero.reshape(by_axis) if zero.size > 1 else zero.reshape(())).astype(np.int16)
    if axes is not None:
        values, axis = values.transpose(axes), axes.index(axis)
    low, high = _RANGES["int8"]
    if (scale.size > 1 and axis != columns) or values.min() < low or values.max() > high:
        return None
    return Weights(values.astype(np.int8), scale.reshape(-1).astype(np.float32))


def _shifted(rebuild: Rebuild, codes: Expr, shift: int, dtype: str) -> Expr:
    """Return codes of one 8-bit dtype converted to the other one."""
    wide = rebuild.bind(relax.op.astype(codes, "int16"))
    shifted = rebuild.bind(relax.op.add(wide, constant(np.array([shift], "int16"))))
    return rebuild.bind(relax.op.astype(shifted, dtype))


def _number(value: float) -> Expr:
    """Return a number as a tensor of one element, which TVM keeps as an argument."""
    return constant(np.array([value], "float32"))


_MOVING = ("expand_dims", "flatten", "nn.max_pool2d", "permute_dims", "reshape", "squeeze", "strided_slice")
