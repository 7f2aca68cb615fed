"""Arguments of functions, as agents get them, and their results, as arrays."""

from __future__ import annotations

import numpy as np

from fleet.v1 import tensor_pb2


def spec(kind: str, *shape: int, dtype: str = "float32") -> tensor_pb2.Argument:
    """Return a tensor that the agent makes: to "fill", or an "output"."""
    return tensor_pb2.Argument(**{kind: tensor_pb2.TensorSpec(shape=shape, dtype=dtype)})  # type: ignore[arg-type]


def tensor(array: np.ndarray) -> tensor_pb2.Argument:
    """Return an array as an argument."""
    shape = tensor_pb2.TensorSpec(shape=array.shape, dtype=str(array.dtype))
    return tensor_pb2.Argument(tensor=tensor_pb2.Tensor(spec=shape, content=array.tobytes()))


def array_of(message: tensor_pb2.Tensor) -> np.ndarray:
    """Return a tensor of an answer as an array."""
    return np.frombuffer(message.content, message.spec.dtype).reshape(tuple(message.spec.shape))
