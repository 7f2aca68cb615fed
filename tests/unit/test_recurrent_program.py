"""Recurrent layers as one program for all steps: results, schedules and use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from cross.compile.lowering import tir_pipeline
from cross.targets.target import Target, host_target, make_target, parse_target
from fleet.checking.index_inputs import inputs_of
from fleet.domain.workload import Workload
from fleet.graph.marking import calls_of
from fleet.graph.pipeline import lower
from fleet.models.model import Model, import_model
from fleet.spaces.recurrent import BARRIER
from fleet.spaces.space import finished, static_schedule
from fleet.workloads.applying import apply_schedules
from fleet.workloads.extract import extract
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import module_of
from tests.unit.onnx_cases import Array, loaded, model_of, theirs

HOST = host_target()
CORTEX_A72 = parse_target('{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4}')
CUDA = parse_target('{"kind": "cuda", "arch": "sm_86"}')
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE = 6


def layer(kind: str, steps: int, batch: int, hidden: int, *, directions: int = 1, **attributes: object) -> Model:
    """Return a layer with biases and initial states; several sequences have different lengths."""
    rng = np.random.default_rng(hidden)
    rows = GATES[kind] * hidden
    weights: dict[str, Array] = {
        "w": rng.standard_normal((directions, rows, SIZE)),
        "r": rng.standard_normal((directions, rows, hidden)) / hidden**0.5,
        "b": rng.standard_normal((directions, 2 * rows)),
        "h0": rng.standard_normal((directions, batch, hidden)) / 2,
    }
    if kind == "LSTM":
        weights["c0"] = rng.standard_normal((directions, batch, hidden))
    weights = {name: array.astype("float32") for name, array in weights.items()}
    if batch > 1:
        weights["lengths"] = np.arange(batch, dtype="int32") % steps + 1
    names = ["x", "w", "r", "b", "lengths" if batch > 1 else "", "h0", *(["c0"] if kind == "LSTM" else [])]
    outputs = ["y", "y_h", *(["y_c"] if kind == "LSTM" else [])]
    direction = "bidirectional" if directions == 2 else attributes.pop("direction", "forward")
    node = helper.make_node(kind, names, outputs, hidden_size=hidden, direction=direction, **attributes)
    return proto_model(model_of([node], {"x": given(steps, batch)}, weights, outputs))


def proto_model(proto: onnx.ModelProto) -> Model:
    """Return the model of a graph, through a file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return loaded(proto, Path(folder))


def given(steps: int, batch: int) -> Array:
    return np.random.default_rng(1).standard_normal((steps, batch, SIZE)).astype("float32")


def built(model: Model, target: Target, x: Array) -> list[Array]:
    """Return the outputs of a model with its static schedules."""
    import tvm
    from tvm import relax

    applied = apply_schedules(lower(import_model(model), target), target, {})
    assert applied.loop_nests == ()
    executable = tvm.compile(applied.mod, target=make_target(target), tir_pipeline=tir_pipeline(target))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [item.numpy() for item in result]


