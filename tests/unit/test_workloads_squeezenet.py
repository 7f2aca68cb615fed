"""A real model, from its file to candidates, and the proof that a wrong kernel does not go unseen in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cross.compile.library import build
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.checking.numerics import compare, make_inputs
from fleet.domain.measuring import ModuleKind, TensorSpec
from fleet.domain.workload import Workload
from fleet.errors import BuildError, ImportFailed
from fleet.models.model import Model, bundled_model, load_model
from fleet.models.reference import reference_outputs
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.spaces.packing import pack_all
from fleet.workloads.extract import compile_model, extract
from fleet.workloads.workload import argument_specs, module_of

pytestmark = pytest.mark.slow
TARGET = host_target()


_TIMEOUT_SEC = 300.0
"""Limit for building a whole model, which takes five seconds of a processor that others may be using."""


@pytest.fixture(scope="module")
def pool() -> Iterator[BuildPool]:
    with BuildPool(2, timeout_sec=_TIMEOUT_SEC, target=TARGET) as pool:
        yield pool


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(bundled_model("squeezenet"), random_weights_seed=0)


@pytest.fixture(scope="module")
def workloads(pool: BuildPool, model: Model) -> list[Workload]:
    return pool.submit(extract, model, TARGET).result()


def run(artifact: Artifact, inputs: list[Any]) -> list[np.ndarray]:
    """Run a built program here and return its outputs."""
    import tvm

    arrays = [
        tvm.runtime.tensor(np.zeros(item.shape, item.dtype) if isinstance(item, TensorSpec) else item)
        for item in inputs
    ]
    tvm.runtime.load_module(str(artifact.path))[artifact.function](*arrays)
    return [array.numpy() for array, item in zip(arrays, inputs, strict=True) if isinstance(item, TensorSpec)]


def run_model(artifact: Artifact, inputs: list[Any]) -> list[np.ndarray]:
    """Run a built model here and return its outputs."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(artifact.path)), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, inputs))
    return [tensor.numpy() for tensor in ([result] if hasattr(result, "numpy") else result)]


def test_workloads_cover_the_model(workloads: list[Workload]) -> None:
    """All 26 convolutions are counted, under unique names and hashes, the costliest first; of concats none."""
    convolutions = [workload for workload in workloads if "conv2d" in workload.name]

    assert sum(workload.weight for workload in convolutions) == 26
    assert len({workload.name for workload in workloads}) == len({workload.shash for workload in workloads})
    assert not [workload.name for workload in workloads if "concat" in workload.name], "all eight are written in place"
    cost = [workload.weight * workload.flop for workload in workloads]
    assert cost == sorted(cost, reverse=True)
    assert all([False] * (len(w.args) - 1) + [True] == [spec.is_output for spec in w.args] for w in workloads)


def test_best_schedules_are_applied_and_right(
    pool: BuildPool, model: Model, workloads: list[Workload], tmp_path: Path
) -> None:
    """The model built with schedules gives the reference's answer, and is another program than the one without."""
    chosen = {}
    for workload in workloads[:3]:
        task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=2, population=16)
        # the first one is the static schedule
        chosen[workload.shash] = pool.submit(propose, task).result()[1].trace_json
    static, tuned = (
        pool.submit(compile_model, model, TARGET, schedules, tmp_path).result() for schedules in ({}, chosen)
    )
    untuned = pool.submit(compile_model, model, TARGET, {}, tmp_path, is_static=False).result()
    inputs = make_inputs(model.inputs, seed=1)
    reference = reference_outputs(model, inputs, threads=2)

    assert reference is not None
    assert len({untuned.digest, static.digest, tuned.digest}) == 3
    assert untuned.module_kind == ModuleKind.RELAX_VM
    for artifact in (untuned, static, tuned):
        assert compare(run_model(artifact, inputs), reference.outputs) is None
        assert artifact.args == model.inputs


def test_candidates_of_the_costliest_convolution_are_right(
    pool: BuildPool, workloads: list[Workload], tmp_path: Path
) -> None:
    """Candidates that the search proposes for a real operator build, and agree with the unscheduled program."""
    workload = workloads[0]
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=3, population=16)
    traces = [None, *(proposal.trace_json for proposal in pool.submit(propose, task).result())]
    tasks = [BuildTask(mod_json=workload.mod_json, target=TARGET, trace_json=t, out_dir=str(tmp_path)) for t in traces]
    built = [future.result() for future in [pool.submit(build_candidate, task) for task in tasks]]
    inputs = make_inputs(workload.args, seed=0)
    reference, *answers = [run(candidate.artifact, pack_all(inputs, candidate.packings)) for candidate in built]

    assert len(answers) == 3
    assert [compare(answer, reference) for answer in answers] == [None] * 3


def tampered(workload: Workload) -> Any:
    """Return the workload's program with a fault that a broken schedule makes: the channels of the data are read in
    the wrong order.
    """
    import tvm

    script = module_of(workload.mod_json).script()
    channels = workload.args[0].shape[3]
    read = next(
        line for line in script.splitlines() if "T.reads(" not in line and "pad_temp[" in line and " * " in line
    )
    index = read.split("pad_temp[")[1].split("]")[0].split(",")[3].strip()
    wrong = read.replace(f", {index}]", f", {channels - 1} - {index}]", 1)
    assert wrong != read
    return tvm.script.from_source(script.replace(read, wrong), check_well_formed=False)


def test_wrong_schedule_is_caught_with_random_inputs_and_seen_only_with_random_weights(
    workloads: list[Workload], tmp_path: Path
) -> None:
    """A kernel that reads the wrong channels is caught. With the file's constant weights, all equal, it would have
    passed: then the order of the channels does not show.
    """
    workload = next(w for w in workloads if w.operator.startswith("conv2d 3x3 s2"))
    wrong = build(tampered(workload), TARGET, tmp_path, args=workload.args)
    right = build(module_of(workload.mod_json), TARGET, tmp_path, args=workload.args)
    random = make_inputs(workload.args, seed=0)
    constant = [
        item if index == 0 or isinstance(item, TensorSpec) else np.full_like(item, 0.02)
        for index, item in enumerate(random)
    ]

    assert compare(run(wrong, random), run(right, random)) is not None
    assert compare(run(wrong, constant), run(right, constant)) is None


def save_unsupported(tmp_path: Path) -> Path:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="layer7", domain="")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    path = tmp_path / "odd.onnx"
    graph = helper.make_graph([node], "graph", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_unsupported_operator_is_named_with_its_node(pool: BuildPool, tmp_path: Path) -> None:
    """The error names the operator of the model and its node."""
    model = load_model(save_unsupported(tmp_path))

    with pytest.raises(ImportFailed, match=r"NoSuchOperator \(node 'layer7'\)"):
        pool.submit(extract, model, TARGET).result()


def test_foreign_schedule_for_a_workload_fails_the_build(
    pool: BuildPool, model: Model, workloads: list[Workload], tmp_path: Path
) -> None:
    """A trace that does not belong to the workload is an error, not a silently untuned model."""
    foreign = json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []])

    with pytest.raises(BuildError):
        pool.submit(compile_model, model, TARGET, {workloads[0].shash: foreign}, tmp_path).result()


def test_written_arguments_of_a_program_are_marked(workloads: list[Workload]) -> None:
    """Outputs are found by the writes of the program's blocks."""
    for workload in workloads[:5]:
        assert workload.args == argument_specs(module_of(workload.mod_json))
