"""Files visible to a worker: the programs and libraries of the system and of Python, and its inputs.

Everything else is hidden: homes of users, state of the agent and the tracker, and other workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleet.base import inspection

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys"),
    *("/nix", "/gnu", "/vendor", "/system", "/apex"),
)
"""Readable system folders, including the libraries of GPUs in all locations used by distributions and Android."""

_VARIABLES = (
    *("LD_LIBRARY_PATH", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH"),
    *("TVM_LIBRARY_PATH", "POCL_BUILDING", "ANDROID_ROOT"),
)
"""Variables that name libraries."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Files that every program expects."""


_SHARED = tuple(map(Path, ("/tmp", "/var/tmp", "/home", "/run", "/mnt", "/srv")))  # noqa: S108 - not to be shown
"""Folders of all users of a machine. An agent that was started there does not show them."""

IN_MEMORY = ("/dev/shm", "/tmp")  # noqa: S108 - of its own
"""File systems of a worker's own, which lie in memory."""


def readable_paths(environment: Mapping[str, str], named: Iterable[object], private: Iterable[Path]) -> list[str]:
    """Return the paths that a worker may read: existing ones, none of them inside another.

    Args:
        environment: of the agent; paths in its variables for libraries are readable.
        named: by the driver: paths, or lists with paths among other texts.
        private: places that no worker may see. Where Python's path has a directory around one of them, as the one that
            the agent was started in, only the fleet's own packages of it are readable.
    """
    variables = [part for name in _VARIABLES for part in environment.get(name, "").split(os.pathsep)]
    paths = [*_SYSTEM, *_python_paths(tuple(private), tuple(sys.path)), *variables, *_texts(named)]
    return outermost(path for path in paths if path.startswith("/") and not _is_root(path) and _exists(path))


@functools.lru_cache(maxsize=8)  # takes milliseconds, and is the same for all workers
def _python_paths(private: tuple[Path, ...], search_path: tuple[str, ...]) -> list[str]:
    packages = [str(Path(file).resolve().parents[1]) for file in (__file__, inspection.__file__)]
    hidden = [*private, *_SHARED]
    paths = [*search_path, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.executable]
    return packages + [path for path in paths if not any(place.is_relative_to(path) for place in hidden)]


def _is_root(path: str) -> bool:
    return not os.path.normpath(path).strip("/")


def _exists(path: str) -> bool:
    with contextlib.suppress(ValueError):  # a zero byte
        return os.access(path, os.F_OK)
    return False


def device_files(patterns: Iterable[str]) -> list[str]:
    """Return the existing device files that match patterns such as "/dev/nvidia*"."""
    return sorted({path for pattern in patterns for path in _glob(pattern) if not Path(path).is_dir()})


def _glob(pattern: str) -> list[str]:
    return list(map(str, Path("/").glob(pattern.removeprefix("/"))))


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths, in order, without those inside another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths}, key=lambda path: path.split("/")):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return kept


def _texts(values: Iterable[object]) -> list[str]:
    found: list[str] = []
    for value in values:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(_texts(value))
    return found
