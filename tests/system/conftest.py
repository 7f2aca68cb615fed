"""Fixtures of the system tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fleet.export.service import Exported, ExportOptions, export
from fleet.export.targets import target_of


@pytest.fixture(autouse=True)
def stock_logging_as_found() -> Iterator[None]:
    """Undo the changes that stock `tune_tir` makes to its logger. pytest attaches handlers without a name to a logger
    that no longer propagates, and the next `tune_tir` fails on them.
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


@pytest.fixture(scope="session")
def two_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution with weights; its means are one output and its peaks another."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {"image": [1, 3, 8, 8], "gain": [1], "means": [1, 4, 1, 1], "peaks": [1, 4, 1, 1]}.items()
    }
    nodes = [
        helper.make_node("Conv", ["image", "weights"], ["c"]),
        helper.make_node("Mul", ["c", "gain"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["means"]),
        helper.make_node("GlobalMaxPool", ["d"], ["peaks"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_heads",
        [values["image"], values["gain"]],
        [values["means"], values["peaks"]],
        [numpy_helper.from_array(weights, "weights")],
    )
    path = tmp_path_factory.mktemp("model") / "two_heads.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def exporting(two_heads: Path) -> Callable[..., Exported]:
    """Exports the model with two heads to a file of a given name, by default without records."""

    def make(name: str, **more: object) -> Exported:
        values = {"target": target_of("host"), "library": str(two_heads.with_name("none.sqlite")), **more}
        wanted = ExportOptions(model=two_heads, output=two_heads.with_name(name), **values)  # type: ignore[arg-type]
        return asyncio.run(export(wanted))

    return make


@pytest.fixture(scope="session")
def exported(exporting: Callable[..., Exported]) -> Exported:
    """The model with two heads, for this machine."""
    return exporting("two_heads.fleet")
