"""Loads an OpenCL runtime into a process with TVM's runtime: TVM's own if the user built one, else our plug-in.

`import tvm` calls `autoload` (see device_agents.runtimes.opencl.autoload). It loads a plug-in that is there. One that
has still to be compiled is compiled when OpenCL is first used, as by `tvm.device("opencl").exist`: importing stays
quick.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from device_agents.runtimes.opencl.build import built_for, ensure_plugin, plugin_path
from fleet.errors import ConfigError

_DEVICE_API = "device_api.opencl"
_UPSTREAM = "libtvm_runtime_opencl.so"


def upstream_library() -> Path | None:
    """Return TVM's own OpenCL runtime from the folder of its libraries. The wheel has none."""
    spec = importlib.util.find_spec("tvm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = (Path(folder) / "lib" / _UPSTREAM for folder in folders)
    return next((path for path in found if path.is_file()), None)


def load_runtime(path: Path) -> None:
    """Load TVM's own OpenCL runtime, or a plug-in, into this process.

    Raises:
        ConfigError: the plug-in was built for another TVM, or its libraries are missing.
    """
    if path.name == _UPSTREAM:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        return
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(f"the OpenCL plug-in cannot be loaded: {error}") from error
    library.fleet_opencl_built_for.restype = ctypes.c_char_p
    found = library.fleet_opencl_built_for().decode()
    if found != built_for():
        # TVM's C++ classes have no stable layout: mixing versions crashes or silently corrupts memory.
        raise ConfigError(f"the OpenCL plug-in {path} was built for {found}, not for {built_for()}; remove it")
    if library.fleet_opencl_install() != 0:
        raise ConfigError(f"TVM refuses the OpenCL plug-in {path}")


def autoload() -> None:
    """Register OpenCL with the TVM that is being imported. Does nothing without OpenCL or a compiler."""
    import tvm_ffi

    if tvm_ffi.get_global_func(_DEVICE_API, allow_missing=True) is not None:
        return
    path = plugin_path()
    if path is None or not _has_loader():
        return
    if path.is_file():
        load_runtime(path)
        return

    def open_device_api() -> object:
        load_runtime(ensure_plugin())
        return tvm_ffi.get_global_func(_DEVICE_API)()

    def load_module(content: object) -> object:
        load_runtime(ensure_plugin())
        return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(content)

    tvm_ffi.register_global_func(_DEVICE_API, open_device_api)
    tvm_ffi.register_global_func("ffi.Module.load_from_bytes.opencl", load_module)


def _has_loader() -> bool:
    try:
        ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        return False
    return True
