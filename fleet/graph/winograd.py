"""Computes 3x3 convolutions by Winograd's algorithm where that is cheaper: a third of the time on most.

F(m, 3) in both dimensions cuts the data into overlapping tiles of m + 2 by m + 2, transforms them, multiplies them with
the transformed weights, one matrix product for each of the (m + 2)^2 positions, and transforms the products back into
m by m results (`fleet.graph.winograd_algorithm`). The weights are transformed here and now. All stages are one tensor
program, so that a schedule can keep a few rows of tiles in the cache on their way through it (`fleet.spaces.winograd`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from tvm import te
from tvm.relax import Call, Expr
from tvm.te import Tensor
from tvm.tirx import Select, Var, const, if_then_else
from tvm.tirx import all as all_of

from fleet.graph.constants import array_of, constant, dtype_of, shape_of
from fleet.graph.groups import FUSES_WITH_ELEMENTWISE
from fleet.graph.rebuilding import Rebuild, Rule
from fleet.graph.winograd_algorithm import OUTPUTS, TAPS, Filtering

ATTRIBUTE = "fleet.winograd"
"""Attribute of a block with its stage."""


class WinogradStage(enum.StrEnum):
    """The blocks of a Winograd convolution, in order."""

    COLUMNS = "columns"
    """Columns of the data transformed, float32 [batch, tile rows, size, width, channels]."""

    DATA = "data"
    """[size, size, batch, tile rows, tile columns, channels]."""

    PRODUCT = "product"
    """Products, in the layout of DATA with the result's channels."""

    PARTS = "parts"
    """Columns of the products transformed back, [batch, tile rows, outputs, size, tile columns, channels]."""

    RESULT = "result"
    """The convolution, channels last."""


_VECTOR = 16
"""Channels have to be whole vectors of the widest kind."""

_LOAD = 12
"""Cost of a weight from memory, in multiply-adds: a core computes 32 in the cycle that brings 2 or 3."""

_TRANSFORM = 20
"""Cost of both transforms of a number, and of moving it through the cache, in multiply-adds."""

_GAIN = 0.9
"""Share of the direct convolution's cost that is worth the rounding and the memory for larger weights."""


