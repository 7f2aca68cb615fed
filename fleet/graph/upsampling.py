"""Transposed convolutions as convolutions: one per phase, and all phases share one set of channels.

With stride s, the outputs at s * q + a read the inputs q, q - 1, ... with the weights a, a + s, ... So a convolution
with a kernel of ceil(k / s), with the s * s phases of the real output channels as its own, computes them all, and each
phase has to be put in its place then (W. Shi et al., "Is the deconvolution layer the same as a convolutional layer?").
TVM's own program inserts zeros instead, and multiplies by them.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te
from tvm.relax import Call, Expr
from tvm.te import Tensor
from tvm.tirx import Var

from fleet.graph.constants import Array, array_of, constant, shape_of
from fleet.graph.rebuilding import Rebuild, Rule
from fleet.graph.transposes import transposed, transposed_to


def convolve_phases(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute a transposed convolution of NCHW by phases, channels last."""
    attrs, weights = call.attrs, array_of(rebuild, call.args[1])
    shape, result = shape_of(call.args[0]), shape_of(rebuild.builder.normalize(call))
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if weights is None or shape is None or result is None or layouts != ("NCHW", "IOHW", "NCHW"):
        return None
    if int(attrs.groups) != 1 or [int(size) for size in attrs.dilation] != [1, 1]:
        return None
    strides, begin = [int(size) for size in attrs.strides], [int(size) for size in attrs.padding[:2]]
    phased = phase_weights(weights, strides)
    taps = phased.shape[:2]
    steps = [size + tap - 1 for size, tap in zip(shape[2:], taps, strict=True)]
    end = [first + size for first, size in zip(begin, result[2:], strict=True)]
    if any(last > step * stride for last, step, stride in zip(end, steps, strides, strict=True)):
        return None  # the output padding reaches beyond the last phase
    data = transposed_to(rebuild, call.args[0], "NCHW", "NHWC")
    padding = [taps[0] - 1, taps[1] - 1] * 2
    convolved = rebuild.emit(
        relax.op.nn.conv2d(data, constant(phased), padding=padding, data_layout="NHWC", kernel_layout="HWIO")
    )
    placed = _placed(rebuild, convolved, (result[0], *result[2:], result[1]), strides, begin)
    return transposed(placed, [0, 3, 1, 2])


def _placed(rebuild: Rebuild, phases: Expr, shape: tuple[int, ...], strides: list[int], begin: list[int]) -> Expr:
    """Rearrange phases, which are blocks of channels, to pixels, channels last.

    One program with channels contiguous in memory. It replaces two reshapes and a transpose, with indices that no
    compiler vectorizes once a concatenation shifts them.
    """
    height, width = strides
    channels = shape[-1]

    def place(source: Tensor) -> Tensor:
        def read(n: Var, y: Var, x: Var, c: Var) -> Expr:
            y, x = y + begin[0], x + begin[1]
            return source[n, y // height, x // width, (y % height * width + x % width) * channels + c]

        return te.compute(shape, read, name="depth_to_space")

    return rebuild.bind(rebuild.builder.call_te(place, phases, primfunc_name_hint="depth_to_space"))


def phase_weights(weights: Array, strides: list[int]) -> Array:
    """Return weights [inputs, outputs, height, width] rearranged by phase.

    Returns:
        [ceil(height / stride), ceil(width / stride), inputs, phases * outputs], zero where a phase has no weight.
    """
    inputs, outputs, *kernel = weights.shape
    taps = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    grown = [(0, tap * stride - size) for tap, stride, size in zip(taps, strides, kernel, strict=True)]
    full = np.pad(weights, [(0, 0), (0, 0), *grown])
    split = full.reshape(inputs, outputs, taps[0], strides[0], taps[1], strides[1])[:, :, ::-1, :, ::-1, :]
    return split.transpose(2, 4, 0, 3, 5, 1).reshape(*taps, inputs, -1)


UPSAMPLING: dict[str, Rule] = {"relax.nn.conv2d_transpose": convolve_phases}
