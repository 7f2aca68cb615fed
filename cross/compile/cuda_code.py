"""Compiles CUDA source to a cubin for one GPU architecture, with NVRTC or nvcc, whichever is installed and supports it.

NVRTC takes a third of nvcc's time, so it comes first; where a header is missing for it, the next one compiles. nvcc is
looked for on PATH, below $CUDA_HOME and $CUDA_PATH and in /usr/local/cuda; NVRTC in the Python packages
nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12, in the same toolkits, and where the system's loader finds it.
CUDA 13 builds for sm_75 and newer, CUDA 12 for sm_50 to sm_121. The options are those of TVM's own compile function.

https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/ , https://docs.nvidia.com/cuda/nvrtc/
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cross.compile.tools import last_lines, run_tool
from fleet.artifacts.elf import EM_CUDA, ElfHeader, read_header
from fleet.base.scratch import scratch_dir
from fleet.errors import BuildError, ConfigError

_TIMEOUT_SEC = 120.0
_COMMON = ("--use_fast_math",)
_HALF_OPERATORS = tuple(
    f"-U__CUDA_NO_{name}__"
    for name in (
        *("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS"),
        *("BFLOAT16_CONVERSIONS", "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS"),
    )
)
_INSTALL = (
    "install the CUDA toolkit (nvcc), or one of the Python packages nvidia-cuda-nvrtc (for sm_75 and newer) and "
    "nvidia-cuda-nvrtc-cu12 (from sm_50 on)"
)
_HALF_HEADER = "cuda_fp16.h"
_INSTALL_HEADERS = (
    "16-bit floats need the CUDA headers: install the CUDA toolkit, or the Python packages nvidia-cuda-runtime and "
    "nvidia-cuda-cccl"
)

_STANDARD_HEADERS = {
    "cuda/std/cstdint": """
namespace cuda { namespace std {
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
} }
""",
    "cuda/std/type_traits": """
