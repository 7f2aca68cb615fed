"""Operators that TVM's ONNX frontend lacks or converts wrongly, in terms of supported ones.

Found by importing the examples of the ONNX operator specification, as tests/unit/test_import_table.py does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, helper

from fleet.errors import ImportFailed
from fleet.models.onnx_rewrites.graph import Replacement, Rule, attributes_of, called, number, present


def _sum(node: NodeProto, write: Replacement) -> bool:
    """Add the inputs one by one, which moves less memory than TVM's reduction over a stack."""
    _added(node, write, output=node.output[0])
    return True


def _mean(node: NodeProto, write: Replacement) -> bool:
    count = write.constant(np.array(len(node.input), write.values.dtype(node.input[0]) or np.dtype("float32")))
    write.op("Div", _added(node, write), count, output=node.output[0])
    return True


def _added(node: NodeProto, write: Replacement, output: str = "") -> str:
    names: list[str] = list(node.input)
    first, *others = names
    if not others:
        return write.op("Identity", first, output=output)
    for index, other in enumerate(others, 1):
        first = write.op("Add", first, other, output=output if index == len(others) else "")
    return first


def _clip(node: NodeProto, write: Replacement) -> bool:
    """Clip with explicit bounds: TVM checks at run time whether a bound is NaN, which prevents fusion."""
    if any(attribute.name in ("min", "max") for attribute in node.attribute):
        return False  # as before version 11: rare
    name, bounds = node.input[0], {"Max": present(node.input, 1), "Min": present(node.input, 2)}
    values = {op_type: write.values.constants.get(bound) for op_type, bound in bounds.items() if bound}
    if not values or any(value is None or np.isnan(value).any() for value in values.values()):
        return False
    for op_type, value in values.items():
        is_relu = op_type == "Max" and value is not None and value.dtype.kind == "f" and not value.any()
        output = node.output[0] if op_type == list(values)[-1] else ""
        name = (
            write.op("Relu", name, output=output)
            if is_relu
            else write.op(op_type, name, bounds[op_type], output=output)
        )
    return True


def _pow(node: NodeProto, write: Replacement) -> bool:
    """Cast the operands: TVM requires base and exponent of one floating type, except for squares. The result has
    the base's type.
    """
    base, exponent = map(write.values.dtype, node.input)
    if base is not None and base.kind in "iu" and not _is_square(node, write):
        wide = [write.op("Cast", name, to=_DOUBLE) for name in node.input]
        to = helper.np_dtype_to_tensor_dtype(base)
        write.op("Cast", write.op("Pow", *wide), to=to, output=node.output[0])
        return True
    if base is None or base == exponent:
        return False
    write.op("Pow", node.input[0], write.op("CastLike", node.input[1], node.input[0]), output=node.output[0])
    return True


def _is_square(node: NodeProto, write: Replacement) -> bool:
    shape, exponent = write.values.shape(node.input[0]), write.values.constants.get(node.input[1])
    if shape is None or exponent is None or exponent.size != 1:
        return False
    return exponent.ndim <= len(shape) and bool(np.all(exponent == 2))


def _is_inf(node: NodeProto, write: Replacement) -> bool:
    """Select the requested infinities: TVM reports both."""
    wants = {sign: number(node, name, 1) for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))}
    if sum(wants.values()) != 1:
        return False
    sign = next(sign for sign, is_wanted in wants.items() if is_wanted)
    infinity = write.constant(np.array(sign * np.inf, write.values.dtype(node.input[0]) or np.dtype("float32")))
    write.op("Equal", node.input[0], infinity, output=node.output[0])
    return True


def _expand(node: NodeProto, write: Replacement) -> bool:
    """Broadcast the wanted shape with the input's: TVM uses it as the result's shape, even where it has a 1."""
    shape, wanted = write.values.shape(node.input[0]), write.values.constants.get(node.input[1])
    if shape is None or wanted is None:
        return False
    result = np.broadcast_shapes(shape, tuple(wanted.tolist()))
    if result == tuple(wanted.tolist()):
        return False
    write.op("Expand", node.input[0], write.integers(*result), output=node.output[0])
    return True


