"""An exported model in a program in C, built as in the how-to."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import fleet.runtime
from cross.compile.tools import zig
from fleet.export.service import Exported, ExportOptions, export
from fleet.export.targets import target_of
from fleet.runtime.c_flags import c_flags
from fleet.runtime.manifest import format_manifest
from tests.system.page_steps import steps

pytestmark = pytest.mark.slow

FLOAT = onnx.TensorProto.FLOAT
PAGE = Path(__file__).parents[2] / "docs/how-to/ship-a-model.md"
SOURCE = next(step.text for step in steps(PAGE.read_text()) if step.file_name == "app.c")


def compiler() -> list[str]:
    found = next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)
    return [found] if found else list(zig("cc") or ())


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the page. Whatever it loses or touches beyond its arrays ends it with an error."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.c").write_text(SOURCE)
    sanitizers = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"] if shutil.which("gcc") else []
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", *sanitizers, "app.c", *c_flags(), "-o", "app"]
    done = subprocess.run([*compiler(), *flags], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "app"


@pytest.fixture
def unpacked(exported: Exported, tmp_path: Path) -> Path:
    zipfile.ZipFile(exported.path).extractall(tmp_path / "model")
    return tmp_path / "model"


def run(app: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([app, *map(str, words)], capture_output=True, text=True, check=False, env={})


def test_a_c_program_computes_the_same_as_python(app: Path, unpacked: Path) -> None:
    """The same inputs, the same bits; without Python and without a compiler in the process."""
    rng = np.random.default_rng(5)
    image, gain = rng.standard_normal((1, 3, 8, 8)).astype(np.float32), np.array([2.0], np.float32)
    image.tofile(unpacked / "image.bin")
    gain.tofile(unpacked / "gain.bin")
    done = run(app, unpacked, unpacked / "image.bin", unpacked / "gain.bin")

    assert done.returncode == 0, done.stderr
    said = [line.split(" = ") for line in done.stdout.splitlines()]
    means, peaks = (output.ravel() for output in fleet.runtime.load(unpacked)(image, gain))
    assert [name for name, _ in said] == [f"{name}[{at}]" for name in ("means", "peaks") for at in range(4)]
    np.testing.assert_array_equal([np.float32(value) for _, value in said], np.concatenate([means, peaks]))


def test_a_c_program_reports_errors(app: Path, exported: Exported, unpacked: Path, tmp_path: Path) -> None:
    """Errors name an invalid folder, a model for another machine, GPU or CPU, a newer format, and a missing library."""

    def said(**changes: object) -> str:
        (unpacked / "manifest.json").write_text(format_manifest(replace(exported.manifest, **changes)))  # type: ignore[arg-type]
        done = run(app, unpacked)
        assert done.returncode == 1
        return done.stderr

    assert "cannot read" in run(app, tmp_path / "none").stderr
    assert "exported for riscv64, this machine is" in said(machine="riscv64")
    assert "exported for cuda; this loader runs those for processors" in said(device_type="cuda")
    assert "the CPU feature telepathy, which this machine lacks" in said(cpu_features=("telepathy",))
    assert "nothing.so" in said(library="nothing.so")
    (unpacked / "manifest.json").write_text(format_manifest(exported.manifest).replace('"format": 1', '"format": 99'))
    assert "has format 99, this reads 1" in run(app, unpacked).stderr
    (unpacked / "manifest.json").write_text("{}")
    assert "the manifest has no format" in run(app, unpacked).stderr
    (unpacked / "manifest.json").write_text("[1")
    assert run(app, unpacked).returncode == 1


def test_an_output_is_as_large_as_the_data_makes_it(app: Path, tmp_path: Path) -> None:
    """A detector returns a varying number of boxes, and sorts them with TVM's second library; so it does in Python."""
    limits = {"most": np.array(6), "overlap": np.array(0.5, np.float32), "least": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=FLOAT),
    ]
    values = {"boxes": [1, 6, 4], "scores": [1, 1, 6], "y": ["n", 3]}
    boxes, scores, y = (helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in values.items())
    weights = [numpy_helper.from_array(array, name) for name, array in limits.items()]
    graph = helper.make_graph(nodes, "detector", [boxes, scores], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "it.onnx")
    options = ExportOptions(
        model=tmp_path / "it.onnx", target=target_of("host"), output=tmp_path / "it.fleet", is_untuned=True
    )
    exported = asyncio.run(export(options))
    zipfile.ZipFile(exported.path).extractall(tmp_path / "model")
    corners = np.arange(6, dtype=np.float32)[:, None] * 2
    np.hstack([corners, corners, corners + 1, corners + 1]).tofile(tmp_path / "boxes.bin")

    for high in (2, 5):
        np.where(np.arange(6) < high, 0.9 - np.arange(6) / 100, 0.1).astype(np.float32).tofile(tmp_path / "scores.bin")
        done = run(app, tmp_path / "model", tmp_path / "boxes.bin", tmp_path / "scores.bin")
        expected = [value for box in range(high) for value in (0, 0, box)]
        assert done.stdout.splitlines() == [f"y[{at}] = {value}" for at, value in enumerate(expected)], done.stderr
    here = f"import fleet.runtime; print(fleet.runtime.load({str(exported.path)!r}).check().is_right)"
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_the_flags_are_printed_for_a_shell() -> None:
    """`cc app.c $(python -m fleet.runtime.c_flags)`."""
    done = subprocess.run([sys.executable, "-m", "fleet.runtime.c_flags"], capture_output=True, text=True, check=True)

    assert done.stdout.split() == c_flags()
