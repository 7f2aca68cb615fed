"""One exported model for several shapes: in Python, in C, and tuned for all of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import fleet.runtime
from fleet.errors import InvalidRequest
from fleet.export.service import Exported, ExportOptions, export
from fleet.export.targets import target_of
from fleet.runtime.c_flags import c_flags
from tests.system.fleet_processes import run_fleet
from tests.system.test_export_c import compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHAPES = ((1, 4, 16), (1, 7, 16))
APP = """
#include <fleet_runtime.h>
#include <stdio.h>
static int answer(fleet_model *model) {
  const fleet_tensor *x = fleet_model_input(model, 0);
  for (size_t k = 0; k < x->size_bytes / sizeof(float); ++k) ((float *)x->data)[k] = (float)k;
  if (fleet_model_run(model) != 0) return -1;
  const fleet_tensor *y = fleet_model_output(model, 0);
  printf("%lld %.9g\\n", (long long)y->shape[1], ((const float *)y->data)[0]);
  return 0;
}
int main(int count, char **words) {
  const int64_t shapes[][3] = {{1, 7, 16}, {1, 4, 16}, {1, 5, 16}};
  fleet_model *model = fleet_model_open(words[count - 1]);
  if (model == NULL) return 1;
  for (size_t set = 0; set < fleet_model_shapes_count(model); ++set) {
    const fleet_tensor *x = fleet_model_shapes_input(model, set, 0);
    printf("%s %lld\\n", x->name, (long long)x->shape[1]);
    if (fleet_model_use_shapes(model, set) != 0 || answer(model) != 0) break;
  }
  if (fleet_model_shapes_input(model, 0, 1) != NULL || fleet_model_shapes_input(model, 2, 0) != NULL) return 1;
  if (fleet_model_use_shapes(model, 2) != 0) puts(fleet_error());
  for (int at = 0; at < 3; ++at)
    if (fleet_model_set_shape(model, 0, 3, shapes[at]) != 0 || answer(model) != 0) break;
  puts(fleet_error());
  fleet_model_close(model);
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product with weights, of a sequence of any length."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 32), np.float32), "w")
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "length", size])
        for name, size in (("x", 16), ("y", 32))
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "graph", [x], [y], [weight])
    path = tmp_path_factory.mktemp("model") / "sequence.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def exported(path: Path) -> Exported:
    wanted = ExportOptions(
        model=path,
        target=target_of("host"),
        output=path.with_suffix(".fleet"),
        is_untuned=True,
        shapes=[{"x": shape} for shape in SHAPES],
    )
    return asyncio.run(export(wanted))


def test_an_exported_model_takes_each_of_its_shapes(exported: Exported, path: Path) -> None:
    """Each with answers of its own in the file, all right."""
    model = fleet.runtime.load(exported.path)
    session = onnxruntime.InferenceSession(path)

    assert [variant.inputs[0].shape for variant in model.manifest.variants] == list(SHAPES)
    assert model.check().is_right
    for shape in (*SHAPES, *SHAPES):
        x = np.random.default_rng(1).standard_normal(shape, np.float32)
        np.testing.assert_allclose(model(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_another_shape_is_refused_with_the_exported_shapes(exported: Exported) -> None:
    """The error names the exported shapes and the option to add another."""
    model = fleet.runtime.load(exported.path)

    said = (
        r"shape \[1, 5, 16\], sequence was exported for \[1, 4, 16\] or \[1, 7, 16\]; export it with --shape x=1,5,16"
    )
    with pytest.raises(InvalidRequest, match=said):
        model(np.zeros((1, 5, 16), np.float32))


def test_a_program_in_c_lists_the_shapes_and_sets_one(exported: Exported, tmp_path: Path) -> None:
    """Shapes are set by number or by value; the error for an unknown shape lists the exported ones."""
    zipfile.ZipFile(exported.path).extractall(tmp_path / "model")
    (tmp_path / "app.c").write_text(APP)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "app.c", *c_flags(), "-o", "app"]
    subprocess.run([*compiler(), *flags], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "app", tmp_path / "model"], capture_output=True, text=True, check=True, env={})

    model = fleet.runtime.load(exported.path)
    first, second = (
        f"{shape[1]} {model(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))[0, 0, 0]:.9g}"
        for shape in SHAPES
    )
    assert done.stdout.splitlines() == [
        *("x 4", first, "x 7", second),
        "there is no set of shapes 2, of 2",
        *(second, first),
        "input x has shape 1,5,16 in no set that the model was exported for: 1,4,16 or 1,7,16",
    ]


def test_serve_check_times_each_shape(exported: Exported) -> None:
    """A longer sequence has its own time and its own results."""
    done = run_fleet("serve-check", str(exported.path), "--repeat", "2", "--min-repeat-ms", "0", "--json")
    report = json.loads(done.stdout)

    assert [each["inputs"] for each in report["shapes"]] == [{"x": list(shape)} for shape in SHAPES]
    assert all(each["is_right"] and len(each["run_secs"]) == 2 for each in report["shapes"])
    assert report["run_secs"] == report["shapes"][0]["run_secs"]


def test_tuning_is_for_all_shapes_and_checks_each(path: Path, tmp_path: Path) -> None:
    """The workloads of both shapes; the model's time is that of one run of each, and both are compared."""
    words = [word for shape in SHAPES for word in ("--shape", f"x={','.join(map(str, shape))}")]
    library = str(tmp_path / "library.sqlite")
    done = run_fleet("tune", str(path), *words, "--trials", "0", "--library", library, "--json")
    report = json.loads(done.stdout)

    assert {item["operator"] for item in report["workloads"]} == {"matmul 4x16x32", "matmul 7x16x32"}
    assert report["model"]["is_right"]
    assert report["model"]["static_ms"] > 0
    assert report["model"]["reference"] == "onnxruntime"
