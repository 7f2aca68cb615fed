"""Compiles the OpenCL plug-in (plugin/, in C++) for the TVM that is installed: once, about 6 s.

TVM's C++ classes differ from one release to the next, so the file's name depends on the versions of TVM and tvm-ffi,
the sources and the compiler. It appears by a rename, and of processes that want it at the same time one compiles.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from fleet.base.config import cache_dir
from fleet.domain.tvm_versions import check_versions, tvm_ffi_version, tvm_version
from fleet.errors import BuildError, ConfigError, DeviceMissing, ErrorKind

_SOURCES = Path(__file__).with_name("plugin")
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_LOADER = "-l:libOpenCL.so.1"
_TIMEOUT_SEC = 300
_SCRATCH = ".build-"
_LOG_LINES = 12


def built_for() -> str:
    """Return a key of the plug-in's build for the installed TVM."""
    return f"apache-tvm {tvm_version()}, apache-tvm-ffi {tvm_ffi_version()}"


def plugin_path(folder: Path | None = None) -> Path | None:
    """Return the path of the plug-in for this TVM below `folder`, built or not; None without a C++ compiler."""
    compiler = _compiler()
    if compiler is None:
        return None
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    status = Path(compiler).resolve().stat()
    digest.update(f"{compiler} {status.st_size} {status.st_mtime_ns} {built_for()} {_FLAGS}".encode())
    name = f"libfleet_opencl-{tvm_version()}-{digest.hexdigest()[:16]}.so"
    return (folder or cache_dir() / "opencl") / name


def ensure_plugin(folder: Path | None = None) -> Path:
    """Return the path of the plug-in, compiling it if necessary.

    Raises:
        DeviceMissing: no compiler, no OpenCL headers, or no room for it.
        ConfigError: a TVM that does not work.
        BuildError: it does not compile; the compiler's last lines are in the message.
    """
    check_versions()
    path = plugin_path(folder)
    if path is None:
        raise DeviceMissing(
            f"no C++ compiler ({', '.join(_COMPILERS)}) for the OpenCL plug-in; on Debian: apt install g++"
        )
    if path.is_file():
        return path
    try:
        return _make(path)
    except OSError as error:
        raise DeviceMissing(
            f"the OpenCL plug-in cannot be written to {path.parent}: {error.strerror}; make room there, or name "
            "another place in FLEET_CACHE_DIR"
        ) from error


def _make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_file():  # another process has compiled it meanwhile
            return path
        for leftover in path.parent.glob(f"{_SCRATCH}*"):  # left by a killed compiler
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=path.parent, ignore_cleanup_errors=True) as scratch:
            output = Path(scratch) / path.name
            _compile(output)
            output.replace(path)
    return path


def _compile(output: Path) -> None:
    command = [_compiler() or _COMPILERS[0], *_FLAGS, f'-DFLEET_BUILT_FOR="{built_for()}"']
    command += [f"-I{_package(name) / 'include'}" for name in ("tvm", "tvm_ffi")]
    # One translation unit: TVM's headers, which take most of the time, are read once.
    command += ["-x", "c++", "-", "-o", str(output), _LOADER]
    unit = "".join(f'#include "{source}"\n' for source in sorted(_SOURCES.glob("*.cc")))
    try:
        done = subprocess.run(command, input=unit, capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"compiling the OpenCL plug-in took over {_TIMEOUT_SEC} s", ErrorKind.BUILD_TIMEOUT) from error
    if done.returncode == 0:
        return
    if "CL/cl.h" in done.stderr:
        raise DeviceMissing(
            "the header CL/cl.h is missing for the OpenCL plug-in; on Debian: apt install opencl-c-headers"
        )
    if "libOpenCL.so.1" in done.stderr:
        raise DeviceMissing(
            "libOpenCL.so.1 is missing for the OpenCL plug-in; on Debian: apt install ocl-icd-libopencl1"
        )
    log = "\n".join(done.stderr.strip().splitlines()[:_LOG_LINES])
    raise BuildError(f"the OpenCL plug-in does not compile for {built_for()}:\n{log}")


def _compiler() -> str | None:
    return next((found for name in _COMPILERS if (found := shutil.which(name))), None)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the package {name} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))
