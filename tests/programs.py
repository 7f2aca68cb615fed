"""Starts modules of this repository as programs, from wherever the tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def here() -> dict[str, str]:
    """Return an environment in which a new Python finds the tests: without settings of the developer's own fleet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLEET_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])])}


def run_module(name: str, *arguments: str | Path, timeout_sec: float = 100.0) -> None:
    """Run a module to its end, as `python -m` does."""
    subprocess.run([sys.executable, "-m", name, *arguments], check=True, env=here(), timeout=timeout_sec)
