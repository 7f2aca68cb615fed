"""Operators of Relax in fragments: arithmetic on tensors, without calls of programs or packages."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONVOLUTIONS = frozenset(f"nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose"))
_PRODUCTS = frozenset({"matmul", "einsum", "nn.attention", "nn.attention_bias"})
POOLS = frozenset(f"nn.{kind}_pool{n}d" for n in (1, 2, 3) for kind in ("max", "avg", "adaptive_avg"))
NORMS = frozenset(f"nn.{kind}_norm" for kind in ("layer", "group", "instance", "rms"))
STATISTICS = frozenset({"max", "mean", "min", "prod", "std", "sum", "variance"})
SOFTMAX = frozenset({"nn.softmax", "nn.log_softmax"})

ANCHORS = CONVOLUTIONS | _PRODUCTS | POOLS | NORMS | STATISTICS | {"argmax", "argmin"} | SOFTMAX
"""Operators that a fragment is made around."""

BORDERS = frozenset({"quantize"})
"""Operators that no fragment reaches back beyond: layers of a quantized model pass integers on."""

ELEMENTWISE = _words(
    "abs acos acosh add asin asinh astype atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clip cos"
    " cosh divide equal erf exp floor floor_divide floor_mod greater greater_equal isfinite isinf isnan left_shift less"
    " less_equal log log_add_exp logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative"
    " not_equal power right_shift round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh trunc where quantize"
    " dequantize nn.batch_norm nn.dropout nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu"
    " nn.softplus"
)
_MOVING = _words(
    "arange broadcast_to concat expand_dims flatten flip full gather_elements gather_nd image.resize2d layout_transform"
    " nn.batch_flatten nn.pad nn.pixel_shuffle ones permute_dims repeat reshape shape_of shape_to_tensor split squeeze"
    " stack strided_slice take tile tril triu zeros cumsum"
)

OPERATORS = ANCHORS | ELEMENTWISE | _MOVING
"""Names without "relax."."""

ATTRIBUTES = {
    "matmul": "relax.attrs.MatmulAttrs",
    "argmax": "relax.attrs.ArgmaxArgminAttrs",
    "argmin": "relax.attrs.ArgmaxArgminAttrs",
    **dict.fromkeys(STATISTICS, "relax.attrs.StatisticalAttrs"),
}
"""Types of attributes, where TVM registers none with the operator."""
