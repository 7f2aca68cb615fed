"""Tasks for the tests of the build pool: a worker imports them by name."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

from fleet.errors import InvalidRequest


def process_id() -> int:
    """Tell which worker ran."""
    return os.getpid()


def add(left: int, right: int) -> int:
    """Do the smallest useful work."""
    return left + right


def make_a_lock() -> str:
    """Keep a lock that other processes could share, as PyTorch and tqdm do while they are imported."""
    globals()["kept"] = multiprocessing.Lock()
    return "made"


def crash() -> None:
    """End the worker by a segmentation fault, after some last words."""
    os.write(2, b"about to crash\n")
    ctypes.string_at(0)


def leave() -> None:
    """End the worker without a signal."""
    os._exit(3)


def hang() -> None:
    """Never return."""
    time.sleep(600)


def leave_a_file() -> str:
    """Leave a temporary file, as a linker does that is killed. Return its path."""
    return subprocess.run(["mktemp"], capture_output=True, text=True, check=True).stdout.strip()


def fail() -> None:
    """Raise a plain Python error."""
    raise ValueError("no good")


def refuse() -> None:
    """Raise an error of the fleet."""
    raise InvalidRequest("not this one")


def unpicklable() -> object:
    """Return a value that cannot be pickled."""
    return lambda: None


def light_intrinsics() -> tuple[bool, list[str]]:
    """Tell whether the light package stands in for TVM's, and which families are loaded."""
    import sys

    prefix = "tvm.s_tir.tensor_intrin"
    package = sys.modules[prefix]
    loaded = sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith(prefix + "."))
    return getattr(package, "__file__", None) is None, loaded


def has_imported(module: str) -> bool:
    """Tell whether a module is loaded already."""
    import sys

    return module in sys.modules


def threads_of_a_product() -> tuple[int, int]:
    """Return how many threads the process has before and after numpy has multiplied large matrices."""
    import numpy as np

    def count() -> int:
        return sum(1 for _ in Path("/proc/self/task").iterdir())

    before = count()
    matrix = np.ones((512, 512))
    np.matmul(matrix, matrix)
    return before, count()
