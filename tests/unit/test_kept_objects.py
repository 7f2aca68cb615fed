"""Object files of programs that were built alone, linked into the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from cross.compile.library import build
from cross.compile.toolchains import find_linker, link
from cross.targets.target import Target, parse_target, unscheduled_target
from fleet.artifacts.artifact import Artifact
from fleet.artifacts.elf import with_renamed_symbols
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.models.model import Model, load_model
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.workloads.extract import compile_model, extract
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of
from tests.unit.test_workloads_squeezenet import run_model

TARGET = parse_target('{"kind": "llvm"}')
"""Without instructions for half-precision numbers, so that programs call conversions."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A product of float32 numbers, and numbers that are rounded to half precision."""
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["product"]),
        helper.make_node("Transpose", ["product"], ["turned"]),
        helper.make_node("Cast", ["x"], ["half"], to=onnx.TensorProto.FLOAT16),
        helper.make_node("Neg", ["half"], ["negative"]),
        helper.make_node("Cast", ["negative"], ["rounded"], to=onnx.TensorProto.FLOAT),
    ]
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 32]) for name in ("x", "y")]
    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 32]) for name in ("turned", "rounded")]
    path = tmp_path_factory.mktemp("model") / "halves.onnx"
    graph = helper.make_graph(nodes, "graph", given, made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return load_model(path)


def objects_in(folder: Path) -> dict[str, int]:
    """Return the kept object files with the times of their last change."""
    return {path.name: path.stat().st_mtime_ns for path in Path(folder, "objects").glob("*")}


def check_answers(artifact: Artifact) -> None:
    left, right = np.random.default_rng(0).standard_normal((2, 32, 32), np.float32)
    turned, rounded = run_model(artifact, [left, right])

    np.testing.assert_allclose(turned, (left @ right).T, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(rounded, -left.astype(np.float16).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("is_static", [True, False], ids=["static", "unscheduled"])
def test_model_of_programs_that_were_built_alone_compiles_none_of_them(
    model: Model, tmp_path: Path, is_static: bool
) -> None:
    """The model links the object files of its candidates, and its half-precision program still converts numbers."""
    for workload in extract(model, TARGET):
        task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=1, is_static=True)
        trace = propose(task)[0].trace_json if is_static else None
        build_candidate(
            BuildTask(
                mod_json=workload.mod_json,
                target=TARGET,
                trace_json=trace,
                out_dir=str(tmp_path),
                wants_features=False,
                keeps_object=True,
            )
        )
    alone = objects_in(tmp_path)

    built = compile_model(model, TARGET, {}, tmp_path, is_static=is_static, shares_objects=True)

    assert len(alone) == len(extract(model, TARGET))
    assert objects_in(tmp_path) == alone
    assert built.target_json == (TARGET if is_static else unscheduled_target(TARGET)).json
    check_answers(built)
    with pytest.raises(Exception, match="match_cast"):  # TVM's classes differ by version
        run_model(built, [np.zeros((8, 32), np.float32), np.zeros((32, 32), np.float32)])


@pytest.mark.slow
def test_equal_programs_of_two_models_are_compiled_once(model: Model, tmp_path: Path) -> None:
    """A model with another schedule for one workload compiles that one only; an equal model compiles nothing."""
    changed = extract(model, TARGET)[0]
    trace = propose(ProposeTask(mod_json=changed.mod_json, target=TARGET, count=2, population=16))[1].trace_json
    static = compile_model(model, TARGET, {}, tmp_path, shares_objects=True)
    first = objects_in(tmp_path)

    again = compile_model(model, TARGET, {}, tmp_path, shares_objects=True)
    tuned = compile_model(model, TARGET, {changed.shash: trace}, tmp_path, shares_objects=True)

    assert again.digest == static.digest != tuned.digest
    assert first.items() < objects_in(tmp_path).items()
    assert len(objects_in(tmp_path)) == len(first) + 1
    check_answers(tuned)


@pytest.mark.slow
def test_model_that_shares_nothing_keeps_no_object_files(model: Model, tmp_path: Path) -> None:
    """An exported model is compiled by itself, so that equal models give equal bytes."""
    first, second = (compile_model(model, TARGET, {}, tmp_path) for _ in range(2))

    assert first.digest == second.digest
    assert not objects_in(tmp_path)


@pytest.mark.parametrize(
    "target",
    [
        TARGET,
        parse_target(
            '{"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a7", "mfloat-abi": "hard"}'
        ),
    ],
    ids=["64 bits", "32 bits"],
)
def test_renamed_symbol_is_exported_by_the_linked_library(target: Target, tmp_path: Path) -> None:
    """The new name may be longer than the old one."""
    build(module_of(matmul(8).mod_json), target, tmp_path, keeps_object=True)
    [kept] = Path(tmp_path, "objects").glob("*.o")
    renamed, library = tmp_path / "renamed.o", tmp_path / "renamed.so"
    renamed.write_bytes(with_renamed_symbols(kept.read_bytes(), {"__tvm_ffi_main": "__tvm_ffi_product_of_matrices"}))

    link(find_linker(target), [renamed], library)

    assert b"\0__tvm_ffi_product_of_matrices\0" in library.read_bytes()


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01" + bytes(58)], ids=["empty", "text", "header"])
def test_symbols_of_no_object_file_are_not_renamed(content: bytes) -> None:
    """Anything but an ELF object is an error."""
    with pytest.raises(ValueError, match="no ELF object"):
        with_renamed_symbols(content, {"a": "b"})


def test_numbers_are_kept_by_a_renamed_program(tmp_path: Path) -> None:
    """A library of a renamed object computes the same."""
    import tvm

    build(module_of(matmul(8).mod_json), TARGET, tmp_path, keeps_object=True)
    [kept] = Path(tmp_path, "objects").glob("*.o")
    renamed, library = tmp_path / "renamed.o", tmp_path / "renamed.so"
    renamed.write_bytes(with_renamed_symbols(kept.read_bytes(), {"__tvm_ffi_main": "__tvm_ffi_product"}))
    link(find_linker(TARGET), [renamed], library)
    left, right = np.random.default_rng(0).standard_normal((2, 8, 8), np.float32)
    arrays = [tvm.runtime.tensor(one) for one in (left, right, np.zeros((8, 8), np.float32))]

    tvm.runtime.load_module(str(library))["product"](*arrays)

    np.testing.assert_allclose(arrays[2].numpy(), left @ right, rtol=1e-4, atol=1e-5)
