"""Runs the tiers of the suite that need another environment than `.venv`, at the end of `make test`.

    python scripts/python_tiers.py torch      # tests of PyTorch, transformers and Keras
    python scripts/python_tiers.py pythons    # contract tests on each newer Python here, unit tests on the newest

A tier is skipped and succeeds, with a message, if the package index has no CPU build of PyTorch or the machine lacks
that Python. Later failures fail the tier.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
TORCH = "2.13.0+cpu"
"""CPU build. The build without a local version has 3 GB of CUDA on x86-64."""
PROMISED = ("torch", "transformers", "keras")
PYTHONS = ("3.12", "3.13", "3.14")
CONTRACTS = ["-m", "not slow and not measures", "tests/contract"]
QUICK = [*CONTRACTS, "tests/unit"]
"""For the newest Python: what fails on a version between it and the oldest fails in the contract tests, too."""


def pip(python: Path | str, *arguments: str) -> list[str]:
    """Return a pip command line that is constrained to the tested versions."""
    pinned = ["--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    return [str(python), "-m", "pip", arguments[0], "--quiet", *pinned, *arguments[1:]]


def has_torch() -> bool:
    """Return True if pip's package index has the CPU build of PyTorch."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True)
    return re.search(rf"(?<![\w.]){re.escape(TORCH)}(?![\w.])", listed.stdout) is not None


def run_torch() -> int:
    """Install PyTorch outside of `.venv` and run the test files that need it."""
    if not has_torch():
        print(f"torch tier: skipped, since the package index has no torch {TORCH}")
        return 0
    folder = BUILD / "torch" / TORCH
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(
            pip(sys.executable, "install", "--target", str(folder), f"torch=={TORCH}", *PROMISED[1:]), check=True
        )
        (folder / ".complete").touch()
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in tests if "from tests.needs import needs" in path.read_text()]
    environment = {**os.environ, "PYTHONPATH": str(folder), "FLEET_TESTS_PROMISED": ",".join(PROMISED)}
    return subprocess.run([sys.executable, "-m", "pytest", *files], cwd=ROOT, env=environment).returncode


def find_python(version: str) -> Path | None:
    """Return the interpreter of a Python version from PATH or pyenv; None if it is not installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [Path(path)] if (path := shutil.which(f"python{version}")) else []
    for python in [*found, *sorted((pyenv / "versions").glob(f"{version}.*/bin/python"))]:
        if subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return python
    return None


def run_pythons() -> int:
    """Run quick tests on each newer Python, each in its own environment."""
    extras = "tune,tflite,compare,cross,cuda,cuda-build,postgres,dask,metrics,web,dev"
    failed = 0
    found = {version: python for version in PYTHONS if (python := find_python(version))}
    missing = [version for version in PYTHONS if version not in found]
    print(f"Pythons that this machine lacks: {', '.join(missing) or 'none'}")
    for version, python in found.items():
        environment = BUILD / "pythons" / version
        own = environment / "bin" / "python"
        if not (environment / ".complete").exists():
            subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
            subprocess.run(pip(own, "install", "--editable", f"{ROOT}[{extras}]"), check=True)
            (environment / ".complete").touch()
        print(f"Python {version}:", flush=True)
        processes = str((os.cpu_count() or 1) + 1)
        options = [
            "-p",
            "no:cacheprovider",
            "--numprocesses",
            processes,
            "--dist",
            "loadfile",
            *(QUICK if version == max(found) else CONTRACTS),
        ]
        failed |= subprocess.run([own, "-m", "pytest", *options], cwd=ROOT).returncode
    return failed


if __name__ == "__main__":
    sys.exit({"torch": run_torch, "pythons": run_pythons}[sys.argv[1]]())
