"""Makes ROCm code objects when TVM compiles for an AMD GPU, also without /opt/rocm.

TVM's LLVM generates the code; the device libraries (bitcode of the mathematical functions) and a linker come from ROCm
or from Debian's packages rocm-device-libs and lld. The result is checked: an AMDGPU ELF for the gfx asked for.

https://llvm.org/docs/AMDGPUUsage.html (ELF header, table of EF_AMDGPU_MACH), https://github.com/ROCm/ROCm-Device-Libs
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cross.compile.tools import run_tool, zig
from fleet.artifacts.elf import EM_AMDGPU, read_header
from fleet.base.config import did_you_mean
from fleet.base.scratch import scratch_dir
from fleet.errors import BuildError, ConfigError

MACHINES = {
    "gfx803": 0x02A,
    "gfx900": 0x02C,
    "gfx902": 0x02D,
    "gfx904": 0x02E,
    "gfx906": 0x02F,
    "gfx908": 0x030,
    "gfx909": 0x031,
    "gfx90a": 0x03F,
    "gfx90c": 0x032,
    "gfx942": 0x04C,
    "gfx950": 0x04F,
    "gfx1010": 0x033,
    "gfx1011": 0x034,
    "gfx1012": 0x035,
    "gfx1030": 0x036,
    "gfx1031": 0x037,
    "gfx1032": 0x038,
    "gfx1033": 0x039,
    "gfx1034": 0x03E,
    "gfx1035": 0x03D,
    "gfx1036": 0x045,
    "gfx1100": 0x041,
    "gfx1101": 0x046,
    "gfx1102": 0x047,
    "gfx1103": 0x044,
    "gfx1150": 0x043,
    "gfx1151": 0x04A,
    "gfx1200": 0x048,
    "gfx1201": 0x04E,
}
"""gfx to the number in the low byte of e_flags; LLVM's table."""

_LINK_TIMEOUT_SEC = 60.0
_SYSTEM_LIBRARIES = Path("/usr/lib")
_CODE_OBJECT = 400
"""Version 4, which ROCm 4.5 and newer load and Debian 12's lld links; LLVM's own choice is newer than both."""

_CONTROLS = {
    "daz_opt": ("i8", 0),
    "correctly_rounded_sqrt32": ("i8", 1),
    "finite_only_opt": ("i8", 0),
    "unsafe_math_opt": ("i8", 0),
    "ABI_version": ("i32", _CODE_OBJECT),
}
"""See "Controls" in https://github.com/ROCm/ROCm-Device-Libs/blob/amd-stg-open/doc/OCML.md"""


def architecture(target: Mapping[str, object]) -> str:
    """Return the gfx that a ROCm target names, without features like ":xnack-".

    Raises:
        ConfigError: it names none, or one that is not known.
    """
    gfx = str(target.get("mcpu") or "").partition(":")[0]
    if not gfx:
        raise ConfigError('the ROCm target names no mcpu; write the GPU\'s architecture, like "mcpu": "gfx90a"')
    if gfx not in MACHINES:
        raise ConfigError(f"unknown AMD GPU architecture {gfx!r}{did_you_mean(gfx, MACHINES)}")
    return gfx


def wave_size(target: Mapping[str, object]) -> int:
    """Return the lanes of a wave in LLVM's code: 64 up to gfx9, and 32 from gfx10 on unless the target sets more."""
    features = target.get("mattr")
    if isinstance(features, list) and "+wavefrontsize64" in features:
        return 64
    return 64 if len(architecture(target)) == len("gfx900") else 32


@contextlib.contextmanager
def compiling(target: Mapping[str, object]) -> Iterator[None]:
    """Have TVM compile for a ROCm target with the tools of this machine.

    Raises:
        ConfigError: the gfx is unknown, or the linker or the device libraries are missing.
    """
    import tvm
    import tvm.support.rocm  # registers its callbacks, which these replace
    import tvm_ffi

    gfx, linker, library = architecture(target), find_linker(), find_device_library()
    with scratch_dir("rocm") as scratch:
        controls = scratch / "controls.ll"
        controls.write_text(control_library(gfx, wave_size=wave_size(target)))
        files = [str(library), str(controls)]
        tvm_ffi.register_global_func(
            "tvm_callback_rocm_link", lambda content: link(bytes(content), gfx, linker), override=True
        )
        tvm_ffi.register_global_func(
            "tvm_callback_rocm_bitcode_path", lambda: tvm.runtime.convert(files), override=True
        )
        yield


