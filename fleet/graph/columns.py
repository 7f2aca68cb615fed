"""Pads the columns of matrix products with weights to whole vectors, as `fleet.graph.groups` does for convolutions.

A vocabulary of 1,000 words is 62 vectors and a half: with vectors of 8 the last product of a small Llama took nearly
twice as long as with 63 of 16.
"""

from __future__ import annotations

import numpy as np
from tvm import te, topi
from tvm.relax import Call, Expr
from tvm.te import Tensor

from fleet.graph.constants import array_of, constant, dtype_of, shape_of
from fleet.graph.groups import FUSES_WITH_ELEMENTWISE, whole_vectors
from fleet.graph.rebuilding import Rebuild, Rule


def pad_columns(rebuild: Rebuild, call: Call) -> Expr | None:
    """Replace a product of floats [..., n] and weights [n, columns] by one with whole vectors."""
    shape, weights = shape_of(call.args[0]), array_of(rebuild, call.args[1])
    if shape is None or len(shape) < _MATRIX or weights is None or weights.ndim != _MATRIX:
        return None
    padded = whole_vectors(weights.shape[1])
    if padded is None or dtype_of(call.args[0]) != "float32" or weights.dtype != np.float32:
        return None
    added = padded - weights.shape[1]

    def multiply(data: Tensor, kernel: Tensor) -> Tensor:
        product = topi.nn.matmul(data, kernel)
        return te.compute((*data.shape[:-1], kernel.shape[1] - added), lambda *at: product(*at), name="unpad")

    return rebuild.builder.call_te(
        multiply,
        call.args[0],
        constant(np.pad(weights, [(0, 0), (0, added)])),
        primfunc_name_hint="matmul",
        primfunc_attrs={"op_pattern": FUSES_WITH_ELEMENTWISE},
    )


_MATRIX = 2

COLUMNS: dict[str, Rule] = {"relax.matmul": pad_columns}
