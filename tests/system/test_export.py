"""`fleet export`, and its files on machines without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import fleet
import fleet.runtime
from fleet.cli.main import app
from fleet.errors import ArtifactRefused, InvalidRequest
from fleet.export.service import Exported, run_here
from fleet.runtime import Affinity, LoadedModel
from fleet.runtime.package import open_package, read_file, read_manifest, write_archive
from tests.levit_like import write_levit_like
from tests.system.stored_records import store_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGES = Path(onnx.__file__).parents[1]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(exported: Exported) -> LoadedModel:
    return fleet.runtime.load(exported.path)


def inputs(seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, 3, 8, 8)).astype(np.float32), np.array([2.0], np.float32)


def test_an_exported_model_answers_as_onnx_runtime(model: LoadedModel, two_heads: Path) -> None:
    """Inputs by position and by name work, from memory of any alignment, and several outputs keep the model's order."""
    image, gain = inputs()
    image.flags.writeable = False
    means, peaks = model(image, gain=gain)

    expected = onnxruntime.InferenceSession(two_heads).run(None, {"image": image, "gain": gain})
    np.testing.assert_allclose(means, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(peaks, expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model(np.asfortranarray(image), gain)[0], means)
    assert [spec.name for spec in model.manifest.outputs] == ["means", "peaks"]


def test_outputs_of_two_calls_are_two_arrays(model: LoadedModel) -> None:
    """The second call leaves the arrays of the first unchanged."""
    first = model(*inputs(1))[0]
    kept = first.copy()
    model(*inputs(2))

    np.testing.assert_array_equal(first, kept)


def test_single_numbers_go_in_and_come_out(tmp_path: Path) -> None:
    """A scalar keeps rank 0: the model's own check refused it as a vector of one element."""
    nodes = [helper.make_node("Mul", ["x", "gain"], ["s"]), helper.make_node("ReduceMean", ["s"], ["y"], keepdims=0)]
    x, gain, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [7, 9]), ("gain", []), ("y", []))
    )
    graph = helper.make_graph(nodes, "score", [x, gain], [y])
    path = tmp_path / "score.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    score = fleet.compile(path, library=tmp_path / "none.sqlite").loaded

    assert score.check().is_right, score.check().problem
    given = np.random.default_rng(0).random((7, 9), np.float32)
    np.testing.assert_allclose(score(given, np.array(2, np.float32)), 2 * given.mean(), rtol=1e-5)


def test_a_model_checks_itself(model: LoadedModel) -> None:
    """The answers that came with it are right here, too."""
    agreement = model.check()

    assert agreement.is_right, agreement.problem
    assert model.manifest.check.reference == "onnxruntime"


def test_the_manifests_thread_count_is_the_default(exported: Exported) -> None:
    """The number holds in each Python thread, because TVM keeps one pool for each."""
    import tvm_ffi

    fleet.runtime.load(exported.path)  # with it TVM's runtime, which registers the function
    count = tvm_ffi.get_global_func("runtime.NumThreads")
    found: dict[str, int] = {}

    def run(name: str, **more: object) -> None:
        fleet.runtime.load(exported.path, **more)(*inputs())  # type: ignore[arg-type]
        found[name] = count()

    for name, more in {"own": {}, "one": {"threads": 1, "affinity": "free"}}.items():
        thread = threading.Thread(target=run, args=(name,), kwargs=more)
        thread.start()
        thread.join()

    assert found == {"own": min(exported.manifest.threads, os.cpu_count() or 1), "one": 1}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model(inputs()[0]), "missing: gain"),
        (lambda model: model(*inputs(), 3), "3 arrays were given"),
        (lambda model: model(*inputs(), gian=1), "there is no input 'gian'"),
        (lambda model: model(*inputs(), gain=1), "given twice"),
        (lambda model: model(inputs()[0][:, :2], inputs()[1]), r"shape \[1, 2, 8, 8\], .* --shape image=1,2,8,8"),
        (lambda model: model(inputs()[0][0], inputs()[1]), r"shape \[3, 8, 8\]"),
        (lambda model: model(inputs()[0].astype("float64"), inputs()[1]), r"astype\('float32'\)"),
    ],
)
def test_wrong_inputs_are_named(call: Callable[[LoadedModel], object], words: str, model: LoadedModel) -> None:
    """An error names the input, its value and the model's signature; the compiled code never runs."""
    with pytest.raises(InvalidRequest, match=words):
        call(model)