def _concat(node: NodeProto, write: Replacement) -> bool:
    """Drop empty inputs, for which TVM generates no program."""
    kept = [name for name in node.input if 0 not in (write.values.shape(name) or ())]
    if not 0 < len(kept) < len(node.input):
        return False
    write.op("Concat", *kept, axis=number(node, "axis"), output=node.output[0])
    return True


def _split(node: NodeProto, write: Replacement) -> bool:
    """Split without empty outputs, which TVM does not support."""
    given, sizes = node.input[0], write.values.constants.get(present(node.input, 1))
    shape, dtype = write.values.shape(given), write.values.dtype(given)
    if sizes is None or sizes.all() or shape is None or dtype is None:
        return False
    axis = number(node, "axis") % len(shape)
    ends = np.cumsum(sizes).tolist()
    for output, begin, end in zip(node.output, [0, *ends], ends, strict=False):
        if begin == end:
            empty = np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), dtype)
            write.op("Identity", write.constant(empty), output=output)
        elif output:
            write.op("Slice", given, *map(write.integers, (begin, end, axis)), output=output)
    return True


def _max_pool(node: NodeProto, write: Replacement) -> bool:
    """Pad explicitly at the beginning: for SAME_LOWER, TVM pads at the end and loses a row."""
    shape, named = write.values.shape(node.input[0]), attributes_of(node)
    if named.get("auto_pad") != b"SAME_LOWER" or shape is None or present(node.output, 1):
        return False
    window, sizes = _integers(named, "kernel_shape", []), shape[_SPATIAL:]
    strides, dilations = (_integers(named, name, [1] * len(sizes)) for name in ("strides", "dilations"))
    pads = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, width, stride, dilation in zip(sizes, window, strides, dilations, strict=True)
    ]
    before = [pad - pad // 2 for pad in pads]
    _padded(node, write, pads=[*before, *(pad // 2 for pad in pads)])
    return True


def _conv_transpose(node: NodeProto, write: Replacement) -> bool:
    """Crop or pad the result to `output_shape`, which TVM ignores."""
    shape, weights = (write.values.shape(name) for name in node.input[:2])
    named = attributes_of(node)
    wanted = _integers(named, "output_shape", [])
    if not wanted or shape is None or weights is None:
        return False
    sizes, window = shape[_SPATIAL:], weights[_SPATIAL:]
    strides, dilations = (_integers(named, name, [1] * len(sizes)) for name in ("strides", "dilations"))
    added = _integers(named, "output_padding", [0] * len(sizes))
    whole = [
        (size - 1) * stride + extra + (width - 1) * dilation + 1
        for size, width, stride, dilation, extra in zip(sizes, window, strides, dilations, added, strict=True)
    ]
    missing = [size - full for full, size in zip(whole, wanted[-len(sizes) :], strict=True)]
    cut = [max(0, -size) for size in missing]
    less, more = [each // 2 for each in cut], [each - each // 2 for each in cut]
    pads = [*less, *more] if named.get("auto_pad") == b"SAME_UPPER" else [*more, *less]
    grown = [extra + max(0, size) for extra, size in zip(added, missing, strict=True)]
    _padded(node, write, pads=pads, output_padding=grown)
    return True


def _padded(node: NodeProto, write: Replacement, **padding: list[int]) -> None:
    """Rewrite a node with explicit padding."""
    write.op(node.op_type, *node.input, output=node.output[0])
    said = {"auto_pad", "output_shape", *padding}
    kept = [attribute for attribute in node.attribute if attribute.name not in said]
    write.nodes[-1].attribute.extend([*kept, *(helper.make_attribute(*each) for each in padding.items())])


def _integers(named: dict[str, object], name: str, default: list[int]) -> list[int]:
    value = named.get(name, default)
    return [int(each) for each in value] if isinstance(value, Sequence) else default


def _lp_normalization(node: NodeProto, write: Replacement) -> bool:
    """Divide by the norm; for norm zero by the smallest positive number, so that zeros stay zeros."""
    dtype = write.values.dtype(node.input[0]) or np.dtype("float32")
    reduce = "ReduceL1" if number(node, "p", 2) == 1 else "ReduceL2"
    norm = write.reduce(reduce, node.input[0], number(node, "axis", -1))
    smallest = write.constant(np.array(np.finfo(dtype.name).tiny, dtype))
    write.op("Div", node.input[0], write.op("Max", norm, smallest), output=node.output[0])
    return True


def _space_to_depth(node: NodeProto, write: Replacement) -> bool:
    """Transpose to ONNX's order of the new channels; TVM supports only another one."""
    named, shape = attributes_of(node), write.values.shape(node.input[0])
    if named.get("mode") != b"CRD" or shape is None:
        return False
    batch, channels, height, width = shape
    block = number(node, "blocksize")
    rows, columns = height // block, width // block
    split = write.op("Reshape", node.input[0], write.integers(batch, channels, rows, block, columns, block))
    moved = write.op("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    sizes = write.integers(batch, channels * block * block, rows, columns)
    write.op("Reshape", moved, sizes, output=node.output[0])
    return True


def _reverse_sequence(node: NodeProto, write: Replacement) -> bool:
    """Gather step `length - 1 - t` if t is within the sequence, else t."""
    given, lengths = node.input
    shape = write.values.shape(given)
    if shape is None:
        return False
    time_axis, batch_axis = number(node, "time_axis", 0), number(node, "batch_axis", 1)
    along_time, along_batch = (
        [size if axis == own else 1 for axis, size in enumerate(shape)] for own in (time_axis, batch_axis)
    )
    steps = write.constant(np.arange(shape[time_axis], dtype="int64").reshape(along_time))
    ends = write.op("Reshape", lengths, write.integers(*along_batch))
    mirrored = write.op("Sub", write.op("Sub", ends, write.constant(np.array(1, "int64"))), steps)
    index = write.op("Where", write.op("Less", steps, ends), mirrored, steps)
    index = write.op("Expand", index, write.integers(*shape))
    write.op("GatherElements", given, index, axis=time_axis, output=node.output[0])
    return True


def _one_hot(node: NodeProto, write: Replacement) -> bool:
    """Cast the result to the type of the values, which TVM ignores."""
    indices, depth, values = node.input
    shape, count = write.values.shape(indices), write.values.constants.get(depth)
    if shape is None or count is None:
        return False
    size = int(count.reshape(-1)[0])
    axis = number(node, "axis", -1) % (len(shape) + 1)
    steps = write.constant(np.arange(size, dtype="int64").reshape(size, *[1] * (len(shape) - axis)))
    at = write.op("Cast", indices, to=_INT64)
    at = write.op("Reshape", at, write.integers(*shape[:axis], 1, *shape[axis:]))
    from_end = write.op("Add", at, write.constant(np.array(size, "int64")))
    is_hot = write.op("Or", write.op("Equal", at, steps), write.op("Equal", from_end, steps))
    off, on = (write.op("Gather", values, write.constant(np.array(place, "int64"))) for place in (0, 1))
    write.op("Where", is_hot, on, off, output=node.output[0])
    return True


def _qlinear_conv(node: NodeProto, write: Replacement) -> bool:
    """Dequantize, convolve and quantize again; the bias has the product of both scales."""
    data, data_scale, data_zero, weight, weight_scale, weight_zero, scale, zero = node.input[:8]
    values = [
        write.op("DequantizeLinear", data, data_scale, data_zero),
        write.op("DequantizeLinear", weight, weight_scale, weight_zero, axis=0),
    ]
    if bias := present(node.input, 8):
        values.append(write.op("Mul", write.op("Cast", bias, to=_FLOAT), write.op("Mul", data_scale, weight_scale)))
    product = _with_attributes_of(node, write, "Conv", values)
    write.op("QuantizeLinear", product, scale, zero, output=node.output[0])
    return True


def _qlinear_matmul(node: NodeProto, write: Replacement) -> bool:
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = node.input
    factors = (
        write.op("DequantizeLinear", left, left_scale, left_zero),
        write.op("DequantizeLinear", right, right_scale, right_zero),
    )
    write.op("QuantizeLinear", write.op("MatMul", *factors), scale, zero, output=node.output[0])
    return True


def _conv_integer(node: NodeProto, write: Replacement) -> bool:
    """Convolve in float32: sums of products of bytes are integers, exact up to 2**24."""
    weight_shape = write.values.shape(node.input[1])
    if weight_shape is None:
        return False
    per_channel = write.integers(-1, *[1] * (len(weight_shape) - 1))
    values = []
    for place in (0, 1):
        value = write.op("Cast", node.input[place], to=_FLOAT)
        if zero := present(node.input, place + 2):
            zero = write.op("Reshape", write.op("Cast", zero, to=_FLOAT), per_channel)
            value = write.op("Sub", value, zero)
        values.append(value)
    write.op("Cast", _with_attributes_of(node, write, "Conv", values), to=_INT32, output=node.output[0])
    return True


def _non_max_suppression(node: NodeProto, write: Replacement) -> bool:
    """Pass all limits explicitly, since TVM's defaults differ, and drop only boxes that overlap by more than the limit.

    Raises:
        ImportFailed: a limit is not constant: TVM would take its default.
    """
    unknown = [name for name in node.input[2:] if name and name not in write.values.constants]
    if unknown:
        raise ImportFailed(f"{called(node)} takes limits that are not constant: {', '.join(unknown)}")
    count, overlap, score = (present(node.input, place) for place in (2, 3, 4))
    least = np.nextafter(write.values.constants.get(overlap, np.array(0)).astype("float32"), np.float32(np.inf))
    inputs = [
        *node.input[:2],
        count or write.integers(0),
        write.constant(np.asarray(least)),
        score or write.constant(np.array(-np.inf, "float32")),
    ]
    write.op(node.op_type, *inputs, output=node.output[0])
    write.nodes[-1].attribute.extend(node.attribute)
    return True


def _roi_align(node: NodeProto, write: Replacement) -> bool:
    """Refuse the mode in which ONNX and TVM differ: the maximum of weighted elements, or of their weighted sums.

    Raises:
        ImportFailed: the mode is "max".
    """
    del write
    if attributes_of(node).get("mode") == b"max":
        raise ImportFailed(f"{called(node)} has mode 'max', which TVM computes differently; only 'avg' is supported")
    return False


def _reduce_bool(node: NodeProto, write: Replacement) -> bool:
    """Reduce bools as integers: TVM has no minimum of bools."""
    if write.values.dtype(node.input[0]) != np.dtype("bool"):
        return False
    reduced = _with_attributes_of(
        node, write, node.op_type, [write.op("Cast", node.input[0], to=_UINT8), *node.input[1:]]
    )
    write.op("Cast", reduced, to=_BOOL, output=node.output[0])
    return True


def _with_attributes_of(node: NodeProto, write: Replacement, op_type: str, inputs: list[str]) -> str:
    made = write.op(op_type, *inputs)
    write.nodes[-1].attribute.extend(node.attribute)
    return made


_FLOAT, _UINT8, _INT32, _INT64, _BOOL, _DOUBLE = 1, 2, 6, 7, 9, 11
"""TensorProto.FLOAT and so on."""

_SPATIAL = 2
"""The first axis behind batch and channels."""

RULES: dict[str, Rule] = {
    "Clip": _clip,
    "Concat": _concat,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "Expand": _expand,
    "IsInf": _is_inf,
    "LpNormalization": _lp_normalization,
    "MaxPool": _max_pool,
    "Mean": _mean,
    "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot,
    "Pow": _pow,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "ReduceMax": _reduce_bool,
    "ReduceMin": _reduce_bool,
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Sum": _sum,
}
