"""Inlines functions: those of a model, and operators that the ONNX specification defines by others.

The latter only where TVM 0.27 lacks the operator or gets it wrong: its own are faster than a formula in small steps.
"""

from __future__ import annotations

import logging

from onnx import ModelProto, defs, helper, inliner, shape_inference

from fleet.models.onnx_rewrites.graph import all_nodes, opset_of

logger = logging.getLogger(__name__)

EXPANDED = frozenset(
    {
        "AffineGrid",
        "Attention",
        "BlackmanWindow",
        "CausalConvWithState",
        "Celu",
        "CenterCropPad",
        "HammingWindow",
        "HannWindow",
        "LinearAttention",
        "NegativeLogLikelihoodLoss",
        "RMSNormalization",
        "RotaryEmbedding",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
        "Swish",
    }
)
"""Operators that the specification defines by others, and that TVM 0.27 lacks or gets wrong."""

_MAX_DEPTH = 4
"""Functions are defined by functions: SwiGLU by Swish."""


def with_functions_inlined(proto: ModelProto) -> ModelProto:
    """Return the model without functions, as far as the inliner supports them."""
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    for _ in range(_MAX_DEPTH):
        wanted = {node.op_type for node in all_nodes(proto.graph) if not node.domain} & EXPANDED
        if not wanted:
            break
        _write_defaults(proto, wanted)
        named = [("", name) for name in sorted(wanted)]
        try:
            proto = inliner.inline_selected_functions(_typed(proto), named, inline_schema_functions=True)
        except Exception as error:  # noqa: BLE001 - it raises whatever its C++ raises; TVM will name the operator
            logger.debug("not inlined", extra={"operators": sorted(wanted), "reason": str(error)})
            break
    del proto.graph.value_info[:]
    return proto


def _write_defaults(proto: ModelProto, names: set[str]) -> None:
    """Write out default attributes, which the inliner ignores."""
    for node in all_nodes(proto.graph):
        if node.op_type in names and not node.domain:
            schema = defs.get_schema(node.op_type, opset_of(proto), "")
            given = {attribute.name for attribute in node.attribute}
            missing = [item.default_value for name, item in schema.attributes.items() if name not in given]
            node.attribute.extend(value for value in missing if value.name)


def _typed(proto: ModelProto) -> ModelProto:
    """Return a model with explicit types of all values, including weights, which the inliner requires."""
    typed = shape_inference.infer_shapes(proto)
    known = {value.name for value in (*typed.graph.input, *typed.graph.value_info)}
    for tensor in typed.graph.initializer:
        if tensor.name not in known:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            typed.graph.value_info.append(value)
    return typed
