"""Tests of artifacts for GPUs, built without one: they contain code for the requested GPU."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from cross.compile import cuda_code, gpu_code, rocm_code
from cross.compile.library import build
from cross.compile.toolchains import find_linker
from cross.targets.boards import Board, find_board, load_boards
from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact, elf_machine
from fleet.errors import BuildError, ConfigError
from fleet.models.model import load_model
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.extract import compile_model

slow = pytest.mark.slow
# the first build for CUDA imports TVM's intrinsics: 20 s, more beside other tests
pytestmark = pytest.mark.timeout(400)


def program(dtype: str = "float32") -> Any:
    """Return something with mathematical functions in it, for which ROCm needs its device libraries."""
    from tvm import te

    values = te.placeholder((128, 128), name="A", dtype=dtype)
    result = te.compute((128, 128), lambda i, j: te.exp(values[i, j]) * values[i, j], name="B")
    return te.create_prim_func([values, result])


def built(target: dict[str, Any] | str, out_dir: Path, dtype: str = "float32") -> Artifact:
    import tvm

    parsed = parse_target(target if isinstance(target, str) else json.dumps(target))
    mod = default_schedule(tvm.IRModule({"main": program(dtype)}), parsed)
    return build(mod, parsed, out_dir)


def packed_modules(artifact: Artifact) -> dict[str, bytes]:
    """Return the bytes of each packed module, by kind, as TVM's loader finds them: behind the library's symbol."""
    import ctypes

    content = artifact.path.read_bytes()
    if elf_machine(content[:20]) == "x86_64":
        symbol = ctypes.c_char.in_dll(ctypes.CDLL(str(artifact.path)), "__tvm_ffi__library_bin")
        size = struct.unpack("<Q", ctypes.string_at(ctypes.addressof(symbol), 8))[0]
        return dict(gpu_code.entries(ctypes.string_at(ctypes.addressof(symbol), 8 + size)))
    # from another package: located by its text
    start = next(found.start() for found in re.finditer(rb"\x04\0{7}_lib", content)) - 8
    return {"raw": content[start:]}


def code_in(entry: bytes) -> bytes:
    return entry[entry.index(b"\x7fELF") :]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that leaves only one kind of CUDA compiler."""

    def choose(name: str, **changes: Any) -> None:
        found = [compiler for compiler in cuda_code.compilers() if compiler.name == name]
        if not found and name == "nvcc":
            pytest.skip("no nvcc on this machine")
        assert found, "no NVRTC here: install the Python package nvidia-cuda-nvrtc to run this test"
        chosen = tuple(dataclasses.replace(compiler, **changes) for compiler in found)  # type: ignore[type-var]
        monkeypatch.setattr(cuda_code, "compilers", lambda: chosen)

    return choose


@slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
@pytest.mark.parametrize("compiler", ["nvcc", "NVRTC"])
def test_cuda_artifacts_hold_a_cubin_for_their_gpu(compiler: str, arch: str, only: Any, tmp_path: Path) -> None:
    """Both compilers make a cubin, so the device needs no compiler."""
    only(compiler)
    artifact = built({"kind": "cuda", "arch": arch}, tmp_path)

    entry = packed_modules(artifact)["cuda"]
    assert entry[8:13] == b"cubin"
    assert b"main_kernel" in entry
    assert cuda_code.cubin_architecture(code_in(entry)) == arch


@slow
@pytest.mark.parametrize("compiler", ["nvcc", "NVRTC"])
def test_half_floats_compile(compiler: str, only: Any, tmp_path: Path) -> None:
    """They compile where the CUDA headers are; elsewhere the message names the packages that bring them."""
    only(compiler)
    (chosen, *_) = cuda_code.compilers()
    if not isinstance(chosen, cuda_code.Nvrtc) or any(Path(place, "cuda_fp16.h").exists() for place in chosen.includes):
        artifact = built({"kind": "cuda", "arch": "sm_86"}, tmp_path, "float16")
        assert cuda_code.cubin_architecture(code_in(packed_modules(artifact)["cuda"])) == "sm_86"
    if compiler == "NVRTC":
        only("NVRTC", includes=())
        with pytest.raises(BuildError, match="nvidia-cuda-runtime"):
            built({"kind": "cuda", "arch": "sm_86"}, tmp_path, "float16")


