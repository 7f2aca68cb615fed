"""Rewrites of an ONNX model before TVM's frontend imports it, in this order.

Functions that the model defines are inlined. Operators that TVM lacks are replaced by their definition in the ONNX
specification, if that consists of other operators. Then constants are computed, so that rules see axes and shapes; then
rules replace operators; and constants are computed again, for the rules leave transposed weights behind.
"""

from __future__ import annotations

from onnx import ModelProto, helper

from fleet.models.onnx_rewrites import operators, resizing, training
from fleet.models.onnx_rewrites.folding import fold_constants, use_tensor_constants
from fleet.models.onnx_rewrites.functions import with_functions_inlined
from fleet.models.onnx_rewrites.graph import rewrite
from fleet.models.onnx_rewrites.plain_names import use_plain_names
from fleet.models.onnx_rewrites.recurrent import UNROLLING
from fleet.models.onnx_rewrites.recurrent_joined import DOMAIN, JOINING

_RULES = {**operators.RULES, **resizing.RULES, **training.RULES}


def prepared(proto: ModelProto, *, unrolls: bool = False) -> ModelProto:
    """Return an equivalent model with as few operators as possible that TVM lacks.

    Args:
        unrolls: unroll the steps of recurrent layers; else each layer becomes one operator of our own.

    Raises:
        ImportFailed: the model contradicts itself, or has an operator that cannot be written down: a recurrent layer of
            unknown length, a BatchNormalization in training.
    """
    proto = with_functions_inlined(proto)
    use_plain_names(proto)
    use_tensor_constants(proto)
    fold_constants(proto)
    if rewrite(proto, {**_RULES, **(UNROLLING if unrolls else JOINING)}):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        fold_constants(proto)
    return proto
