"""Operator groups common to two engines, each of which cuts a model into operators of its own."""

from __future__ import annotations

import enum
import re


class OperatorGroup(enum.StrEnum):
    """Group of operators, common to two engines."""

    CONVOLUTION = "convolutions"
    PRODUCT = "matrix products"
    REDUCTION = "pooling, norms, softmax"
    OTHER = "element-wise and moves"


def group_of(operator: str) -> OperatorGroup:
    """Return the group of an operator by its name: TVM's, one for people, or ONNX Runtime's."""
    for group, pattern in _GROUPS.items():
        if pattern.search(operator):
            return group
    return OperatorGroup.OTHER


_GROUPS = {
    OperatorGroup.CONVOLUTION: re.compile(r"conv(?!ert)", re.IGNORECASE),
    OperatorGroup.PRODUCT: re.compile(r"matmul|dense|gemm|attention", re.IGNORECASE),
    OperatorGroup.REDUCTION: re.compile(
        r"pool|softmax|norm|reduce|^(?:fused_)?(?:arg)?(?:max|min|mean|sum|prod|std|variance)(?:\d|_|\b)", re.IGNORECASE
    ),
}