def recurrent_workload(model: Model, target: Target) -> Workload:
    """Return the workload of a model's recurrent layer."""
    [found] = [one for one in extract(model, target) if one.name in ("lstm", "gru", "rnn")]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps", "batch", "hidden", "attributes"),
    [
        ("LSTM", 7, 1, 64, {}),  # a tile of 32 columns, one core
        ("LSTM", 5, 1, 128, {"direction": "reverse"}),  # tiles shared by two cores
        ("LSTM", 3, 4, 20, {"directions": 2}),  # columns are padded
        ("LSTM", 4, 6, 48, {}),  # two chains of three sequences
        ("LSTM", 3, 8, 256, {}),  # one chain of eight, its tiles shared
        ("GRU", 6, 1, 96, {"linear_before_reset": 1}),
        ("GRU", 6, 1, 256, {"linear_before_reset": 0}),  # two shared products in a step
        ("GRU", 4, 5, 33, {"linear_before_reset": 0, "directions": 2}),
        ("GRU", 4, 7, 24, {"linear_before_reset": 1, "directions": 2}),
        ("RNN", 5, 2, 128, {"directions": 2}),
        ("RNN", 1, 1, 5, {}),
    ],
)
def test_a_scheduled_layer_is_right(
    kind: str, steps: int, batch: int, hidden: int, attributes: dict[str, object]
) -> None:
    """With the static schedule all outputs equal ONNX Runtime's, and no stage is a bare loop nest."""
    model, x = layer(kind, steps, batch, hidden, **attributes), given(steps, batch)

    for actual, expected in zip(built(model, HOST, x), theirs(model, [x]), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_layer_is_two_programs(kind: str, gates: int) -> None:
    """A layer of any length is the product with the input, including the bias, and one program for all steps."""
    model = layer(kind, 50, 1, 32, linear_before_reset=1) if kind == "GRU" else layer(kind, 50, 1, 32)

    calls = calls_of(lower(import_model(model), HOST))
    called = {callee.name_hint: len(found) for callee, found in calls.items() if "reshape" not in callee.name_hint}

    assert called == {kind.lower(): 1, "fused_matmul_add": 1}
    assert recurrent_workload(model, HOST).operator == f"{kind.lower()} 50x1x32"
    assert recurrent_workload(model, HOST).flop > 50 * gates * 32 * 32 * 2


@pytest.mark.slow
def test_the_schedule_is_a_trace_like_any_other() -> None:
    """A record can be stored and replayed, and contains the barrier of shared tiles."""
    mod = module_of(recurrent_workload(layer("LSTM", 5, 1, 128), CORTEX_A72).mod_json)

    schedule = static_schedule(mod, CORTEX_A72)

    assert schedule is not None
    assert BARRIER in schedule.mod.script()
    assert replay(mod, trace_json(schedule)).mod.script() == schedule.mod.script()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_check_with_random_numbers_is_not_chaotic(kind: str) -> None:
    """With weights of variance 1, rounding would decide the answers after thirty steps."""
    import tvm

    workload = recurrent_workload(layer(kind, 100, 1, 128), HOST)
    mod, specs = module_of(workload.mod_json), workload.args
    schedule = static_schedule(mod, HOST)
    assert schedule is not None
    drawn = [np.asarray(one) for one in inputs_of(workload, 0) if not hasattr(one, "is_output")]
    outputs = []
    for program in (mod, finished(schedule.mod, HOST)):
        arguments = [
            *map(tvm.runtime.tensor, drawn),
            *(tvm.runtime.tensor(np.zeros(spec.shape, spec.dtype)) for spec in specs if spec.is_output),
        ]
        tvm.compile(program, target=make_target(HOST), tir_pipeline=tir_pipeline(HOST))["main"](*arguments)
        outputs.append(arguments[len(drawn)].numpy())

    assert float(np.std(outputs[0])) > 0.05
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_for_a_gpu_the_steps_are_written_out() -> None:
    """No rule for GPUs schedules a loop over time."""
    programs = {workload.name for workload in extract(layer("LSTM", 3, 1, 16), CUDA)}

    assert "lstm" not in programs
    assert len(programs) > 2


@pytest.mark.slow
def test_weights_that_are_inputs_are_brought_in_order_at_run_time() -> None:
    """Weights are not folded, and the results are equal."""
    hidden, steps = 20, 4
    rng = np.random.default_rng(0)
    arrays = {
        "x": given(steps, 1),
        "w": rng.standard_normal((1, 3 * hidden, SIZE)).astype("float32"),
        "r": rng.standard_normal((1, 3 * hidden, hidden)).astype("float32"),
    }
    node = helper.make_node("GRU", list(arrays), ["y"], hidden_size=hidden)
    model = proto_model(model_of([node], arrays, outputs=["y"]))
    import tvm
    from tvm import relax

    applied = apply_schedules(lower(import_model(model), HOST), HOST, {})
    executable = tvm.compile(applied.mod, target=make_target(HOST), tir_pipeline=tir_pipeline(HOST))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays.values()))

    np.testing.assert_allclose(result.numpy(), theirs(model, list(arrays.values()))[0], rtol=2e-5, atol=2e-5)
