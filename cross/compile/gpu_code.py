"""Compiles the kernels of a GPU target for the requested GPU, without a GPU on the building machine.

TVM hands out CUDA kernels as source when it has no CUDA runtime, to be compiled on the device. Here they are compiled
at build time, so the device needs no compiler: TVM packs the modules that a library imports into one blob, and in it
the source is replaced by a cubin. ROCm's kernels leave TVM as code objects, made through two callbacks; OpenCL's are
source, since each vendor's driver compiles its own.

The blob, little endian: u64 size of the rest; two lists (u64 count, u64 each) with the tree of imports; then
for each module its kind (u64 length, text) and, unless it is "_lib", its bytes (u64 length, bytes). Bytes of kind
"cuda" are: format (u64 length, text), a table of functions, code (u64 length, bytes).
See https://github.com/apache/tvm/blob/v0.27.0/src/target/codegen.cc
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile import cuda_code, rocm_code
from cross.targets.target import Target
from fleet.errors import BuildError

if TYPE_CHECKING:
    from tvm.runtime import Module

_KEEP_SOURCE = "TVM_COMPILE_FORCE_FALLBACK"
"""TVM then keeps CUDA source even where it could compile for the GPU of this machine."""

_LIBRARY = "_lib"
_SOURCE_FORMAT = b"cuda"


def check_tools(target: Target) -> None:
    """Make sure that this machine can build for a target's GPU; for targets without one there is nothing to check.

    Raises:
        ConfigError: a compiler, a linker or a library for the target is missing, or its architecture is unknown.
    """
    if target.kind == "cuda":
        cuda_code.find_compilers(cuda_code.architecture(target.options))
    if target.kind == "rocm":
        rocm_code.architecture(target.options)
        rocm_code.find_linker()
        rocm_code.find_device_library()


@contextlib.contextmanager
def compiling(target: Target) -> Iterator[None]:
    """Prepare TVM to compile for a target. Needed around `tvm.compile`; for targets without a GPU it does nothing.

    Raises:
        ConfigError: as `check_tools`.
    """
    check_tools(target)
    prepared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if target.kind == "rocm":
        prepared = rocm_code.compiling(target.options)
    elif target.kind == "cuda":
        prepared = _keeping_source()
    with prepared:
        yield


def packer(target: Target) -> Callable[[Module, bool, str, str], str] | None:
    """Return the function that `export_library` is to pack imported modules with; None: TVM's own."""
    if target.kind != "cuda":
        return None
    arch = cuda_code.architecture(target.options)

    def pack(library: Module, is_system_lib: bool, prefix: str, workspace_dir: str) -> str:
        import tvm_ffi

        blob = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(library).numpy().tobytes()
        blob = replace_code(blob, "cuda", lambda entry: _with_cubin(entry, _sources(library), arch))
        host = _host_target(library)
        path = Path(workspace_dir) / f"{prefix}devc.o"
        tvm_ffi.get_global_func("codegen.codegen_blob")(blob, is_system_lib, host, prefix).write_to_file(str(path))
        return str(path)

    return pack


@contextlib.contextmanager
def _keeping_source() -> Iterator[None]:
    before = os.environ.get(_KEEP_SOURCE)
    os.environ[_KEEP_SOURCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_KEEP_SOURCE]
        else:
            os.environ[_KEEP_SOURCE] = before


def replace_code(blob: bytes, kind: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return the packed imports with `change` applied to the bytes of each module of a kind.

    Raises:
        BuildError: the blob is not of the form that this TVM version writes.
    """
    try:
        return _replaced(blob, kind, change)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise BuildError(f"the modules packed by TVM cannot be read: {error}; is this TVM 0.27?") from error


def entries(blob: bytes) -> list[tuple[str, bytes]]:
    """Return kind and bytes of each packed module; "_lib" has none."""
    found: list[tuple[str, bytes]] = []
    position = 8
    for _ in range(2):
        count = _number(blob, position)
        position += 8 * (1 + count)
    while position < len(blob):
        kind, position = _field(blob, position)
        content = b""
        if kind.decode() != _LIBRARY:
            content, position = _field(blob, position)
        found.append((kind.decode(), content))
    return found


def _replaced(blob: bytes, kind: str, change: Callable[[bytes], bytes]) -> bytes:
    modules = entries(blob)
    tail = sum(8 + len(name) + (0 if name == _LIBRARY else 8 + len(content)) for name, content in modules)
    parts = [blob[8 : len(blob) - tail]]
    for name, content in modules:
        parts.append(_packed(name.encode()))
        if name != _LIBRARY:
            parts.append(_packed(change(content) if name == kind else content))
    return _packed(b"".join(parts))


def _with_cubin(entry: bytes, sources: list[bytes], arch: str) -> bytes:
    written, position = _field(entry, 0)
    if written != _SOURCE_FORMAT:
        return entry  # already compiled
    source = next((source for source in sources if entry.endswith(_packed(source))), None)
    if source is None:
        raise ValueError("a CUDA module without its source")
    table = entry[position : len(entry) - 8 - len(source)]
    return _packed(b"cubin") + table + _packed(cuda_code.compile_cubin(source.decode(), arch))


def _host_target(library: Module) -> str:
    """Return the target of the first host module: the library itself, or deep in one that only holds others."""
    for module in _all_modules(library):
        if module.kind == "llvm":
            return str(module.get_function("_get_target_string")())
    raise BuildError("TVM made no code for the host that launches the kernels")


def _all_modules(library: Module) -> Iterator[Module]:
    yield library
    for imported in library.imports:
        yield from _all_modules(imported)


def _sources(library: Module) -> list[bytes]:
    """Return the source of every CUDA module that the library imports, directly or indirectly."""
    return [module.inspect_source("cuda").encode() for module in _all_modules(library) if module.kind == "cuda"]


def _number(content: bytes, position: int) -> int:
    return int(struct.unpack_from("<Q", content, position)[0])


def _field(content: bytes, position: int) -> tuple[bytes, int]:
    """Return the bytes of a length-prefixed field and the offset of the next one."""
    end = position + 8 + _number(content, position)
    if end > len(content):
        raise ValueError("it ends too early")
    return content[position + 8 : end], end


def _packed(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content
