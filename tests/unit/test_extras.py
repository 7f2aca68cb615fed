"""An installation without extras: what it lacks is said in one line, with the command that brings it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fleet.base.extras import _EXTRAS, advice_for
from fleet.domain.tvm_versions import KNOWN_PAIRS

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

_IMPORTED_AS = {"grpcio": "grpc", "protobuf": "google", "PyYAML": "yaml"}
BASE = {
    *("click", "typing_extensions"),  # come with typer
    *(_IMPORTED_AS.get(name, name) for name in (re.split(r"[<>=;]", each)[0] for each in _PROJECT["dependencies"])),
}
"""What an installation without extras has, as it is imported."""

BY_DRIVERS = {"pynvml"}
"""Imported by a driver that says itself what to install."""

OURS = {"fleet", "device_agents", "cross"}

COMMANDS = [
    ("tune", "model.onnx"),
    ("tune", "matmul-64"),
    ("build", "matmul-64"),
    ("explain", "model.onnx"),
    ("export", "model.onnx"),
    ("profile", "model.onnx"),
    ("library", "best"),
    ("jobs", "list"),
    ("report",),
    ("optimizer", "serve"),
]

_WITHOUT_EXTRAS = """
import sys

sys.modules |= dict.fromkeys(sys.argv[1].split(","))  # importing one of them raises ModuleNotFoundError

from typer.testing import CliRunner

from fleet.cli.main import app

for line in sys.stdin:
    done = CliRunner().invoke(app, line.split())
    print(done.exit_code, repr(done.stderr), flush=True)

import fleet

try:
    fleet.tune
except fleet.errors.ConfigError as error:
    print(2, repr(f"error: {error}\\n"))
fleet.connect, fleet.Device, fleet.Evaluator
"""


@pytest.mark.slow
def test_a_command_that_lacks_a_package_says_which_extra_has_it(tmp_path: Path) -> None:
    """Not a traceback: one line with the command to type; so does Python. What needs no extra works."""
    (tmp_path / "model.onnx").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, ",".join(_EXTRAS)],
        input="\n".join(map(" ".join, COMMANDS)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    answers = done.stdout.splitlines()
    assert len(answers) == len(COMMANDS) + 1
    for answer in answers:
        code, _, said = answer.partition(" ")
        assert code == "2", answer
        assert "needs the package" in said
        assert "pip install 'tvm-fleet[" in said
        assert ast.literal_eval(said).count("\n") == 1


def test_every_package_that_is_imported_is_installed_or_told() -> None:
    """A new import is a dependency of all, or of an extra that its absence names."""
    found = {
        name
        for room in OURS
        for path in _ROOT.glob(f"{room}/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
    }

    assert found - set(sys.stdlib_module_names) - OURS - BASE - BY_DRIVERS - {"pytest"} <= set(_EXTRAS)
    assert set(_EXTRAS.values()) <= set(_PROJECT["optional-dependencies"])


def test_what_is_none_of_ours_stays_an_error() -> None:
    """A typo in an import is not explained away."""
    assert advice_for(ModuleNotFoundError("no", name="fleet.typo")) == ""
    assert advice_for(ModuleNotFoundError("no", name="numpy.linalg")).endswith("pip install 'tvm-fleet[tune]'")


def test_the_pair_of_tvm_is_pinned_where_pip_reads_it() -> None:
    """constraints.txt does not travel with a wheel; a resolver would take a newer tvm-ffi, which crashes."""
    ((tvm, ffi),) = KNOWN_PAIRS.items()
    pins = {f"apache-tvm=={tvm}", f"apache-tvm-ffi=={ffi}"}

    assert pins == set(_PROJECT["optional-dependencies"]["agent"])
    assert pins <= set((_ROOT / "constraints.txt").read_text().splitlines())


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