def find_linker() -> tuple[str, ...]:
    """Return the command of LLVM's linker, which alone links AMD GPU code: ROCm's, the system's, ziglang's.

    Raises:
        ConfigError: it is not installed.
    """
    places = os.pathsep.join((f"{_rocm_root()}/llvm/bin", os.environ.get("PATH", "")))
    found = shutil.which("ld.lld", path=places)
    if found is not None:
        return (found,)
    bundled = zig("ld.lld")
    if bundled is not None:
        return bundled
    raise ConfigError(
        "no ld.lld to link code for AMD GPUs: install ROCm, Debian's package lld (apt install lld), "
        "or the Python package ziglang"
    )


def find_device_library() -> Path:
    """Return ROCm's library of mathematical functions, ocml.bc: from $HIP_DEVICE_LIB_PATH, ROCm's or Debian's.

    Raises:
        ConfigError: it is not installed.
    """
    named, root = os.environ.get("HIP_DEVICE_LIB_PATH"), _rocm_root()
    places = (
        [Path(named)] if named else [root / "amdgcn/bitcode", *root.glob("lib/llvm/lib/clang/*/lib/amdgcn/bitcode")]
    )
    if not named:
        places += [*_SYSTEM_LIBRARIES.glob("*/amdgcn/bitcode"), _SYSTEM_LIBRARIES / "amdgcn/bitcode"]
        places += _SYSTEM_LIBRARIES.glob("llvm-*/lib/clang/*/amdgcn/bitcode")  # since Debian 13
    for place in places:
        if (place / "ocml.bc").exists():
            return place / "ocml.bc"
    raise ConfigError(
        f"no ROCm device libraries (ocml.bc) in {', '.join(map(str, places))}: install ROCm, or Debian's package "
        "rocm-device-libs (apt install rocm-device-libs), or name their folder in $HIP_DEVICE_LIB_PATH"
    )


def control_library(gfx: str, *, wave_size: int) -> str:
    """Return LLVM IR with the constants by which ocml adapts to a GPU, and the code object's version.

    ROCm ships one file for each constant and gfx; those of a distribution know no newer GPUs, and the constants are
    all that is missing for them.
    """
    digits = gfx.removeprefix("gfx")
    isa_version = int(digits[:-2]) * 1000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)
    constants = {**_CONTROLS, "wavefrontsize64": ("i8", int(wave_size == 64)), "ISA_version": ("i32", isa_version)}
    lines = [
        f"@__oclc_{name} = linkonce_odr protected local_unnamed_addr addrspace(4) constant {kind} {value}"
        for name, (kind, value) in constants.items()
    ]
    lines += ["!llvm.module.flags = !{!0}", f'!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT}}}']
    return "\n".join(lines) + "\n"


def link(content: bytes, gfx: str, linker: Sequence[str]) -> bytes:
    """Link an object file of TVM's to a code object for `gfx`.

    Raises:
        BuildError: it does not link, or is for another GPU.
    """
    with scratch_dir("rocm") as scratch:
        written, output = scratch / "kernels.o", scratch / "kernels.hsaco"
        written.write_bytes(content)
        command = [*linker, "--no-undefined", "-shared", "-o", str(output), str(written)]
        complaint = f"{shlex.join(linker)} does not link the kernels for {gfx}"
        run_tool(command, _LINK_TIMEOUT_SEC, complaint=complaint)
        code = output.read_bytes()
    found = code_architecture(code)
    if found != gfx:
        raise BuildError(f"TVM made code for {found or 'no AMD GPU'} when asked for {gfx}")
    return code


def code_architecture(code: bytes) -> str | None:
    """Return the gfx of a code object; None if it is not for a known AMD GPU."""
    header = read_header(code)
    if header is None or header.machine_number != EM_AMDGPU:
        return None
    number = header.flags & 0xFF
    return next((gfx for gfx, machine in MACHINES.items() if machine == number), None)


def _rocm_root() -> Path:
    return Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
