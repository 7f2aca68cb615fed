"""Readable names of workloads: "conv2d 3x3 512->1000 13x13" instead of "fused_conv2d17_add9_relu9".

A name gives the operator, its kernel and stride, its channels, and the size of its input. It is made from fields that
every library stores, so old records have one too, and needs no TVM. It is for people: two workloads may share one.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleet.domain.measuring import TensorSpec

_VECTOR, _VECTORS = 8, 16
"""Channels are padded to a multiple of the first, by less than the second."""

_MOST_NAME = 40
"""Characters of block names in the name of a program."""

_CONVOLUTION = r"(?:depthwise_|winograd_)?conv[123]d(?:_transpose)?"
_PRODUCT = r"batch_matmul|matmul|dense"
_RECURRENT = r"lstm|gru|rnn"
_ANCHOR = (
    r"(?:adaptive_)?(?:avg|max)_pool[123]d|(?:batch|group|instance|layer|rms)_norm|(?:log_)?softmax"
    r"|(?:arg)?(?:max|min)|mean|prod|std|sum|variance"
)
"""Operators that name a fused function if it has none of the above; all others are decoration."""
_OTHER = (
    r"abs|add|astype|broadcast_to|cast|ceil|clip|concat(?:enate)?|cos|cumsum|depth_to_space|divide|dropout|equal|erf|exp(?:and_dims)?"
    r"|flatten|floor|full|gather(?:_elements|_nd)?|gelu|greater|layout_transform|leakyrelu|less|log(?:1p)?|maximum|minimum"
    r"|multiply|negative|not_equal|pad|permute_dims|power|p?relu|reciprocal|repeat|reshape|resize2d|round|r?sqrt"
    r"|scatter_(?:elements|nd)|sigmoid|silu|sin|slice|softplus|split|square|squeeze|stack|strided_slice|subtract|take"
    r"|tanh|tile|topk|transpose|tri[lu]|where"
)
_WORD = re.compile(rf"(?:tir_)?({_CONVOLUTION}|{_PRODUCT}|{_RECURRENT}|{_ANCHOR}|{_OTHER})\d*(?:[_-]|$)(?:\d+$)?")
_BLOCK = re.compile(rf"(?:^|_)({_CONVOLUTION}|{_PRODUCT}|softmax)(?:_|$)", re.IGNORECASE)


class _Layout(NamedTuple):
    """Meaning of the dimensions of a convolution's arrays."""

    channel: int
    spatial: slice
    weight_out: int
    weight_in: int
    kernel: slice


class Description(NamedTuple):
    """Readable name of a workload in two parts."""

    kind: str
    """Operator, kernel, stride and groups: "conv2d 3x3 s2". Workloads of one kind have similar schedules."""

    size: str
    """Channels and sizes: "64->128 56x56"."""


def describe_workload(name: str, args: Sequence[TensorSpec], mod_json: str = "") -> str:
    """Return a readable name; TVM's own if the operator or its shapes are unknown.

    Args:
        name: the function's name in the model.
        args: its arguments in order, outputs marked.
        mod_json: the program, looked into when `name` says nothing.
    """
    described = _describe(name, tuple(args), mod_json)
    return name if described is None else f"{described.kind} {described.size}{_type_suffix(args)}"


def workload_kind(name: str, args: Sequence[TensorSpec], mod_json: str = "") -> str:
    """Return the kind of a workload, with its type unless that is float32; empty if the operator is unknown.

    Args:
        name, args, mod_json: see `describe_workload`.
    """
    described = _describe(name, tuple(args), mod_json)
    return "" if described is None else f"{described.kind}{_type_suffix(args)}"


def _type_suffix(args: Sequence[TensorSpec]) -> str:
    dtype = next((spec.dtype for spec in reversed(args) if spec.is_output), "float32")
    return "" if dtype == "float32" else f" {dtype}"


@functools.lru_cache(maxsize=256)
def _describe(name: str, args: tuple[TensorSpec, ...], mod_json: str) -> Description | None:
    inputs = [spec for spec in args if not spec.is_output]
    outputs = [spec for spec in args if spec.is_output]
    operators = operators_of(name) or _block_operators(mod_json)
    if not operators or not inputs or not outputs:
        return None
    return _describe_anchor(operators, [spec.shape for spec in inputs], outputs[-1].shape)


def _describe_anchor(
    operators: list[str], shapes: list[tuple[int, ...]], output: tuple[int, ...]
) -> Description | None:
    for operator in operators:
        if re.fullmatch(_CONVOLUTION, operator):
            return _convolution(operator, shapes, output)
        if re.fullmatch(_PRODUCT, operator):
            return _product(shapes, output)
        if re.fullmatch(_RECURRENT, operator):
            return _recurrent(operator, shapes)
    anchor = next((operator for operator in operators if re.fullmatch(_ANCHOR, operator)), operators[0])
    if "pool" in anchor and len(output) > 2 and len(shapes[0]) == len(output):
        return _pooling(anchor, shapes[0], output)
    largest = max([*shapes, output], key=math.prod)
    rest = len(operators) - 1
    shown = "+".join(operators) if rest < 2 else f"{anchor}+{rest}"
    return Description(shown, _size(largest[1:] if len(largest) > 2 and largest[0] == 1 else largest))


def operators_of(name: str) -> list[str]:
    """Return the operators that a function of a model was fused from, in order; none for a name of any other form."""
    found, rest = [], name.removeprefix("fused_")
    while rest:
        word = _WORD.match(rest)
        if word is None:
            return []
        found.append(word[1])
        rest = rest[word.end() :]
    return found