@slow
def test_a_compiler_with_a_header_stands_in_for_one_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVRTC comes first, since it is faster, and its package brings fewer headers than the toolkit of nvcc."""
    found = {compiler.name: compiler for compiler in cuda_code.compilers()}
    if "nvcc" not in found:
        pytest.skip("no nvcc on this machine")
    nvrtc = found["NVRTC"]
    assert isinstance(nvrtc, cuda_code.Nvrtc)
    bare = dataclasses.replace(nvrtc, includes=())
    monkeypatch.setattr(cuda_code, "compilers", lambda: (bare, found["nvcc"]))

    artifact = built({"kind": "cuda", "arch": "sm_86"}, tmp_path, "float16")

    assert cuda_code.cubin_architecture(code_in(packed_modules(artifact)["cuda"])) == "sm_86"


@slow
def test_a_jetson_gets_arm_code_around_its_cubin(tmp_path: Path) -> None:
    """The host part is for the board's CPU, not for this machine's."""
    board = find_board("jetson-orin")
    artifact = built(board.target_json, tmp_path)

    content = artifact.path.read_bytes()
    assert elf_machine(content[:20]) == "aarch64"
    assert cuda_code.cubin_architecture(code_in(content[64:])) == "sm_87"


@slow
@pytest.mark.parametrize("board_name", ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100"])
def test_rocm_artifacts_hold_a_code_object_for_their_gpu(board_name: str, tmp_path: Path) -> None:
    """The object is linked with the device libraries, also for newer GPUs, and its e_flags name the architecture."""
    artifact = built(find_board(board_name).target_json, tmp_path)

    entry = packed_modules(artifact)["hip"]
    assert entry[8:13] == b"hsaco"
    code = code_in(entry)
    assert rocm_code.code_architecture(code) == board_name
    assert code[18:20] == (224).to_bytes(2, "little")
    assert code[8] == 2, "code object version 4"


@pytest.mark.parametrize("board", [board for board in load_boards().values() if board.kind == "rocm"])
def test_waves_are_as_wide_as_the_board_says(board: Board) -> None:
    """The device libraries and TVM use the same wave size, whether the target specifies it or not."""
    lanes = board.gpu["thread_warp_size"]
    assert rocm_code.wave_size(board.gpu) == rocm_code.wave_size({"mcpu": board.name}) == lanes
    controls = rocm_code.control_library(board.name, wave_size=lanes)
    assert re.search(rf"@__oclc_wavefrontsize64 = .* i8 {lanes // 64}$", controls, re.MULTILINE)


def test_the_isa_version_is_spelled_as_rocm_does() -> None:
    """Major, minor and stepping, the last two hexadecimal in the name: 9010 for gfx90a, 11000 for gfx1100."""
    for gfx, version in {"gfx906": 9006, "gfx90a": 9010, "gfx942": 9402, "gfx1030": 10300, "gfx1100": 11000}.items():
        controls = rocm_code.control_library(gfx, wave_size=64)
        assert re.search(rf"@__oclc_ISA_version = .* i32 {version}$", controls, re.MULTILINE)


@slow
def test_ziglang_links_rocm_code_where_there_is_no_lld(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Python package replaces a Debian one."""
    which = rocm_code.shutil.which
    monkeypatch.setattr(
        "cross.compile.rocm_code.shutil.which", lambda name, **more: None if name == "ld.lld" else which(name)
    )
    assert "ziglang" in rocm_code.find_linker()

    artifact = built(find_board("gfx90a").target_json, tmp_path)

    assert rocm_code.code_architecture(code_in(packed_modules(artifact)["hip"])) == "gfx90a"


@slow
@pytest.mark.parametrize("host", [None, {"kind": "llvm", "mtriple": "aarch64-linux-android"}])
def test_opencl_artifacts_hold_source(host: dict[str, Any] | None, tmp_path: Path) -> None:
    """Each vendor's driver compiles its own; the part that launches it is for the host, a phone's too."""
    target = {"kind": "opencl", **({"host": host} if host else {})}
    artifact = built(target, tmp_path)

    assert b"__kernel void main_kernel" in artifact.path.read_bytes()
    assert elf_machine(artifact.path.read_bytes()[:20]) == ("aarch64" if host else "x86_64")
    assert artifact.linker == find_linker(parse_target(json.dumps(target))).name


