"""Converts a model to int8 as most users do: ONNX Runtime's static quantisation, in the QDQ format."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto

from fleet.errors import ImportFailed

_EXAMPLES = 4


def quantized(model: ModelProto, title: str) -> ModelProto:
    """Return the model with int8 weights per channel, and activations in the ranges that a few random images reach.

    Raises:
        ImportFailed: ONNX Runtime is not installed.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise ImportFailed("models in int8 are made by ONNX Runtime: pip install 'tvm-fleet[compare]'") from error
    with tempfile.TemporaryDirectory(prefix="fleet-int8-") as directory:
        path = Path(directory) / "model.onnx"
        quantization.quantize_static(
            model,
            path,
            _Examples(model),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            activation_type=quantization.QuantType.QInt8,
        )
        made = onnx.load(str(path))
    made.graph.name = title
    return made


class _Examples:
    """Random images, one after the other, as the quantiser asks for them."""

    def __init__(self, model: ModelProto) -> None:
        (value,) = model.graph.input
        self._name = value.name
        self._shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        self._left = _EXAMPLES
        self._rng = np.random.default_rng(0)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the next image by the input's name, None after the last."""
        self._left -= 1
        return None if self._left < 0 else {self._name: self._rng.standard_normal(self._shape, dtype=np.float32)}
