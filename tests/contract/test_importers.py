"""The contract of every importer: our own, and the example of docs/how-to/add-an-importer.md."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.pool.confined import Confined
from fleet.base.extras import advice_for
from fleet.errors import ImportFailed
from fleet.jobs.spec import is_data
from fleet.models.confined import having, reading
from fleet.models.importers import IMPORTERS, KNOWN_TYPES, importer_of
from fleet.models.importing.importer import Importer
from fleet.models.importing.value import Model
from fleet.models.reference import reference_outputs
from tests.fragments import product_entry
from tests.needs import needs
from tests.programs import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # PyTorch and Keras warn of their own code


def write_onnx(folder: Path) -> Path:
    import onnx

    from tests.unit.onnx_cases import model_of

    weights = {"w": np.random.default_rng(0).standard_normal((6, 4)).astype("float32")}
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    path = folder / "small.onnx"
    onnx.save(model_of([node], {"x": np.zeros((2, 6), "float32")}, weights), path)
    return path


def write_torch(folder: Path) -> Path:
    import torch

    path = folder / "small.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(6, 4).eval(), (torch.zeros(2, 6),)), path)
    return path


def write_keras(folder: Path) -> Path:
    import keras

    path = folder / "small.keras"
    keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)]).save(path)
    return path


def write_tflite(folder: Path) -> Path:
    from tests.unit.test_tflite_import import convolution_model

    path = folder / "small.tflite"
    path.write_bytes(convolution_model())
    return path


def write_program(folder: Path) -> Path:
    from fleet.workloads.programs import matmul

    path = folder / "small.json"
    path.write_text(matmul(16).mod_json)
    return path


def write_workloads(folder: Path) -> Path:
    from cross.targets.target import parse_target
    from fleet.fragments.workload_file import to_text

    path = folder / "small.yaml"
    path.write_text(to_text([product_entry(16, 16, 16)], parse_target('{"kind": "llvm", "num-cores": 1}')))
    return path


def write_transformers(_: Path) -> Path:
    return Path("hf:BertConfig:num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=16")


def write_perceptron(folder: Path) -> Path:
    rng, path = np.random.default_rng(0), folder / "small.npz"
    shapes = {"w0": (6, 5), "b0": (5,), "w1": (5, 4), "b1": (4,)}
    np.savez(path, **{name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()})
    return path


def example() -> Importer:
    sys.path.insert(0, str(REPOSITORY / "examples/importer"))
    try:
        from perceptron_file import PERCEPTRON  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    importer: Importer = PERCEPTRON
    return importer


@dataclass(frozen=True, slots=True)
class Member:
    """An importer with a small model."""

    importer: Importer
    write: Callable[[Path], Path]


WRITERS = {
    ".onnx": write_onnx,
    ".pt2": write_torch,
    ".keras": write_keras,
    ".tflite": write_tflite,
    ".json": write_program,
    ".yaml": write_workloads,
    "hf:": write_transformers,
}
MEMBERS = [*(Member(one, WRITERS[one.suffix or one.prefix]) for one in IMPORTERS), Member(example(), write_perceptron)]
FILES = [member for member in MEMBERS if not member.importer.prefix]


def form(member: Member) -> str:
    return member.importer.forms[0]


@pytest.fixture(params=MEMBERS, ids=form)
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    return found


@pytest.fixture
def path(member: Member, tmp_path: Path) -> Path:
    """A small model of the format."""
    for package in member.importer.packages:
        needs(package)
    return member.write(tmp_path)


def read(importer: Importer, path: Path) -> Model:
    shapes = {"input_ids": (1, 16)} if importer.prefix else {}
    [model] = importer.read(path, [shapes], 2 if path.suffix in (".keras", ".npz") else None, None)
    return model


def test_a_name_leads_to_one_importer(member: Member) -> None:
    """The ending or prefix of a name selects the importer; errors list its forms."""
    one = member.importer
    assert bool(one.suffix) != bool(one.prefix)
    assert one.matches(f"{one.prefix}model{one.suffix}")
    assert not one.matches("model.unknown")
    assert one.forms
    if one in IMPORTERS:
        assert importer_of(f"{one.prefix}model{one.suffix}") is one
        assert all(form in KNOWN_TYPES for form in one.forms)


def test_a_prefix_counts_before_an_ending() -> None:
    """A folder of transformers may be named like a file of another format."""
    importer = importer_of("hf:model.onnx")

    assert importer is not None
    assert importer.prefix == "hf:"


def test_a_package_belongs_to_an_extra(member: Member) -> None:
    """The error for a missing package names the extra to install."""
    for package in member.importer.packages:
        assert "pip install 'tvm-fleet[" in advice_for(ModuleNotFoundError(name=package))


def test_nothing_is_refused_at_once(member: Member, tmp_path: Path) -> None:
    """`check` names a missing file or folder; it needs no package of the format."""
    missing = Path(f"{member.importer.prefix}{tmp_path}/missing/model{member.importer.suffix}")

    with pytest.raises(ImportFailed, match="there is no"):
        member.importer.check(missing)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"{", b"\x00" * 64, b"\xff" * 256])
@pytest.mark.parametrize("member", FILES, ids=form)
def test_a_damaged_file_is_an_import_error(member: Member, content: bytes, tmp_path: Path) -> None:
    """No other exception comes out of a reader, whatever the file holds."""
    damaged = tmp_path / f"damaged{member.importer.suffix}"
    damaged.write_bytes(content)

    with pytest.raises(ImportFailed):
        member.importer.read(damaged, [{}], None, None)


def test_a_model_is_a_value(member: Member, path: Path) -> None:
    """The same file gives the same one, which travels to pool workers."""
    model = read(member.importer, path)

    assert model.format is member.importer.frontend.format
    assert model.title == member.importer.title(path)
    assert model.digest == read(member.importer, path).digest
    assert pickle.loads(pickle.dumps(model)) == model  # noqa: S301 - our own value


def test_an_imported_model_computes_the_same_as_its_reference(member: Member, path: Path) -> None:
    """Models become Relax functions with the same outputs; programs and workloads are refused."""
    from tests.unit.onnx_cases import ours

    frontend, model = member.importer.frontend, read(member.importer, path)
    if member.importer.refusal:
        assert frontend.reference is None
        with pytest.raises(ImportFailed):
            frontend.to_relax(model, unrolls=False)
        return
    assert frontend.reference is not None
    rng = np.random.default_rng(1)
    inputs: list[Any] = [rng.standard_normal(spec.shape).astype("float32") for spec in model.inputs]
    if member.importer.prefix:
        inputs = [rng.integers(0, 9, spec.shape).astype(spec.dtype) for spec in model.inputs]
    expected = reference_outputs(model, inputs)

    assert expected is not None
    for computed, reference in zip(ours(model, inputs), expected.outputs, strict=True):
        np.testing.assert_allclose(computed, reference, rtol=1e-4, atol=1e-4)


def test_reading_is_confined_to_the_files_of_the_model(member: Member, path: Path) -> None:
    """Every format: its file comes from strangers. A format with code is confined later, too, and no job of others."""
    task = reading(len, path)
    assert isinstance(task, Confined)
    if member.importer in IMPORTERS:
        assert set(task.files.readable) == {str(file.absolute()) for file in member.importer.files(path)}
        assert is_data(path) is not member.importer.frontend.has_code
    assert isinstance(having(len, read(member.importer, path)), Confined) is member.importer.frontend.has_code