namespace cuda { namespace std {
template <bool V> struct bool_constant { static constexpr bool value = V; };
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct is_floating_point
    : bool_constant<is_same<T, float>::value || is_same<T, double>::value> {};
template <class T> struct is_integral : bool_constant<
    is_same<T, bool>::value || is_same<T, char>::value || is_same<T, signed char>::value ||
    is_same<T, unsigned char>::value || is_same<T, short>::value || is_same<T, unsigned short>::value ||
    is_same<T, int>::value || is_same<T, unsigned>::value || is_same<T, long>::value ||
    is_same<T, unsigned long>::value || is_same<T, long long>::value || is_same<T, unsigned long long>::value> {};
template <class T> struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T> struct is_unsigned : bool_constant<(T(0) < T(-1))> {};
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
} }
""",
}
"""Stand-ins for the headers that TVM's source includes: the toolkit's own may be missing, and take ten times as long
(0.8 s instead of 0.08 s for a small kernel)."""

_OTHER_HEADERS = re.compile(r"#include <cuda/(?!std/cstdint>|std/type_traits>)")
"""Found in source that needs the real headers."""


class _HeaderMissing(BuildError):
    """The source includes a file that this compiler lacks; another compiler may have it."""


class Compiler(Protocol):
    """One way to compile."""

    @property
    def name(self) -> str:
        """Name of the compiler in messages."""

    def architectures(self) -> frozenset[str]:
        """Return the architectures that it compiles for: "sm_90", ..."""

    def compile(self, source: str, arch: str) -> bytes:
        """Return a cubin."""


def architecture(target: Mapping[str, object]) -> str:
    """Return the architecture that a CUDA target names.

    Raises:
        ConfigError: it names none, or something other than "sm_<number>".
    """
    arch = str(target.get("arch") or "")
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        found = f"has the arch {arch!r}" if arch else "names no arch"
        raise ConfigError(f'the CUDA target {found}; write the compute capability, like "arch": "sm_86"')
    return arch


def find_compilers(arch: str) -> list[Compiler]:
    """Return the compilers here that compile for an architecture, at least one.

    Raises:
        ConfigError: there is none; the message lists the abilities of each and the package to install.
    """
    found = compilers()
    able = [compiler for compiler in found if arch in compiler.architectures()]
    if able:
        return able
    if not found:
        raise ConfigError(f"neither nvcc nor NVRTC is here to compile CUDA code for {arch}: {_INSTALL}")
    ranges = "; ".join(f"{compiler.name}: {architecture_range(compiler.architectures())}" for compiler in found)
    raise ConfigError(f"nothing here compiles CUDA code for {arch} ({ranges}): {_INSTALL}")


def architecture_range(architectures: frozenset[str]) -> str:
    """Return the oldest and newest architecture as text."""
    numbers = sorted({int(re.sub(r"\D", "", arch)) for arch in architectures})
    return f"sm_{numbers[0]} to sm_{numbers[-1]}" if numbers else "none"


@functools.cache
def compilers() -> tuple[Compiler, ...]:
    """Return all compilers of this machine: each NVRTC, which takes a third of the time, then nvcc."""
    found: list[Compiler] = []
    for path in _find_nvrtc():
        try:
            _load_nvrtc(path)
        except (OSError, AttributeError):
            continue  # missing, made for other architectures, too old or broken: `fleet doctor` lists the reasons
        found.append(Nvrtc(path=path, includes=_includes(path)))
    nvcc = _find_nvcc()
    if nvcc is not None and _has_host_compiler():
        found.append(Nvcc(path=nvcc))
    return tuple(found)


def compile_cubin(source: str, arch: str) -> bytes:
    """Compile source to a cubin and check that it is one for `arch`.

    Raises:
        BuildError: it does not compile.
        ConfigError: there is no compiler for it.
    """
    compiler, *others = find_compilers(arch)
    try:
        cubin = compiler.compile(source, arch)
    except _HeaderMissing:
        if not others:
            raise
        compiler = others[-1]  # nvcc if it is installed: its toolkit has all headers
        cubin = compiler.compile(source, arch)
    found = cubin_architecture(cubin)
    if found != arch.rstrip("af"):
        raise BuildError(f"{compiler.name} made code for {found or 'no GPU'} when asked for {arch}")
    return cubin


def cubin_architecture(cubin: bytes) -> str | None:
    """Return the architecture of a cubin, "sm_90", or None for other files."""
    header = read_header(cubin)
    if header is None or header.machine_number != EM_CUDA:
        return None
    return f"sm_{_sm_of(header)}"


def _sm_of(header: ElfHeader) -> int:
    """Return the architecture number in the ELF flags. CUDA 13's ABI version marks that it moved up by a byte."""
    return (header.flags >> 8 if header.abi_version >= 8 else header.flags) & 0xFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """The compiler driver of the toolkit."""

    path: str
    name: str = "nvcc"

    def architectures(self) -> frozenset[str]:
        """Return the architectures that it compiles for; each nvcc is queried once."""
        return _nvcc_architectures(self.path)

    def compile(self, source: str, arch: str) -> bytes:
        """Return a cubin."""
        with scratch_dir("nvcc") as scratch:
            written, output = scratch / "kernels.cu", scratch / "kernels.cubin"
            written.write_text(source)
            options = ["-cubin", f"-arch={arch}", "-O3", "-w", *_COMMON, *_HALF_OPERATORS]
            command = [self.path, *options, "--expt-relaxed-constexpr", "-o", str(output), str(written)]
            run_tool(command, _TIMEOUT_SEC, complaint=f"nvcc does not compile the kernels for {arch}")
            return output.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvrtc:
    """The compiler as a library, loaded in this process."""

    path: str
    includes: tuple[str, ...] = ()
    name: str = "NVRTC"

    def architectures(self) -> frozenset[str]:
        """Return the architectures that it compiles for."""
        library, count = _load_nvrtc(self.path), ctypes.c_int()
        self._check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(library.nvrtcGetSupportedArchs(numbers))
        plain = {f"sm_{number}" for number in numbers}
        return frozenset(plain | {f"{arch}a" for arch in plain if int(arch[3:]) >= 90})

    def compile(self, source: str, arch: str) -> bytes:
        """Return a cubin."""
        library, program = _load_nvrtc(self.path), ctypes.c_void_p()
        headers = {} if _OTHER_HEADERS.search(source) else _STANDARD_HEADERS
        names = _strings(list(headers))
        contents = _strings(list(headers.values()))
        self._check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernels.cu", len(headers), contents, names
            )
        )
        try:
            options = [f"--gpu-architecture={arch}", "-default-device", "-w", "-DINFINITY=__int_as_float(0x7f800000)"]
            options += [*_COMMON, *_HALF_OPERATORS, *(f"-I{include}" for include in self.includes)]
            if library.nvrtcCompileProgram(program, len(options), _strings(options)):
                said = last_lines(self._log(library, program))
                advice = f"\n{_INSTALL_HEADERS}" if f'open source file "{_HALF_HEADER}"' in said else ""
                failure = _HeaderMissing if 'open source file "' in said else BuildError
                raise failure(f"NVRTC does not compile the kernels for {arch}:\n{said}{advice}")
            size = ctypes.c_size_t()
            self._check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            cubin = ctypes.create_string_buffer(size.value)
            self._check(library.nvrtcGetCUBIN(program, cubin))
            return cubin.raw
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(library.nvrtcGetProgramLog(program, log))
        return log.value.decode(errors="replace")

    def _check(self, result: int) -> None:
        if result:
            raise BuildError(f"NVRTC at {self.path} failed with error {result}")


