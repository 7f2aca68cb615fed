"""Loads the tensor intrinsics of one target family, and no other.

`tvm.s_tir.tensor_intrin` parses the TVMScript of every GPU when it is imported, which takes 8-15 s; the x86 part alone
takes 0.1 s. `TuneContext` imports the package, so an empty package of the same name is put in its place first. The
modules inside stay importable one by one, but are run on a stack of their own: the parser describes every frame below
it, with its source, for each of CUDA's 180 functions (`inspect.stack`), and the frames of an import have no file, for
which `inspect` searches all loaded modules. Deep in a program, that is three quarters of the time.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import SourceLoader
from pathlib import Path

from cross.targets.integer_units import IntegerUnit, integer_unit
from cross.targets.target import Target, parse_target

_PACKAGE = "tvm.s_tir.tensor_intrin"
_SLOW_KINDS = ("cuda", "rocm")
_loading = threading.Lock()
_registered: set[IntegerUnit] = set()


def keep_package_light() -> None:
    """Make `import tvm.s_tir.tensor_intrin` cheap in this process, unless the real package was imported already."""
    if _PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
    package = types.ModuleType(_PACKAGE, "Tensor intrinsics, loaded by family.")
    package.__path__ = [str(Path(spec.submodule_search_locations[0]) / "s_tir" / "tensor_intrin")]
    sys.modules[_PACKAGE] = package


def load_intrinsics(target: Target) -> None:
    """Register the tensor intrinsics that schedules for the target can use. Repeated calls are free."""
    keep_package_light()
    name = intrinsics_module(target)
    with _loading:
        if name and name not in sys.modules:
            with ThreadPoolExecutor(1, thread_name_prefix="intrinsics") as shallow:
                shallow.submit(_run_module, name).result()
        unit = integer_unit(target)
        if unit is not None and unit not in _registered:
            with ThreadPoolExecutor(1, thread_name_prefix="intrinsics") as shallow:
                shallow.submit(_register, unit).result()
            _registered.add(unit)


def intrinsics_module(target: Target) -> str:
    """Return the name of TVM's module with the intrinsics for a target; "" if there is none."""
    return f"{_PACKAGE}.{target.intrinsics_family}" if target.intrinsics_family else ""


def target_hint(device_kind: str | None) -> Target | None:
    """Return a target with the intrinsics that a device of this kind needs, or None if no intrinsics have to be loaded.

    For a pool that is started before a device is found: loaded in advance, CUDA's take their seconds once, during other
    waiting, and not once per worker.
    """
    return parse_target(json.dumps({"kind": device_kind})) if device_kind in _SLOW_KINDS else None


def _register(unit: IntegerUnit) -> None:
    from cross.targets.dot_products import register

    register(unit)


def _run_module(name: str) -> None:
    """Import a module outside the frames of the import that is in progress."""
    spec = importlib.util.find_spec(name)
    if spec is None or not isinstance(spec.loader, SourceLoader) or (code := spec.loader.get_code(name)) is None:
        importlib.import_module(name)
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  the module's own code, as its loader would
    except BaseException:  # also if cancelled or interrupted; raised again
        del sys.modules[name]
        raise
    setattr(sys.modules[_PACKAGE], name.rpartition(".")[2], module)