def convolve(rebuild: Rebuild, call: Call) -> Expr | None:
    """Replace a convolution, channels last, if Winograd's algorithm makes it faster."""
    weights, shape = array_of(rebuild, call.args[1]), shape_of(call.args[0])
    if weights is None or shape is None or not _fits(call, weights.shape):
        return None
    padding = [int(size) for size in call.attrs.padding]
    top, left, bottom, right = padding * (4 // len(padding))
    height, width = shape[1] + top + bottom - TAPS + 1, shape[2] + left + right - TAPS + 1
    outputs = best_outputs(shape[0], height, width, channels=weights.shape[2], filters=weights.shape[3])
    if outputs is None:
        return None
    filtering = Filtering(outputs)

    def compute(data: Tensor, kernel: Tensor) -> Tensor:
        return winograd(data, kernel, filtering, (height, width), (top, left))

    return rebuild.builder.call_te(
        compute,
        call.args[0],
        constant(filtering.weights(weights)),
        primfunc_name_hint="winograd_conv2d",
        primfunc_attrs={"op_pattern": FUSES_WITH_ELEMENTWISE},
    )


def best_outputs(batch: int, height: int, width: int, *, channels: int, filters: int) -> int | None:
    """Return the m of the fastest F(m, 3) for a result of this size; None if the direct convolution is fastest.

    The figures were fitted to Zen 5. Transformed weights are larger: where a layer has few pixels for each, reading
    them takes longer than all multiplications.
    """
    pixels = batch * height * width
    direct = TAPS**2 * (pixels + _LOAD)

    def cost(outputs: int) -> float:
        products = Filtering(outputs).size ** 2
        tiles = batch * math.ceil(height / outputs) * math.ceil(width / outputs)
        return products * (tiles * (1 + _TRANSFORM * (1 / channels + 1 / filters) / 2) + _LOAD)

    fastest = min(OUTPUTS, key=cost)
    return fastest if cost(fastest) < _GAIN * direct else None


def winograd(data: Tensor, kernel: Tensor, filtering: Filtering, size: Sequence[int], before: Sequence[int]) -> Tensor:
    """Return a convolution, stride 1, of float32 data [batch, height, width, channels] as a tensor expression.

    Args:
        kernel: transformed weights [size, size, channels, filters].
        size: height and width of the result.
        before: zeros that are added above the data, and to the left of it.
    """
    outputs, taps = filtering.outputs, range(filtering.size)
    batch, height, width, channels = data.shape
    rows, columns = (math.ceil(extent / outputs) for extent in size)
    filters = kernel.shape[3]

    def padded(n: Var, y: Var, x: Var, c: Var) -> Expr:
        y, x = y - before[0], x - before[1]
        inside = all_of(y >= 0, y < height, x >= 0, x < width)
        return if_then_else(inside, data[n, y, x, c], const(0.0, "float32"))

    def by_columns(n: Var, row: Var, p: Var, x: Var, c: Var) -> Expr:
        return _choose(p, filtering.data([pad[n, row * outputs + i, x, c] for i in taps]))

    def by_rows(p: Var, q: Var, n: Var, row: Var, column: Var, c: Var) -> Expr:
        return _choose(q, filtering.data([half[n, row, p, column * outputs + j, c] for j in taps]))

    def multiplied(p: Var, q: Var, n: Var, row: Var, column: Var, f: Var) -> Expr:
        return te.sum(full[p, q, n, row, column, summed] * kernel[p, q, summed, f], axis=summed)

    def back_by_columns(n: Var, row: Var, y: Var, q: Var, column: Var, f: Var) -> Expr:
        return _choose(y, filtering.result([product[p, q, n, row, column, f] for p in taps]))

    def back_by_rows(n: Var, y: Var, x: Var, f: Var) -> Expr:
        own = [parts[n, y // outputs, y % outputs, q, x // outputs, f] for q in taps]
        return _choose(x % outputs, filtering.result(own))

    def stage(shape: Sequence[Expr | int], compute: object, kind: WinogradStage) -> Tensor:
        return te.compute(shape, compute, name=f"winograd_{kind}", attrs={ATTRIBUTE: str(kind)})

    whole = (rows * outputs + TAPS - 1, columns * outputs + TAPS - 1)
    summed = te.reduce_axis((0, channels), name="c")
    pad = te.compute((batch, *whole, channels), padded, name="pad")
    half = stage((batch, rows, len(taps), whole[1], channels), by_columns, WinogradStage.COLUMNS)
    full = stage((len(taps), len(taps), batch, rows, columns, channels), by_rows, WinogradStage.DATA)
    product = stage((len(taps), len(taps), batch, rows, columns, filters), multiplied, WinogradStage.PRODUCT)
    parts = stage((batch, rows, outputs, len(taps), columns, filters), back_by_columns, WinogradStage.PARTS)
    return stage((batch, *size, filters), back_by_rows, WinogradStage.RESULT)


def _fits(call: Call, weights: tuple[int, ...]) -> bool:
    """Tell whether a convolution is a dense 3x3 one of whole float32 vectors, with stride 1."""
    attrs = call.attrs
    ones = [int(step) for step in (*attrs.strides, *attrs.dilation, attrs.groups)]
    return (
        str(attrs.data_layout) == "NHWC"
        and str(attrs.kernel_layout) == "HWIO"
        and weights[:2] == (TAPS, TAPS)
        and {*ones} == {1}
        and not (weights[2] % _VECTOR or weights[3] % _VECTOR)
        and {dtype_of(arg) for arg in call.args} == {"float32"}
        and str(attrs.out_dtype or "float32") == "float32"
    )


def _choose(index: Expr, values: Sequence[Expr]) -> Expr:
    """Return the value of that index. If its loop is unrolled, only this value remains."""
    *others, found = values
    for position, value in reversed([*enumerate(others)]):
        found = Select(index == position, value, found)
    return found


WINOGRAD: dict[str, Rule] = {"relax.nn.conv2d": convolve}
