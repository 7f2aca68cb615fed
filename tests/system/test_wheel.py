"""What `python -m build` makes works where there is no checkout: code, data files, entry points, metadata."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.programs import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_ROOT = Path(__file__).parents[2]

_USES_WHAT_WAS_TUNED = """
import sys

import fleet

assert fleet.__file__.startswith(sys.prefix), fleet.__file__
print(repr(fleet.report(library="records.sqlite")))
compiled = fleet.compile("model.onnx", library="records.sqlite")
print(compiled, compiled.loaded)
print(compiled.manifest.tvm_version, compiled.loaded.check().problem or "right")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it. Other packages are those of this one, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    source, made = folder / "source", folder / "venv"
    source.mkdir()
    for room in ("fleet", "device_agents", "cross"):
        shutil.copytree(_ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_ROOT / file, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    venv.create(made)
    pip("--python", str(made), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = made.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    return made


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def test_a_model_is_tuned_from_the_wheel_alone(installed: Path, two_products: Path, tmp_path: Path) -> None:
    """The doctor finds no problem, boards are known, `fleet tune` tunes, and Python reports and compiles."""
    (tmp_path / "model.onnx").write_bytes(two_products.read_bytes())

    own = {"FLEET_DATA_DIR": str(tmp_path / "data"), "FLEET_CACHE_DIR": str(tmp_path / "cache")}

    def run(*words: str) -> str:
        command = [str(installed / "bin" / words[0]), *words[1:]]
        done = subprocess.run(
            command, cwd=tmp_path, env={**environment(), **own}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "problem" not in run("fleet", "doctor", "--quick")
    assert run("python", "-m", "fleet.testing.models", "tabular", "--to", "begin.onnx") == "begin.onnx\n"
    assert "rpi4-64" in run("fleet", "targets")
    run("fleet", "tune", "model.onnx", "--trials", "2", "--library", "records.sqlite")
    said = run("python", "-c", _USES_WHAT_WAS_TUNED)

    assert "FINISHED: model.onnx, 2 trials" in said
    assert re.search(r"<CompiledModel (model for .+ -> .+)> <LoadedModel \1>\n", said)
    assert said.endswith(f"{version('apache-tvm')} right\n")
