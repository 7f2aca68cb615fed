"""`fleet.compile`: a model as something to call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import fleet
from fleet.errors import ArtifactRefused, ConfigError, ImportFailed, InvalidRequest
from tests.needs import needs
from tests.system.stored_records import store_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def no_records(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("library") / "none.sqlite")


def test_a_compiled_model_is_called(two_heads: Path, no_records: str, tmp_path: Path) -> None:
    """A model compiles from a file or from memory, also inside an event loop; saved, it equals the output of `fleet
    export`.
    """
    image, gain = np.full((1, 3, 8, 8), 0.5, np.float32), np.array([2.0], np.float32)

    async def in_a_notebook() -> fleet.CompiledModel:
        return fleet.compile(onnx.load(two_heads), library=no_records)

    model = asyncio.run(in_a_notebook())
    means, peaks = model(image, gain=gain)
    model.save(tmp_path / "saved.fleet")

    expected = onnxruntime.InferenceSession(two_heads).run(None, {"image": image, "gain": gain})
    np.testing.assert_allclose(means, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(peaks, expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(fleet.runtime.load(tmp_path / "saved.fleet")(image, gain)[0], means)
    with pytest.raises(ConfigError, match="cannot write"):
        model.save(tmp_path / "no" / "saved.fleet")


def test_a_model_for_a_board_can_be_saved_only(two_heads: Path, no_records: str, tmp_path: Path) -> None:
    """Calling it on this machine raises an error that says so."""
    model = fleet.compile(two_heads, "rpi3-32", library=no_records)
    model.save(tmp_path / "board.fleet")

    assert (model.manifest.machine, model.manifest.threads) == ("armv7l", 4)
    with pytest.raises(ArtifactRefused, match="exported for armv7l, this machine is"):
        model(np.zeros((1, 3, 8, 8), np.float32))


def test_an_open_batch_is_closed(no_records: str) -> None:
    """Conversion is refused before anything is started."""
    shapes = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"}
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [shapes["x"]], [shapes["y"]])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    model = fleet.compile(proto, batch_size=3, library=no_records)

    given = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(np.maximum(given, 0), model(given))


def test_a_pytorch_module_is_compiled_for_its_example_inputs(no_records: str) -> None:
    """It computes as PyTorch does; without example inputs its shapes are unknown."""
    torch = needs("torch")
    module, given = torch.nn.Linear(8, 4), torch.randn(2, 8)

    model = fleet.compile(module, example_inputs=(given,), library=no_records)

    np.testing.assert_allclose(model(given.numpy()), module(given).detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidRequest, match="give example_inputs"):
        fleet.compile(module, library=no_records)
    with pytest.raises(InvalidRequest, match="its own shapes"):
        fleet.compile("model.onnx", example_inputs=(given,))


def test_invalid_arguments_are_refused_at_the_start(two_heads: Path, tmp_path: Path) -> None:
    """The error comes before anything is started."""
    with pytest.raises(ImportFailed, match="there is no model file"):
        fleet.compile(tmp_path / "none.onnx")
    with pytest.raises(InvalidRequest, match="NoneType is no model"):
        fleet.compile(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"is one tensor; give a tuple of the module's arguments: \(x,\)"):
        fleet.compile("model.onnx", example_inputs=np.zeros((4, 64)))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="1 to 4096 threads, not 0"):
        fleet.compile(two_heads, threads=0)
    with pytest.raises(InvalidRequest, match="no affinity 'near'; known: cores, free"):
        fleet.compile(two_heads, affinity="near")


def test_stock_relax_gets_our_passes_and_the_records(two_heads: Path, no_records: str, tmp_path: Path) -> None:
    """A user of TVM's compiler names one pass; a record of the library changes the code and keeps its results."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    image, gain = np.full((1, 3, 8, 8), 0.5, np.float32), np.array([2.0], np.float32)
    store_record(two_heads, tmp_path / "library.sqlite")
    sources = []
    for library in (no_records, str(tmp_path / "library.sqlite")):
        passes = fleet.pipeline("host", library=library)
        executable = relax.build(from_onnx(onnx.load(two_heads)), "llvm", relax_pipeline=passes)
        sources.append(executable.mod.imports[0].inspect_source())
        found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image), tvm.runtime.tensor(gain))
        expected = onnxruntime.InferenceSession(two_heads).run(None, {"image": image, "gain": gain})
        np.testing.assert_allclose(found[0].numpy(), expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[1].numpy(), expected[1], rtol=1e-4, atol=1e-5)

    assert sources[0] != sources[1]


def test_functions_of_stock_relax_and_open_shapes_are_kept(no_records: str) -> None:
    """Modules from TVM's exporter of language models keep their several functions, none named main, one of any
    length.
    """
    import tvm
    from tvm import relax, tirx

    weights = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    builder = relax.BlockBuilder()
    for name, tokens in (("prefill", tirx.Var("tokens", "int64")), ("decode", 1)):
        given = relax.Var("given", relax.TensorType((tokens, 32), "float32"))
        with builder.function(name, [given]):
            with builder.dataflow():
                product = builder.emit(relax.op.matmul(given, relax.const(weights)))
                result = builder.emit_output(relax.op.nn.relu(product))
            builder.emit_func_output(result)

    executable = relax.build(builder.finalize(), "llvm", relax_pipeline=fleet.pipeline("host", library=no_records))

    machine = relax.VirtualMachine(executable, tvm.cpu())
    for name, tokens in (("prefill", 3), ("prefill", 8), ("decode", 1)):
        given = np.random.default_rng(tokens).standard_normal((tokens, 32)).astype(np.float32)
        found = machine[name](tvm.runtime.tensor(given)).numpy()
        np.testing.assert_allclose(found, np.maximum(given @ weights, 0), rtol=1e-4, atol=1e-5)
