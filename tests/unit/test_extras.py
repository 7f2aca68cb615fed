"""An installation without extras: a missing package is reported in one line, with the command that installs it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fleet.base.extras import _EXTRAS, advice_for
from fleet.domain.tvm_versions import KNOWN_PAIRS

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

_IMPORTED_AS = {"grpcio": "grpc", "protobuf": "google", "PyYAML": "yaml"}
BASE = {
    "typing_extensions",  # comes with grpcio
    *(_IMPORTED_AS.get(name, name) for name in (re.split(r"[<>=;]", each)[0] for each in _PROJECT["dependencies"])),
}
"""Import names of the packages in an installation without extras."""

BY_DRIVERS = {"pynvml"}
"""Imported by a driver that names the package to install."""

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
    ("web",),
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
def test_a_command_that_lacks_a_package_names_the_extra(tmp_path: Path) -> None:
    """A missing package costs one line with the command to type, and no traceback; commands that need no extra work."""
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


def test_every_imported_package_is_a_dependency_or_extra() -> None:
    """A new import needs a dependency of all installations, or an extra that the error can name."""
    found = {
        name
        for package in OURS
        for path in _ROOT.glob(f"{package}/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
    }

    assert found - set(sys.stdlib_module_names) - OURS - BASE - BY_DRIVERS - {"pytest"} <= set(_EXTRAS)
    assert set(_EXTRAS.values()) <= set(_PROJECT["optional-dependencies"])


def test_unknown_import_errors_are_raised_unchanged() -> None:
    """A typo in an import is not explained away."""
    assert advice_for(ModuleNotFoundError("no", name="fleet.typo")) == ""
    assert advice_for(ModuleNotFoundError("no", name="numpy.linalg")).endswith("pip install 'tvm-fleet[tune]'")


def test_the_pair_of_tvm_is_pinned_where_pip_reads_it() -> None:
    """constraints.txt does not travel with a wheel; a resolver would take a newer tvm-ffi, which crashes."""
    ((tvm, ffi),) = KNOWN_PAIRS.items()
    pins = {f"apache-tvm=={tvm}", f"apache-tvm-ffi=={ffi}"}

    assert pins == set(_PROJECT["optional-dependencies"]["agent"])
    assert pins <= set((_ROOT / "constraints.txt").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(
    not any(metadata.distributions(name="xgboost-cpu")), reason="not what `make venv` installs on x86-64 Linux"
)
def test_the_demos_installation_stays_under_700_mb() -> None:
    """The limit leaves 40 MB for pip and compiled Python files; it catches unexpected packages."""
    names = needed_by("tvm-fleet", {"tune", "compare"})
    assert {"apache-tvm", "onnxruntime", "scipy"} <= names

    files = [file for name in names - {"tvm-fleet"} for file in metadata.files(name) or [] if file.suffix != ".pyc"]
    blocks = sum(path.stat().st_blocks for file in files if (path := Path(str(file.locate()))).exists())

    assert blocks * 512 <= 660 * 2**20


def needed_by(name: str, extras: set[str]) -> set[str]:
    """Return the names of all packages that one brings along, itself among them."""
    wanted, found = [(name, frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while wanted:
        each = wanted.pop()
        if each not in found:
            found.add(each)
            wanted += [(canonicalize_name(need.name), frozenset(need.extras)) for need in needs_of(*each)]
    return {name for name, _ in found}


def needs_of(name: str, extras: frozenset[str]) -> list[Requirement]:
    if name == "tvm-fleet":  # as it is in this tree
        texts = _PROJECT["dependencies"] + [
            text for extra in extras for text in _PROJECT["optional-dependencies"][extra]
        ]
    else:
        texts = metadata.requires(name) or []
    needs = [Requirement(text) for text in texts]
    given = [{"extra": extra} for extra in ("", *extras)]
    return [need for need in needs if need.marker is None or any(map(need.marker.evaluate, given))]


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