def program_name(mod_json: str, args: Sequence[TensorSpec]) -> str:
    """Return a name for an unnamed program: its blocks and the last argument's shape, as in "c_128x128"."""
    blocks = [name for name in _block_names(mod_json) if name != "root"] or ["program"]
    words = re.sub(r"\W", "_", "_".join(blocks), flags=re.ASCII)[:_MOST_NAME]
    return "_".join([words, *([_size(args[-1].shape)] if args else [])])


def _block_operators(mod_json: str) -> list[str]:
    """Return the heavy operators in a program, by TVM's names for its blocks: "conv2d_nchw", "T_matmul_NN"."""
    words = (_BLOCK.search(block) for block in _block_names(mod_json))
    return list(dict.fromkeys(word[1].lower() for word in words if word is not None))


def _block_names(mod_json: str) -> Iterator[str]:
    try:
        nodes = json.loads(mod_json)["nodes"]
        for node in nodes:
            if str(node["type"]).endswith("SBlock"):
                yield str(nodes[node["data"]["name_hint"]]["data"])
    except (ValueError, TypeError, LookupError):
        return


def _recurrent(operator: str, shapes: list[tuple[int, ...]]) -> Description | None:
    """Describe a recurrent layer: steps, batch and columns, from the input products and the state's weights."""
    if len(shapes) < 2 or (len(shapes[0]), len(shapes[1])) != (5, 5):
        return None
    steps, batch, directions, *_ = shapes[0]
    both = " bidirectional" if directions > 1 else ""
    return Description(f"{operator}{both}", _size((steps, batch, shapes[1][2])))


def _convolution(operator: str, shapes: list[tuple[int, ...]], output: tuple[int, ...]) -> Description | None:
    """Infer kernel, stride, groups and channels from the shapes: the first two arrays that fit in some layout."""
    arrays = [shape for shape in shapes if len(shape) == len(output) > 2 and math.prod(shape) > 1]
    pairs = itertools.combinations(arrays, 2)  # a residual may come first
    return next(filter(None, (_convolution_of(operator, data, weight, output) for data, weight in pairs)), None)


def _convolution_of(
    operator: str, data: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...]
) -> Description | None:
    # A transposed convolution is a convolution from its output to its input, with the same weights.
    given, made = (output, data) if operator.endswith("_transpose") else (data, output)
    for layout in _layouts(len(output)):
        channel, spatial = layout.channel, layout.spatial
        groups, rest = divmod(given[channel], weight[layout.weight_in])
        if rest or not groups or not _makes(weight[layout.weight_out], made[channel], groups):
            continue
        stride = max(round(one / other) for one, other in zip(given[spatial], made[spatial], strict=True))
        is_depthwise = groups == given[channel] == made[channel] and groups > 1
        plain = operator.removeprefix("depthwise_").removeprefix("winograd_")
        words = [f"dw{plain}" if is_depthwise else plain]
        words += ["3x3 winograd"] if operator.startswith("winograd_") else [_size(weight[layout.kernel])]
        words += [f"s{stride}"] if stride > 1 else []
        words += [f"g{groups}"] if groups > 1 and not is_depthwise else []
        channels = str(groups) if is_depthwise else f"{data[channel]}->{output[channel]}"
        return Description(" ".join(words), f"{channels} {_size(data[spatial])}")
    return None


def _makes(columns: int, channels: int, groups: int) -> bool:
    """Tell whether this number of columns gives this many channels: groups may be padded to whole vectors."""
    wide, wanted = (count // groups for count in (columns, channels))
    is_padded = columns % groups == 0 and wide % _VECTOR == 0 and wanted < wide < wanted + _VECTORS
    return columns == channels or is_padded


def _layouts(rank: int) -> Iterator[_Layout]:
    """Yield NCHW with OIHW, NHWC with HWIO, NHWC with OHWI, and their counterparts of other ranks."""
    last = rank - 1
    yield _Layout(1, slice(2, rank), 0, 1, slice(2, rank))
    yield _Layout(last, slice(1, last), last, last - 1, slice(0, rank - 2))
    yield _Layout(last, slice(1, last), 0, last, slice(1, last))


def _pooling(operator: str, data: tuple[int, ...], output: tuple[int, ...]) -> Description:
    """Return channels and sizes. Channels come last where the last axis keeps its size and the others do not, or are
    square without it.
    """
    first_keeps, last_keeps = data[1] == output[1], data[-1] == output[-1]
    is_last = last_keeps and (not first_keeps or (data[1:-1] == data[1:2] * (len(data) - 2) and data[-1] != data[-2]))
    channel, spatial = (-1, slice(1, -1)) if is_last else (1, slice(2, None))
    return Description(operator, f"{output[channel]} {_size(data[spatial])}->{_size(output[spatial])}")


def _product(shapes: list[tuple[int, ...]], output: tuple[int, ...]) -> Description | None:
    """Return "rows x inner x columns", preceded by the batch size if there is one."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if len(matrices) < 2 or len(output) < 2:
        return None
    left, right = matrices[:2]
    inner, columns = left[-1], output[-1]
    if sorted(right[-2:]) != sorted((inner, columns)):
        return None
    batch = math.prod(right[:-2])
    rows = math.prod(output[:-1]) // batch
    size = _size((rows, inner, columns))
    return Description("matmul", size) if batch == 1 else Description("batch_matmul", f"{batch} {size}")


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