def test_two_exports_are_equal(exporting: Callable[..., Exported], exported: Exported) -> None:
    """Same model, target and records, same bytes: a hash in a release note means something."""
    again = exporting("again.fleet")

    assert again.digest == exported.digest


def test_the_best_checked_record_goes_in(
    exporting: Callable[..., Exported], exported: Exported, two_heads: Path, tmp_path: Path
) -> None:
    """The manifest names the record; a faster one that nobody checked stays out."""
    name = store_record(two_heads, tmp_path / "library.sqlite")
    tuned = exporting("tuned.fleet", library=str(tmp_path / "library.sqlite"))

    assert [(record.workload, record.median_sec) for record in tuned.manifest.records] == [(name, 1e-6)]
    assert tuned.manifest.device_model == "it x2"
    assert (tuned.trials, tuned.tuned, tuned.static, tuned.unmeasured) == (2, 1, 0, tuned.workloads - 1)
    assert tuned.digest != exported.digest
    assert fleet.runtime.load(tuned.path).check().is_right


def test_a_damaged_model_is_refused(exported: Exported, tmp_path: Path) -> None:
    """A byte that flipped on the way never runs."""
    content = bytearray(exported.path.read_bytes())
    content[content.index(b"\x7fELF") + 5000] ^= 0xFF
    (tmp_path / "a.fleet").write_bytes(content)

    with pytest.raises(ArtifactRefused, match="damaged"):
        fleet.runtime.load(tmp_path / "a.fleet")


BARE = """
import sys, numpy as np, fleet.runtime
model = fleet.runtime.load(sys.argv[1])
image = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)
print(model(image, np.array([2.0], np.float32))[0].ravel().tolist())
print(sorted({name.partition(".")[0] for name in sys.modules if not name.startswith("_")}))
print(sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "libtvm" in line}))
"""


