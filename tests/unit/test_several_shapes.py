"""One program for several shapes of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from cross.targets.target import parse_target
from fleet.errors import InvalidRequest
from fleet.models.model import Model, load_model
from fleet.models.reference import reference_outputs
from fleet.workloads.extract import compile_model, extract
from tests.unit.onnx_cases import Array

pytestmark = pytest.mark.slow

TARGET = parse_target('{"kind": "llvm"}')
SHAPES = ({"x": (1, 6, 32)}, {"x": (1, 9, 32)}, {"x": (2, 6, 32)})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product with weights, a sum of any length, and a second input with one shape."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 256), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "gain"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["mean"], axes=[1]),
        helper.make_node("Tanh", ["gain"], ["t"]),
    ]
    given = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", "length", 32]),
        helper.make_tensor_value_info("gain", onnx.TensorProto.FLOAT, [256]),
    ]
    sizes = {"y": ["batch", "length", 256], "mean": ["batch", 1, 256], "t": [256]}
    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    graph = helper.make_graph(nodes, "graph", given, made, [weight])
    path = tmp_path_factory.mktemp("model") / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(path, shapes=SHAPES)


@pytest.fixture(scope="module")
def program(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Array]]:
    """The compiled program in TVM's own virtual machine."""
    import tvm
    from tvm import relax

    built = compile_model(model, TARGET, {}, tmp_path_factory.mktemp("program"))
    main = relax.VirtualMachine(tvm.runtime.load_module(str(built.path)), tvm.cpu())["main"]
    return lambda *arrays: [item.numpy() for item in main(*map(tvm.runtime.tensor, arrays))]


def arrays_for(model: Model) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(spec.shape, np.float32) for spec in model.inputs]


def test_a_program_serves_each_of_its_shapes(model: Model, program: Callable[..., list[Array]]) -> None:
    """The answers are ONNX Runtime's for all shapes, in any order."""
    for variant in [*model.variants, *model.variants]:
        arrays = arrays_for(variant)
        expected = reference_outputs(variant, arrays)

        assert expected is not None
        for ours, theirs in zip(program(*arrays), expected.outputs, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_other_shapes_get_an_error_with_the_known_shapes(program: Callable[..., list[Array]]) -> None:
    """A stock virtual machine, which ignores our manifest, raises the error, too."""
    known = (
        r"open is compiled for inputs of shapes \[1, 6, 32\], \[256\] or \[1, 9, 32\], \[256\] or \[2, 6, 32\], \[256\]"
    )
    with pytest.raises(ValueError, match=known):
        program(np.zeros((2, 9, 32), np.float32), np.zeros(256, np.float32))


def test_several_shapes_have_the_workloads_of_all(model: Model) -> None:
    """A workload of several shapes counts once, with the sum of their weights."""
    found = extract(model, TARGET)

    weights = {workload.operator: workload.weight for workload in found}
    products, means = ("matmul 6x32x256", "matmul 9x32x256", "matmul 12x32x256"), ("6x256", "9x256", "2x6x256")
    assert weights == {**dict.fromkeys([*products, *(f"mean {shape}" for shape in means)], 1), "tanh 256": 3}
    assert len({workload.name for workload in found}) == len(found)


def test_a_lowered_model_kept_for_its_compilation_gives_the_same_program(model: Model, tmp_path: Path) -> None:
    """The first compilation takes the kept one, the second lowers the model again."""
    extract(model, TARGET, is_compiled_next=True)
    first, second = (compile_model(model, TARGET, {}, tmp_path) for _ in range(2))

    assert first.digest == second.digest


def test_builds_from_one_lowered_model_are_those_of_fresh_ones(model: Model, tmp_path: Path) -> None:
    """No build changes the lowered model that is kept for the next one."""
    fresh = [compile_model(model, TARGET, {}, tmp_path, is_static=is_static).digest for is_static in (False, True)]
    extract(model, TARGET, is_compiled_next=True)

    kept = [
        compile_model(model, TARGET, {}, tmp_path, is_static=is_static, is_compiled_again=True).digest
        for is_static in (False, True, False, True)
    ]

    assert kept == [*fresh, *fresh]


def test_all_shapes_have_the_same_weights(path: Path) -> None:
    """Random weights are the same, too, though they are fitted to the data of a shape. The file has the weights
    once.
    """
    model = load_model(path, shapes=SHAPES, random_weights_seed=3)
    weights = [onnx.load_from_string(variant.onnx_bytes).graph.initializer[0].raw_data for variant in model.variants]

    assert weights == [weights[0]] * 3
    assert model.digest != load_model(path, shapes=SHAPES[:2], random_weights_seed=3).digest


def test_the_same_shapes_again_are_no_others(path: Path) -> None:
    """`--shape x=1,6,32` twice is one program for one shape."""
    model = load_model(path, shapes=[SHAPES[0], dict(SHAPES[0])])

    assert model == load_model(path, shapes=SHAPES[0])


def test_shapes_of_different_ranks_are_refused(tmp_path: Path) -> None:
    """A program's function takes tensors of one number of dimensions."""
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [value], [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")

    with pytest.raises(InvalidRequest, match="'x' has shapes of 1 and of 2 dimensions"):
        load_model(tmp_path / "m.onnx", shapes=[{"x": (3,)}, {"x": (3, 4)}])
