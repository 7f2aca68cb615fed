"""Measures the machine's peak rate of multiply-adds in float32 with a C program."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-pthread")
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_SEC = 120.0


def measure_peak_rate(threads: int, scratch: Path) -> float | None:
    """Return operations per second of all threads together; None without a C compiler."""
    compiler = _compiler()
    if compiler is None:
        return None
    program = scratch / "peak_rate"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([*compiler, *_FLAGS, str(source), "-o", str(program)], check=True, timeout=_TIMEOUT_SEC)
    done = subprocess.run(
        [str(program), str(threads)], capture_output=True, text=True, check=True, timeout=_TIMEOUT_SEC
    )
    return float(done.stdout)


def _compiler() -> list[str] | None:
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found is not None:
        return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None
