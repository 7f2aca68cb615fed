"""Loads TVM's runtime library into this process, without its compiler, and configures its threads.

`tvm` itself is never imported: tvm_ffi and libtvm_runtime.so have all that an exported model needs, in 0.1 s; for those
that sort, as detectors do, libtvm_runtime_extra.so.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import re
import threading
from pathlib import Path

from fleet.errors import ConfigError
from fleet.runtime.manifest import Affinity

EXTRA = "libtvm_runtime_extra.so"
"""Additional library with TVM's sorting functions. Agents load it, too."""

_ONE_CORE_PER_THREAD, _SHARED_CORES = -2, -3
"""Values of tvm::runtime::threading::ThreadGroup::AffinityMode."""

_INSTALL = "install apache-tvm and apache-tvm-ffi, or put their folders tvm/lib and tvm_ffi on PYTHONPATH"
_current = threading.local()


def library_folder() -> Path:
    """Return the folder of TVM's libraries.

    Raises:
        ConfigError: TVM is not installed here.
    """
    spec = importlib.util.find_spec("tvm")
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or ())] if spec else []
    found = next((folder for folder in folders if (folder / "libtvm_runtime.so").exists()), None)
    if found is None:
        raise ConfigError(f"there is no libtvm_runtime.so here; {_INSTALL}")
    return found


def runtime_version() -> str:
    """Return the version of TVM's runtime; empty if neither package metadata nor its own file gives it."""
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        text = (library_folder().parent / "_version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"^__version__ = (?:version = )?'([^']+)'", text, flags=re.MULTILINE)
    return found[1] if found else ""


@functools.cache
def load_runtime(device_type: str = "cpu") -> None:
    """Load the libraries that run models on a kind of device; once per process.

    Raises:
        ConfigError: it is not installed here, or does not load.
    """
    try:
        import tvm_ffi  # noqa: F401 - its library has to be there before TVM's
    except ImportError as error:
        raise ConfigError(f"tvm_ffi is not installed here ({error}); {_INSTALL}") from error
    folder = library_folder()
    _load(folder / "libtvm_runtime.so")
    if (extra := folder / EXTRA).exists():
        _load(extra)
    own = folder / f"libtvm_runtime_{device_type}.so"
    if own.exists():
        _load(own)
    elif device_type != "cpu":
        _load_backends(device_type)


def _load(path: Path) -> None:
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ConfigError(f"TVM's {path.name} does not load: {error}") from error


def _load_backends(device_type: str) -> None:
    """Call other packages' entry points for TVM, as its import does; one has to provide the device's runtime."""
    import tvm_ffi

    for offer in importlib.metadata.entry_points(group="tvm.backends"):
        offer.load()()
    if tvm_ffi.get_global_func(f"device_api.{device_type}", allow_missing=True) is None:
        raise ConfigError(
            f"there is no libtvm_runtime_{device_type}.so here, nor a package that brings one, or no driver for it"
        )


def use_threads(threads: int, affinity: Affinity) -> None:
    """Run this thread's models on this many threads from now on: TVM keeps one pool of threads for each caller.

    Each gets a core of its own only where they fill all processors that this process may use: otherwise two processes
    would meet on the first ones while others are idle.
    """
    wanted = (threads, affinity)
    if getattr(_current, "pool", None) == wanted:
        return
    import tvm_ffi

    processors = _processors()
    is_bound = affinity is Affinity.CORES and threads >= len(processors)
    mode = _ONE_CORE_PER_THREAD if is_bound else _SHARED_CORES
    tvm_ffi.get_global_func("runtime.config_threadpool")(mode, threads, list(map(str, processors)))
    _current.pool = wanted


@functools.cache
def _processors() -> tuple[int, ...]:
    """Return the processors of this process before TVM bound its threads."""
    return tuple(sorted(os.sched_getaffinity(0)))
