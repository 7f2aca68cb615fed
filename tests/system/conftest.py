"""Fixtures of the system tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper


@pytest.fixture(autouse=True)
def stock_logging_as_found() -> Iterator[None]:
    """Undo what stock `tune_tir` does to its logger: pytest captures one that no longer propagates by handlers without
    a name, and over these the next `tune_tir` trips.
    """
    tvm_logger = logging.getLogger("tvm.s_tir.meta_schedule")
    handlers, propagates = list(tvm_logger.handlers), tvm_logger.propagate
    yield
    for handler in tvm_logger.handlers:
        if isinstance(handler, logging.FileHandler) and handler.baseFilename.endswith(".log"):
            handler.close()
    tvm_logger.handlers[:], tvm_logger.propagate = handlers, propagates


@pytest.fixture(scope="session")
def two_products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small matrix products of different shapes, one with a rectifier behind it."""
    names = {"a": [48, 64], "b": [64, 80], "c": [80, 32]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in names.items()]
    output = helper.make_tensor_value_info("e", TensorProto.FLOAT, [48, 32])
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["ab"]),
        helper.make_node("Relu", ["ab"], ["d"]),
        helper.make_node("MatMul", ["d", "c"], ["e"]),
    ]
    proto = helper.make_model(
        helper.make_graph(nodes, "two_products", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)]
    )
    proto.ir_version = 8
    path = tmp_path_factory.mktemp("model") / "two_products.onnx"
    onnx.save(proto, path)
    return path