def run_bare(model_path: Path, *, python_path: str, isolated: bool) -> tuple[list[float], list[str], list[str]]:
    words = [sys.executable, *(["-S", "-s"] if isolated else []), "-c", BARE, str(model_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd="/", env={"PYTHONPATH": python_path, "PATH": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    return json.loads(first), json.loads(second.replace("'", '"')), json.loads(third.replace("'", '"'))


def test_loading_a_model_imports_few_modules(exported: Exported, model: LoadedModel) -> None:
    """The runtime needs neither TVM's Python package nor its compiler, no gRPC and no SQL."""
    answer, modules, libraries = run_bare(exported.path, python_path="", isolated=False)

    assert answer == model(*inputs())[0].ravel().tolist()
    heavy = {"tvm", "grpc", "google", "sqlalchemy", "onnx", "scipy", "xgboost", "typer", "rich", "cross", "yaml"}
    assert not heavy & set(modules)
    needed = {"libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so"}
    assert set(libraries) - {"libtvm_ffi_testing.so"} == needed


def test_a_model_runs_where_there_is_no_compiler(exported: Exported, model: LoadedModel, tmp_path: Path) -> None:
    """A folder with TVM's runtime library, tvm_ffi, numpy and our own files is a whole environment."""
    (tmp_path / "tvm/lib").mkdir(parents=True)
    shutil.copy(PACKAGES / "tvm/lib/libtvm_runtime.so", tmp_path / "tvm/lib")
    shutil.copy(PACKAGES / "tvm/_version.py", tmp_path / "tvm")
    for name in ("tvm_ffi", "numpy", "numpy.libs"):
        (tmp_path / name).symlink_to((PACKAGES / name).resolve())
    (tmp_path / "fleet/base").mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "base/__init__.py", "base/machine.py", "base/plain.py"):
        shutil.copy(ROOT / "fleet" / name, tmp_path / "fleet" / name)
    shutil.copytree(ROOT / "fleet/runtime", tmp_path / "fleet/runtime")
    extra = next((path for path in PACKAGES.glob("typing_extensions.py")), None)
    if extra is not None:
        (tmp_path / extra.name).symlink_to(extra.resolve())

    answer, modules, _ = run_bare(exported.path, python_path=str(tmp_path), isolated=True)

    assert answer == model(*inputs())[0].ravel().tolist()
    assert "fleet" in modules


def run_cli(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}, prog_name="fleet")
    return done.exit_code, done.stdout, done.stderr


def test_serve_check_finds_a_wrong_answer(exported: Exported, tmp_path: Path) -> None:
    """It names the differing output and the model's time, and its exit code is 1."""
    package = open_package(exported.path)
    manifest = read_manifest(package)
    contents = {name: read_file(package, name) for name in manifest.files}
    swapped = {"check/output0.npy": "check/output1.npy"}
    write_archive(
        tmp_path / "wrong.fleet",
        replace(manifest, files={name: manifest.files[swapped.get(name, name)] for name in manifest.files}),
        {name: contents[swapped.get(name, name)] for name in contents},
    )

    code, said, complaint = run_cli("serve-check", str(tmp_path / "wrong.fleet"), "--json")

    assert code == 1
    assert run_here(tmp_path / "wrong.fleet").problem in complaint, "the verdict of fleet export is the same"
    assert "answers wrongly on devices/" in complaint
    report = json.loads(said)
    assert not report["is_right"]
    assert "output 0 differs in 4 of 4 elements" in report["problem"]
    assert report["median_sec"] > 0


def test_export_and_serve_check_give_one_verdict(tmp_path: Path) -> None:
    """Both accept answers within the rounding errors found by float64, by the tolerance in the file."""
    model = write_levit_like(tmp_path / "levit.onnx")
    file = str(tmp_path / "levit.fleet")

    code, said, _ = run_cli("export", str(model), "-o", file, "--untuned", "--json")
    served = run_cli("serve-check", file, "--json")

    exported = json.loads(said)
    check = exported["manifest"]["check"]
    assert (code, exported["is_right"], exported["problem"]) == (0, True, "")
    assert check["tolerances_by"] == "float64"
    assert (served[0], json.loads(served[1])["is_right"]) == (0, True)


def test_a_model_in_bfloat16_is_checked_on_a_device(tmp_path: Path) -> None:
    """Files of numpy know no such type; the manifest does. Before, the agent was asked for an argument of void16."""
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [4, 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "half.onnx")

    run_cli("export", str(tmp_path / "half.onnx"), "-o", str(tmp_path / "half.fleet"), "--untuned")
    code, said, complaint = run_cli("serve-check", str(tmp_path / "half.fleet"), "--json")

    assert (code, json.loads(said)["max_abs_error"]) == (0, 0), complaint


def test_the_export_command_writes_model_and_manifest(two_heads: Path, tmp_path: Path) -> None:
    """A file by the model's name, and a manifest that other programs can read with a zip and a JSON reader."""
    code, said, _ = run_cli(
        "export", str(two_heads), "-o", str(tmp_path / "it.fleet"), "--untuned", "--threads", "1", "--affinity", "free"
    )
    with zipfile.ZipFile(tmp_path / "it.fleet") as archive:
        manifest = json.loads(archive.read("manifest.json"))

    assert code == 0
    assert "image: float32[1,3,8,8], gain: float32[1]" in said
    assert (manifest["threads"], manifest["affinity"]) == (1, Affinity.FREE)


def test_unscheduled_functions_are_named(tmp_path: Path) -> None:
    """The export names it as `fleet build` and `fleet tune` do: a running sum is a scan, which runs as plain loops."""
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in "xy"}
    axis = numpy_helper.from_array(np.array(1), "axis")
    graph = helper.make_graph(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])], "scan", [values["x"]], [values["y"]], [axis]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "scan.onnx"
    )
    command = ("export", str(tmp_path / "scan.onnx"), "-o", str(tmp_path / "scan.fleet"), "--untuned")

    _, said, warned = run_cli(*command)
    _, as_json, _ = run_cli(*command, "--json")

    assert "plain loops" not in said
    assert "not scheduled, so plain loops: cumsum" in warned
    assert json.loads(as_json)["loop_nests"] == ["cumsum"]
