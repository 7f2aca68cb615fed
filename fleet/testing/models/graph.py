"""Builds ONNX graphs as exporters write them: a method per layer, names by number, every shape known.

A layer takes names of tensors and returns the name of its result. Weights are drawn small and normal here;
`fleet.models.random_weights` gives them their size, when the model is finished.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper, shape_inference

OPSET = 17
_IR_VERSION = 8
_EPSILON = 1e-5

Attribute = int | float | str | Sequence[int] | Sequence[float]


class GraphBuilder:
    """A graph that grows by one layer per call."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._inputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._rng = np.random.default_rng(0)

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Declare an input of the model."""
        self._inputs[name] = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), tuple(shape))
        return name

    def constant(self, values: NDArray[np.generic] | Sequence[int] | Sequence[float] | float, dtype: str = "") -> str:
        """Store an array."""
        array = np.asarray(values, dtype or None)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        """Store a weight that `random_weights` will redraw."""
        return self.constant(self._rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02))

    def node(self, op_type: str, *inputs: str, **attributes: Attribute) -> str:
        """Add a node with one result, and return the result's name."""
        name = f"{op_type.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def conv(
        self,
        x: str,
        channels: int,
        filters: int,
        kernel: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        padding: int | None = None,
    ) -> str:
        """Add a convolution with bias, padded to keep the size unless told otherwise."""
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        pads = [height // 2, width // 2] * 2 if padding is None else [padding] * 4
        weights = self.weight(filters, channels // groups, height, width), self.weight(filters)
        window = {"kernel_shape": [height, width], "strides": [stride] * 2, "pads": pads}
        return self.node("Conv", x, *weights, group=groups, **window)

    def batch_norm(self, x: str, channels: int) -> str:
        """Add a batch normalisation in inference mode."""
        scale, offset, mean = (self.weight(channels) for _ in range(3))
        variance = self.constant(np.ones(channels, np.float32))
        return self.node("BatchNormalization", x, scale, offset, mean, variance, epsilon=_EPSILON)

    def relu(self, x: str) -> str:
        """Add a rectifier."""
        return self.node("Relu", x)

    def relu6(self, x: str) -> str:
        """Add a rectifier that ends at 6."""
        return self.node("Clip", x, self.constant(0.0, "float32"), self.constant(6.0, "float32"))

    def silu(self, x: str) -> str:
        """Add x times its sigmoid."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """Add the Gaussian error linear unit, written out as exporters do below opset 20."""
        erf = self.node("Erf", self.node("Div", x, self.constant(np.sqrt(2.0), "float32")))
        shifted = self.node("Add", erf, self.constant(1.0, "float32"))
        return self.node("Mul", self.node("Mul", x, shifted), self.constant(0.5, "float32"))

    def gelu_tanh(self, x: str) -> str:
        """Add GELU in its tanh approximation, as in GPT-2."""
        cube = self.node("Mul", self.node("Pow", x, self.constant(3.0, "float32")), self.constant(0.044715, "float32"))
        inner = self.node("Mul", self.add(x, cube), self.constant(np.sqrt(2 / np.pi), "float32"))
        shifted = self.node("Add", self.node("Tanh", inner), self.constant(1.0, "float32"))
        return self.node("Mul", self.node("Mul", x, self.constant(0.5, "float32")), shifted)

    def add(self, x: str, y: str) -> str:
        """Add two tensors."""
        return self.node("Add", x, y)

    def max_pool(self, x: str, kernel: int, *, stride: int, padding: int = 0) -> str:
        """Add a maximum over windows."""
        return self.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def classifier(self, x: str, channels: int, classes: int = 1000) -> str:
        """Add the mean over the image and a product with one row per class."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        return self.gemm(flat, channels, classes)

    def gemm(self, x: str, features: int, results: int) -> str:
        """Add a layer on rows [n, features], its weight stored as PyTorch does: [results, features]."""
        return self.node("Gemm", x, self.weight(results, features), self.weight(results), transB=1)

    def linear(self, x: str, features: int, results: int, *, bias: bool = True) -> str:
        """Add a product over the last of any number of dimensions."""
        product = self.node("MatMul", x, self.weight(features, results))
        return self.node("Add", self.weight(results), product) if bias else product

    def layer_norm(self, x: str, features: int) -> str:
        """Add a normalisation over the last dimension."""
        return self.node(
            "LayerNormalization", x, self.weight(features), self.weight(features), axis=-1, epsilon=_EPSILON
        )

    def rms_norm(self, x: str, features: int) -> str:
        """Add x over the root of its mean square, written out as exporters do below opset 23."""
        square = self.node("Pow", x, self.constant(2.0, "float32"))
        mean = self.node("Add", self.node("ReduceMean", square, axes=[-1]), self.constant(_EPSILON, "float32"))
        inverse = self.node("Div", self.constant(1.0, "float32"), self.node("Sqrt", mean))
        return self.node("Mul", self.weight(features), self.node("Mul", x, inverse))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Give x another shape."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def transpose(self, x: str, *order: int) -> str:
        """Reorder dimensions."""
        return self.node("Transpose", x, perm=order)

    def attention(self, q: str, k: str, v: str, *, heads: int, width: int, mask: str | None = None) -> str:
        """Add attention on three tensors [heads, width] per token, as q [1, h, t, w], k [1, h, w, t], v [1, h, t, w].

        Returns:
            Tokens with all heads side by side, [1, t, h * w].
        """
        scores = self.node("Div", self.node("MatMul", q, k), self.constant(np.sqrt(width), "float32"))
        scores = self.node("Add", scores, mask) if mask else scores
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        return self.reshape(self.transpose(mixed, 0, 2, 1, 3), (1, -1, heads * width))

    def heads(self, x: str, heads: int, width: int, *, transposed: bool = False) -> str:
        """Split tokens [1, t, h * w] into heads [1, h, t, w], or [1, h, w, t]."""
        split = self.reshape(x, (1, -1, heads, width))
        return self.transpose(split, *((0, 2, 3, 1) if transposed else (0, 2, 1, 3)))

    def finish(self, *outputs: str) -> ModelProto:
        """Return the checked model, all shapes inferred."""
        inputs = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in self._inputs.items()]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self._nodes, self.title, inputs, results, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        checker.check_model(inferred)
        return inferred
