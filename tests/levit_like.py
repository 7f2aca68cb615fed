"""A small model like LeViT: attention over activations of hundreds, without norms, with answers around 1600."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TOKENS, _WIDTH, _CLASSES = 16, 64, 2


def write_levit_like(path: Path, *, blocks: int = 3, sharpness: float = 4.0) -> Path:
    """Write the model.

    Args:
        blocks: number of attentions, each on the sum of all outputs before it.
        sharpness: scale of the weights of queries and keys. Softmax turns errors of its large arguments into errors
            of its results, so float32 rounding exceeds the bound by the lengths of sums.
    """
    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "image"

    def weight(name: str, columns: int, scale: float) -> str:
        array = (rng.standard_normal((_WIDTH, columns)) * scale / np.sqrt(_WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    for at in range(blocks):
        for kind, scale in (("q", sharpness), ("k", sharpness), ("v", 1.5)):
            nodes.append(helper.make_node("MatMul", [last, weight(f"w{kind}{at}", _WIDTH, scale)], [f"{kind}{at}"]))
        nodes += [
            helper.make_node("Transpose", [f"k{at}"], [f"t{at}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{at}", f"t{at}"], [f"s{at}"]),
            helper.make_node("Softmax", [f"s{at}"], [f"p{at}"], axis=-1),
            helper.make_node("MatMul", [f"p{at}", f"v{at}"], [f"o{at}"]),
            helper.make_node("HardSwish", [f"o{at}"], [f"h{at}"]),
            helper.make_node("Add", [last, f"h{at}"], [f"x{at}"]),
        ]
        last = f"x{at}"
    nodes += [
        helper.make_node("ReduceMean", [last], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", weight("head", _CLASSES, 300.0)], ["classes"]),
    ]
    graph = helper.make_graph(
        nodes,
        "levit_like",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, _TOKENS, _WIDTH])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, [1, _CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path