@slow
@pytest.mark.parametrize(("board_name", "mark"), [("sm_90", b"cubin"), ("gfx90a", b"hsaco")])
def test_models_hold_compiled_kernels_too(board_name: str, mark: bytes, tmp_path: Path) -> None:
    """The Relax VM's executable imports host code, which imports kernels: they are found at any depth."""
    import numpy as np
    import onnx

    def value(name: str) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 32])

    weights = onnx.numpy_helper.from_array(np.ones((32, 32), "float32"), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"], ["z"])]
    graph = onnx.helper.make_graph(nodes, "g", [value("x")], [value("z")], [weights])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)]), str(tmp_path / "m.onnx"))

    model = load_model(tmp_path / "m.onnx")
    artifact = compile_model(model, parse_target(find_board(board_name).target_json), {}, tmp_path)

    content = artifact.path.read_bytes()
    assert mark in content
    code = code_in(content[content.index(mark) :])
    assert board_name in (cuda_code.cubin_architecture(code), rocm_code.code_architecture(code))


@slow
def test_building_for_a_gpu_leaves_the_process_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that makes TVM keep source is set only while it compiles."""
    monkeypatch.delenv("TVM_COMPILE_FORCE_FALLBACK", raising=False)
    target = parse_target('{"kind": "cuda", "arch": "sm_90"}')
    with gpu_code.compiling(target):
        assert gpu_code.os.environ["TVM_COMPILE_FORCE_FALLBACK"] == "1"
    assert "TVM_COMPILE_FORCE_FALLBACK" not in gpu_code.os.environ


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"kind": "cuda"}, 'names no arch; write the compute capability, like "arch": "sm_86"'),
        ({"kind": "cuda", "arch": "compute_86"}, "has the arch 'compute_86'"),
        ({"kind": "cuda", "arch": "sm_20"}, "nothing here compiles CUDA code for sm_20"),
        ({"kind": "rocm"}, 'names no mcpu; write the GPU\'s architecture, like "mcpu": "gfx90a"'),
        ({"kind": "rocm", "mcpu": "gfx91a"}, "unknown AMD GPU architecture 'gfx91a'; did you mean 'gfx90a'"),
    ],
)
def test_an_unknown_architecture_is_a_config_error(target: dict[str, Any], said: str) -> None:
    """The error comes before TVM compiles anything."""
    with pytest.raises(ConfigError, match=re.escape(said)), gpu_code.compiling(parse_target(json.dumps(target))):
        pass


def test_missing_pieces_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the packages that bring them."""
    monkeypatch.setattr(cuda_code, "compilers", lambda: ())
    with pytest.raises(ConfigError, match=r"neither nvcc nor NVRTC .* nvidia-cuda-nvrtc"):
        cuda_code.find_compilers("sm_90")
    monkeypatch.setenv("HIP_DEVICE_LIB_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no ROCm device libraries .*apt install rocm-device-libs"):
        rocm_code.find_device_library()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr("cross.compile.tools.importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"no ld.lld .*apt install lld"):
        rocm_code.find_linker()


def test_a_compiler_that_does_not_load_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A damaged toolkit, or none at all, ended `fleet build` with the loader's own error."""
    broken = tmp_path / "lib64/libnvrtc.so.99"
    broken.parent.mkdir()
    broken.touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))

    found = cuda_code.compilers.__wrapped__()

    assert str(broken) not in {compiler.path for compiler in found}
    assert all(compiler.architectures() for compiler in found)


@slow
@pytest.mark.parametrize("compiler", ["nvcc", "NVRTC"])
def test_a_compiler_error_has_the_compilers_last_lines(compiler: str, only: Any) -> None:
    """The error has the compiler's last lines, not the source."""
    only(compiler)
    with pytest.raises(BuildError, match=rf"(?s){compiler} does not compile .* sm_90.*no_such_thing"):
        cuda_code.compile_cubin('extern "C" __global__ void k(float* a) { a[0] = no_such_thing; }', "sm_90")


def packed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def test_only_the_code_of_the_wanted_kind_changes() -> None:
    """The tree of imports and all other modules stay byte for byte."""
    tree = struct.pack("<QQQQ", 2, 0, 1, 1) + struct.pack("<Q", 1)
    body = tree + packed(b"_lib") + packed(b"cuda", b"old") + packed(b"const_loader", b"\0\1\2")
    changed = gpu_code.replace_code(packed(body), "cuda", lambda code: code.upper() + b"!")

    assert gpu_code.entries(changed) == [("_lib", b""), ("cuda", b"OLD!"), ("const_loader", b"\0\1\2")]
    assert changed == packed(body.replace(packed(b"old"), packed(b"OLD!")))
    with pytest.raises(BuildError, match="cannot be read"):
        gpu_code.replace_code(packed(body[:-2]), "cuda", lambda code: code)
