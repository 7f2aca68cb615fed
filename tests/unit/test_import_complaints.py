"""Faults of a model are reported in its user's terms, in one line."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fleet.errors import ImportFailed
from fleet.models.importing.complaint import complaint
from fleet.models.model import import_model, load_model


def test_tvms_notation_is_taken_out() -> None:
    """Constants are not shown as references into hidden metadata; numbers and shapes are plain."""
    said = (
        '  File somewhere\n\nthe LHS x has shape R.shape([8, 63]), while the RHS metadata["ir.GenericConst"][0]\n'
        "# Metadata omitted. Use show_meta=True in script() method to show it. has shape R.shape([64, 32]); "
        "T.int64(63) and T.int64(-1) are not equal"
    )

    assert complaint(ValueError(said)).endswith(
        "the LHS x has shape [8, 63], while the RHS a constant has shape [64, 32]; 63 and -1 are not equal"
    )


_REFUSED = r"^bad: TVM cannot import node 'y' \(MatMul of float32\[8, 63\], float32\[64, 32\]\): .*63 and 64 are not eq"


@pytest.mark.slow
def test_a_shape_mismatch_is_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names both shapes without TVM's text format; stdout stays free for data."""
    weight = numpy_helper.from_array(np.ones((64, 32), np.float32), "b")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 63])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 32])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "b"], ["y"])], "bad", [x], [y], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    onnx.save(proto, tmp_path / "bad.onnx")

    with pytest.raises(ImportFailed, match=_REFUSED) as caught:
        import_model(load_model(tmp_path / "bad.onnx"))

    assert [word for word in ("metadata", "\n", "R.shape", "T.int64") if word in str(caught.value)] == []
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_node_of_the_model_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The message names the node instead of `ir.Op(span=None, ...)`. TVM's warning of an unfinished program is
    hidden.
    """
    x, w, y = (helper.make_tensor_value_info(*one) for one in (("x", 1, [3, 4]), ("w", 1, [5]), ("y", 1, [3, 4])))
    add = helper.make_node("Add", ["z", "w"], ["y"], name="layer1/add")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["z"]), add], "bad", [x, w], [y])
    gc.collect()  # unfinished programs of other tests
    capfd.readouterr()

    with pytest.raises(ImportFailed) as caught:
        import_model(load_model(_file_of(graph, tmp_path / "bad.onnx")))

    assert str(caught.value) == (
        "bad: TVM cannot import node 'layer1/add' (Add of float32[3, 4], float32[5]): the first input shape at dim 1 "
        "is 4 and the second input shape at dim 0 is 5, which are not broadcastable."
    )
    del caught
    gc.collect()
    assert capfd.readouterr().err == ""


def _file_of(graph: onnx.GraphProto, path: Path) -> Path:
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_weight_of_too_few_bytes_is_named(tmp_path: Path) -> None:
    """A truncated and repaired file has such a weight; numpy would fail on it with a traceback."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], raw_data=b"only")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "cut", [x], [y], [weight])

    with pytest.raises(ImportFailed, match="its tensor 'w' has 4 bytes, not 64"):
        load_model(_file_of(graph, tmp_path / "cut.onnx"))


def test_a_graph_without_an_output_is_refused(tmp_path: Path) -> None:
    """Such a model would leave nothing to tune."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "idle", [x], [])

    with pytest.raises(ImportFailed, match="computes nothing: its graph has no output"):
        load_model(_file_of(graph, tmp_path / "idle.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("computed", "said"),
    [("z", "Graph output 'y' is not an output of any node"), ("y", "input 'nowhere' of node")],
)
def test_an_unknown_operator_is_a_one_line_error(
    computed: str, said: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The message is one line: TVM prints the checker's complaint over several, and then fails with the bare name."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
    other = "x" if computed == "z" else "nowhere"
    graph = helper.make_graph([helper.make_node("Add", ["x", other], [computed])], "open", [x], [y])

    with pytest.raises(ImportFailed, match=said) as caught:
        import_model(load_model(_file_of(graph, tmp_path / "open.onnx")))

    assert "\n" not in str(caught.value)
    assert not recwarn.list
