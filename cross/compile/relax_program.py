"""Compiles a whole model for the Relax VM, on all cores.

TVM makes one LLVM module of a model and compiles it on one core. Here a few programs are a module of their own, which
becomes an object file in a thread. The machine's number of cores does not decide the parts: equal models give equal
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile import gpu_code
from cross.compile.argument_checks import called_programs
from cross.compile.lowering import pass_context, tir_pipeline
from cross.compile.objects import NAME, keep_object, name_placeholders, object_path, write_named
from cross.targets.target import Target, make_target

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.runtime import Executable, Module

_PROGRAMS = 4
"""Most programs of one LLVM module. A module alone costs 10 ms, a program 50 to 100 ms."""

_HALF = "float16"
"""Half-precision types in the notation of programs, including "bfloat16"."""

_LLVM_OPTIONS = "cl-opt"
"""Attribute of a target that sets options of LLVM for the whole process: unsafe in threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Programs that become one LLVM module."""

    mod: IRModule
    checks_arguments: bool = True

    @property
    def has_half(self) -> bool:
        """True if a number of the programs may be of half precision."""
        functions = self.mod.functions.values()
        return not functions or any(_HALF in str(function) for function in functions)


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
    checks = called_programs(planned)
    programs = vm_build._vmcodegen(builder, planned)  # noqa: SLF001 - the steps of tvm.compile, which has no hook
    library = _compile_programs(programs, checks, target, folder, kept)
    return vm_build.VMExecutable(vm_build._ffi_api.VMLink(builder, tvm_target, library, [], {}))  # noqa: SLF001


def _compile_programs(
    programs: IRModule, checks: Mapping[str, bool], target: Target, folder: Path, kept: Path | None
) -> Module:
    """Return an empty LLVM module that imports the object files of the programs.

    Args:
        checks: for each called program, whether it checks its arguments.
    """
    import tvm

    write = partial(_write_part, target) if kept is None else partial(_write_kept_object, target, kept)
    parts = _parts(programs, checks, _PROGRAMS if kept is None else 1)
    library = _compile(_Part(mod=tvm.IRModule({}, attrs=programs.attrs)), target)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = [folder / f"part{index}.o" for index in range(len(parts))]
        for path in threads.map(write, parts, objects):
            library.import_module(tvm.runtime.load_static_library(str(path), []))
    return library


def _parts(programs: IRModule, checks: Mapping[str, bool], most: int) -> list[_Part]:
    """Split the called programs of a module into parts of at most `most`."""
    import tvm

    parts = []
    functions = sorted(programs.functions.items(), key=lambda item: str(item[0].name_hint))
    for is_checked in (False, True):
        chosen = [item for item in functions if checks.get(str(item[0].name_hint)) is is_checked]
        count = -(-len(chosen) // most)
        for index in range(count):
            mod = tvm.IRModule(dict(chosen[index::count]), attrs=programs.attrs)
            parts.append(_Part(mod=mod, checks_arguments=is_checked))
    return parts


def _write_object(target: Target, part: _Part, path: Path) -> Path:
    _compile(part, target).write_to_file(str(path), "o")
    return path


def _write_part(target: Target, part: _Part, path: Path) -> Path:
    """Write the object file of a part, to be linked with those of other parts."""
    _write_object(target, part, path)
    if not part.has_half:
        name_placeholders(path, path.stem)
    return path


def _write_kept_object(target: Target, kept: Path, part: _Part, path: Path) -> Path:
    """Write the object file of one program, compiled only if no equal program is kept."""
    import tvm

    [(variable, function)] = part.mod.functions.items()
    found = object_path(function, target, kept)
    if not found.exists():
        alone = tvm.IRModule({NAME: function.with_attr("global_symbol", NAME)}, attrs=part.mod.attrs)
        keep_object(_write_object(target, replace(part, mod=alone), path), found)
    write_named(found, str(variable.name_hint), path)
    return path


def _compile(part: _Part, target: Target) -> Module:
    import tvm

    lowering = tir_pipeline(target, has_half=part.has_half)
    with pass_context(target, checks_arguments=part.checks_arguments):
        return tvm.tirx.build(part.mod, target=make_target(target), pipeline=lowering)