@functools.cache
def _nvcc_architectures(path: str) -> frozenset[str]:
    try:
        done = subprocess.run([path, "--list-gpu-code"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"sm_\d+[af]?", done.stdout)) | {
        f"{arch}a" for arch in re.findall(r"sm_\d+\b", done.stdout) if int(arch[3:]) >= 90
    }


@functools.cache
def _load_nvrtc(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    _ = library.nvrtcGetCUBIN  # CUDA 11.1 and newer
    return library


def _find_nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(str(root / "bin") for root in _toolkits()))


def _toolkits() -> list[Path]:
    """Return the usual folders of CUDA toolkits, which need not exist."""
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    return [Path(root) for root in named if root] + [Path("/usr/local/cuda")]


def _has_host_compiler() -> bool:
    """Tell whether there is a host compiler, which nvcc needs even for GPU code."""
    return any(shutil.which(name) for name in ("gcc", "cc", "g++"))


def _find_nvrtc() -> Iterator[str]:
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = [*packages.glob("cu*/lib/libnvrtc.so.*"), *packages.glob("cuda_nvrtc/lib/libnvrtc.so.*")]
    found += [path for root in _toolkits() for path in root.glob("lib*/libnvrtc.so.*")]
    names = sorted({str(path) for path in found if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)}, reverse=True)
    yield from names
    if not names:
        yield from ("libnvrtc.so.13", "libnvrtc.so.12")


def _includes(nvrtc: str) -> tuple[str, ...]:
    """Return where headers are: those of the library's own installation, else a toolkit's."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    own = Path(nvrtc).parents[1] / "include" if "/" in nvrtc else None
    places = [own] if own else []
    if own is not None and own.parent.name == "cuda_nvrtc":
        places += [packages / "cuda_runtime/include", packages / "cuda_cccl/include"]
    places += [include for root in _toolkits() for include in (root / "include", *root.glob("targets/*/include"))]
    with_headers = next((place for place in places if (place / _HALF_HEADER).exists()), None)
    chosen = [place for place in (own, with_headers) if place is not None]
    chosen += [place / "cccl" for place in chosen]
    return tuple(str(place) for place in dict.fromkeys(chosen) if place.is_dir())


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * max(1, len(texts)))(*(text.encode() for text in texts))
