"""Compiles a whole model for the Relax VM, on all cores.

TVM makes one LLVM module of a model and compiles it on one core. Here a few programs are a module of their own, which
becomes an object file in a thread. The machine's number of cores does not decide the parts: equal models give equal
bytes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile import gpu_code
from cross.compile.lowering import tir_pipeline
from cross.compile.objects import NAME, keep_object, object_path, write_named
from cross.targets.target import Target, make_target

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.runtime import Executable, Module

_PROGRAMS = 4
"""Most programs of one LLVM module. A module alone costs 10 ms, a program 50 to 100 ms."""

_LLVM_OPTIONS = "cl-opt"
"""Attribute of a target that sets options of LLVM for the whole process: unsafe in threads."""


def compile_relax(mod: IRModule, target: Target, folder: Path, *, kept: Path | None = None) -> Executable:
    """Compile a Relax module of scheduled programs. The result can be linked, but not run.

    Args:
        folder: for object files.
        kept: folder of artifacts with kept object files; they are used, and missing ones are added.
    """
    import tvm
    from tvm import relax
    from tvm.relax import vm_build

    tvm_target = make_target(target)
    if not target.is_processor or _LLVM_OPTIONS in target.options:
        with gpu_code.compiling(target):
            return tvm.compile(mod, target=tvm_target, tir_pipeline=tir_pipeline(target))
    builder = relax.ExecBuilder()
    with tvm_target:
        planned = relax.get_pipeline("default")(mod)
    programs = vm_build._vmcodegen(builder, planned)  # noqa: SLF001 - the steps of tvm.compile, which has no hook
    library = _compile_programs(programs, target, folder, kept)
    return vm_build.VMExecutable(vm_build._ffi_api.VMLink(builder, tvm_target, library, [], {}))  # noqa: SLF001


def _compile_programs(programs: IRModule, target: Target, folder: Path, kept: Path | None) -> Module:
    """Return an empty LLVM module that imports the object files of the programs."""
    import tvm

    functions = sorted(programs.functions.items(), key=lambda item: str(item[0].name_hint))
    count = -(-len(functions) // _PROGRAMS) if kept is None else len(functions)
    parts = [tvm.IRModule(dict(functions[index::count]), attrs=programs.attrs) for index in range(count)]
    write = partial(_write_object, target) if kept is None else partial(_write_kept_object, target, kept)
    library = _compile(tvm.IRModule({}, attrs=programs.attrs), target)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = [folder / f"part{index}.o" for index in range(count)]
        for path in threads.map(write, parts, objects):
            library.import_module(tvm.runtime.load_static_library(str(path), []))
    return library


def _write_object(target: Target, part: IRModule, path: Path) -> Path:
    _compile(part, target).write_to_file(str(path), "o")
    return path


def _write_kept_object(target: Target, kept: Path, part: IRModule, path: Path) -> Path:
    """Write the object file of one program, compiled only if no equal program is kept."""
    import tvm

    [(variable, function)] = part.functions.items()
    found = object_path(function, target, kept)
    if not found.exists():
        alone = tvm.IRModule({NAME: function.with_attr("global_symbol", NAME)}, attrs=part.attrs)
        keep_object(_write_object(target, alone, path), found)
    write_named(found, str(variable.name_hint), path)
    return path


def _compile(part: IRModule, target: Target) -> Module:
    import tvm

    return tvm.tirx.build(part, target=make_target(target), pipeline=tir_pipeline(target))
