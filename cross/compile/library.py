"""Builds a program for a target description into an artifact: one shared library, named by its digest.

The object file is written by LLVM and linked by `cross.compile.toolchains`; that takes a third of the time of TVM's own
`export_library`, which asks the compiler driver for a full C++ link.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile import gpu_code
from cross.compile.lowering import pass_context, tir_pipeline
from cross.compile.objects import NAME, keep_object, object_path
from cross.compile.relax_program import compile_relax
from cross.compile.toolchains import Linker, check_linked, find_linker, link
from cross.targets.target import Target, make_target
from fleet.artifacts.artifact import Artifact, ArtifactFacts
from fleet.base.digests import digest_of
from fleet.domain.measuring import ModuleKind, TensorSpec
from fleet.errors import BuildError, DiskFull, FleetError

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.runtime import Module
    from tvm.tirx import PrimFunc

_MESSAGE_LINES = 8
_CODE = "code.o"
"""Object file of a program."""

_ROOM_BYTES = 16 * 1024**2
"""For an object and the library made of it. LLVM ends the whole process when it cannot write one."""


def build(
    mod: IRModule | PrimFunc,
    target: Target,
    out_dir: Path,
    *,
    function: str = "main",
    args: tuple[TensorSpec, ...] = (),
    linker: str | None = None,
    checks_arguments: bool = True,
    has_half: bool = True,
    keeps_object: bool = False,
) -> Artifact:
    """Compile a TIR module (an IRModule or PrimFunc) and link it.

    Args:
        out_dir: existing folder. A worker that outlives its job must not make it anew: nobody would remove it.
        function: the function to run unless told otherwise.
        args: its arguments with the outputs marked, kept with the artifact.
        linker: command to link with instead of the one that is found.
        checks_arguments: let the function compare shapes and types before it runs, which takes LLVM a quarter of the
            time of a matrix product. Without, wrong arguments crash the caller.
        has_half: False: no number of the program is of half precision (float16), which spares LLVM a sixth of its time.
        keeps_object: keep the object file of a program for a processor in `out_dir`, for whole models.

    Raises:
        BuildError: it did not compile or link.
        DiskFull: there is no room for it in `out_dir`.
        ConfigError: TVM knows no such target, or there is no linker for it.
    """
    import tvm

    tvm_target = make_target(target)
    try:
        with gpu_code.compiling(target), pass_context(target, checks_arguments=checks_arguments):
            lowering = tir_pipeline(target, has_half=has_half)
            library = tvm.compile(mod, target=tvm_target, tir_pipeline=lowering).mod
    except FleetError:
        raise
    except Exception as error:  # TVM's passes raise many classes
        raise BuildError(f"{function} does not compile for {target.json}: {last_lines(error)}") from error
    facts = ArtifactFacts(function=function, args=args, module_kind=ModuleKind.FUNCTIONS)
    kept = object_path(mod[NAME], target, out_dir) if keeps_object and target.is_processor else None
    return _finish(lambda _: library, target, out_dir, facts, linker, kept)


def build_relax(
    mod: IRModule,
    target: Target,
    out_dir: Path,
    *,
    args: tuple[TensorSpec, ...] = (),
    shares_objects: bool = False,
) -> Artifact:
    """Compile a Relax module of scheduled programs for the Relax VM and link it. The programs use all cores.

    Args:
        args: arguments of "main", kept with the artifact.
        shares_objects: use the object files kept in `out_dir`, and keep others there; the artifact depends on them.

    Raises:
        BuildError: it did not link, or cannot be written.
        DiskFull: there is no room for it in `out_dir`.
        ConfigError: TVM knows no such target, or there is no linker for it.
        tvm.error.TVMError: it does not compile.
    """
    facts = ArtifactFacts(function="main", args=args, module_kind=ModuleKind.RELAX_VM)
    kept = out_dir if shares_objects else None
    return _finish(lambda scratch: compile_relax(mod, target, scratch, kept=kept).mod, target, out_dir, facts, None)


def tvm_version() -> str:
    """Return the version of the installed TVM without importing it."""
    return importlib.metadata.version("apache-tvm")


def last_lines(error: BaseException) -> str:
    """Return an error's message without TVM's stack trace."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[-_MESSAGE_LINES:]) or type(error).__name__


def _finish(
    compiled: Callable[[Path], Module],
    target: Target,
    out_dir: Path,
    facts: ArtifactFacts,
    explicit: str | None,
    kept: Path | None = None,
) -> Artifact:
    """Link a library; `compiled` makes it, given a folder for its files.

    Args:
        kept: place where the object file of its only program is kept.
    """
    linker = find_linker(target, explicit)
    try:
        if shutil.disk_usage(out_dir).free < _ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with tempfile.TemporaryDirectory(prefix=".build-", dir=out_dir) as scratch:
            linked = Path(scratch) / "linked.so"
            object_digest = _write(compiled(Path(scratch)), target, linker, Path(scratch), linked)
            if kept is not None:
                keep_object(Path(scratch, _CODE), kept)
            check_linked(linked.read_bytes(), target, linker)
            digest = digest_of(linked)
            path = out_dir / f"{digest.removeprefix('sha256:')}.so"
            facts |= {"target_json": target.json, "linker": linker.name, "tvm_version": tvm_version()}
            facts["object_digest"] = object_digest
            artifact = Artifact(path=path, digest=digest, **facts)
            _move_into_place(linked, artifact)
    except OSError as error:
        problem = f"cannot write artifacts to {out_dir}: {error.strerror}"
        raise (DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else BuildError)(problem) from error
    return artifact


def _move_into_place(linked: Path, artifact: Artifact) -> None:
    """Rename the facts into place before the library: a reader that finds the library finds both, complete."""
    replace(artifact, path=linked).save_facts()
    linked.with_name(f"{linked.name}.json").replace(artifact.path.with_name(f"{artifact.path.name}.json"))
    linked.replace(artifact.path)


def _write(library: Module, target: Target, linker: Linker, scratch: Path, output: Path) -> str:
    """Link a single LLVM module directly; let TVM pack modules that import others or carry constants.

    Returns:
        The digest of the linked object files.
    """
    if library.kind == "llvm" and not list(library.imports):
        object_file = scratch / _CODE
        library.write_to_file(str(object_file), "o")
        link(linker, [object_file], output)
        return digest_of(object_file)

    pack, packed = gpu_code.packer(target), _Packed(linker)
    library.export_library(str(output), fcompile=packed, fpack_imports=pack, workspace_dir=str(scratch))
    return packed.object_digest


class _Packed:
    """Callback of `export_library` that links the object files."""

    output_format = "so"

    def __init__(self, linker: Linker) -> None:
        self._linker = linker
        self.object_digest = ""

    def __call__(self, output: str, inputs: str | Sequence[str], **_: object) -> None:
        paths = [Path(name) for name in ([inputs] if isinstance(inputs, str) else inputs)]
        self.object_digest = digest_of("".join(map(digest_of, paths)).encode())
        link(self._linker, paths, Path(output))
