"""Every linker of this machine links for every platform, and the result is checked."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from cross.compile.library import build
from cross.compile.link_check import BOARDS
from cross.compile.toolchains import Linker, check_linked, find_linker, find_linkers, link
from cross.targets.boards import find_board
from cross.targets.target import Target, parse_target
from fleet.artifacts.elf import arm_float_abi, read_header, undefined_symbols
from fleet.errors import BuildError, ConfigError, ErrorKind

TARGETS = {name: find_board(board).target_json for name, board in BOARDS.items()}
TARGETS["riscv64"] = '{"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "generic-rv64", "mattr": ["+m", "+d"]}'
ARCHES = {name: "aarch64" if name == "android" else name for name in TARGETS}
SOFT_ARM = {"kind": "llvm", "mtriple": "armv7l-linux-gnueabi", "mcpu": "cortex-a9"}
ALLOWED_UNDEFINED = {"exp", "expf", "memset", "memcpy", "__aeabi_unwind_cpp_pr0", "__aeabi_memclr8", "__aeabi_memclr4"}


@functools.cache
def object_code(target: str) -> bytes:
    """An object with a loop, a float argument and a call of the mathematical library."""
    import tvm
    from tvm import te
    from tvm.target import Target

    values = te.placeholder((64,), name="A")
    program = te.create_prim_func([values, te.compute((64,), lambda i: te.exp(values[i]) * 2.0, name="B")])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "code.o"
        tvm.compile(program, target=Target(json.loads(target))).mod.write_to_file(str(path), "o")
        return path.read_bytes()


def linked(linker: Linker, target: str, tmp_path: Path) -> bytes:
    code, output = tmp_path / "code.o", tmp_path / f"{linker.name}.so"
    code.write_bytes(object_code(target))
    link(linker, [code], output)
    return output.read_bytes()


def cross_linkers(target: Target) -> dict[str, Linker]:
    return {linker.name: linker for linker in find_linkers(target)}


@pytest.mark.slow
@pytest.mark.parametrize("linker_name", ["ziglang", "ld.lld"])
@pytest.mark.parametrize("platform_name", TARGETS)
def test_both_cross_linkers_link_for_every_platform(platform_name: str, linker_name: str, tmp_path: Path) -> None:
    """The library has the right machine, hard floats on 32-bit ARM, and no undefined symbols but those of runtimes."""
    target = TARGETS[platform_name]
    found = cross_linkers(parse_target(target))
    assert linker_name in found, f"install {linker_name} (Debian package lld, Python package ziglang) to run this test"

    library = linked(found[linker_name], target, tmp_path)

    check_linked(library, parse_target(target), found[linker_name])
    header = read_header(library)
    assert header is not None
    assert header.machine == ARCHES[platform_name]
    assert arm_float_abi(library) == ("hard" if platform_name == "armv7l" else "")
    foreign = {name for name in undefined_symbols(library) if not name.startswith(("TVMFFI", "TVMBackend"))}
    assert foreign <= ALLOWED_UNDEFINED


@pytest.mark.slow
def test_a_library_linked_for_this_machine_runs(tmp_path: Path) -> None:
    """Each linker that is found for this machine makes a library that TVM loads and that computes."""
    import numpy as np
    import tvm

    target = '{"kind": "llvm"}'
    linkers = cross_linkers(parse_target(target))
    assert {"gcc", "ziglang", "ld.lld"} <= set(linkers), "install gcc, lld and ziglang to run this test"
    for name, linker in linkers.items():
        linked(linker, target, tmp_path)
        output = tvm.runtime.tensor(np.zeros(64, "float32"))
        values = np.linspace(0, 1, 64, dtype="float32")
        tvm.runtime.load_module(str(tmp_path / f"{name}.so"))["main"](tvm.runtime.tensor(values), output)
        np.testing.assert_allclose(output.numpy(), np.exp(values) * 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("linker_name", ["ziglang", "ld.lld"])
def test_soft_float_is_detected_by_flags_and_attributes(linker_name: str, tmp_path: Path) -> None:
    """Objects have the ABI in their attributes only, linked libraries in e_flags, too; both are read."""
    soft, hard = json.dumps(SOFT_ARM), TARGETS["armv7l"]
    assert "soft" == arm_float_abi(object_code(soft))
    assert "hard" == arm_float_abi(object_code(hard))

    linker = cross_linkers(parse_target(hard))[linker_name]
    library = linked(linker, soft, tmp_path)

    assert "soft" == arm_float_abi(library[:64])
    without_flags = library[:36] + b"\0\0\0\5" + library[40:]
    assert "" == arm_float_abi(without_flags[:64])
    assert "soft" == arm_float_abi(without_flags)
    with pytest.raises(BuildError, match="soft-float"):
        check_linked(library, parse_target(hard), linker)


@pytest.mark.slow
def test_a_linker_for_another_machine_is_caught(tmp_path: Path) -> None:
    """ld.lld links objects for any machine; the library's machine is compared with the target's."""
    linker = Linker(name="ld.lld", command=("ld.lld", "-shared"))
    library = linked(linker, TARGETS["aarch64"], tmp_path)

    with pytest.raises(BuildError, match="made aarch64 when asked for x86_64; name another with --linker"):
        check_linked(library, parse_target(TARGETS["x86_64"]), linker)


@pytest.mark.slow
def test_helpers_missing_on_android_are_refused(tmp_path: Path) -> None:
    """A helper of the compiler's library would only be missed on the phone; the NDK's clang brings it along."""
    import tvm
    from tvm import te

    values = te.placeholder((8,), name="A", dtype="bfloat16")
    program = te.create_prim_func([values, te.compute((8,), lambda i: values[i] + values[i], name="B")])
    called = te.create_prim_func(
        [
            (numbers := te.placeholder((8,), name="A")),
            te.compute((8,), lambda i: tvm.tirx.call_pure_extern("float32", "__helper3", numbers[i]), name="B"),
        ]
    )

    assert build(program, parse_target(TARGETS["android"]), tmp_path).path.exists()
    with pytest.raises(BuildError, match="needs __helper3, which Android does not have; link it with the NDK"):
        build(called, parse_target(TARGETS["android"]), tmp_path)


def test_android_never_takes_a_compiler_for_another_c_library() -> None:
    """No gcc, though the architecture may be this machine's own."""
    assert not [name for name in cross_linkers(parse_target(TARGETS["android"])) if "gcc" in name]


def test_the_named_linker_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The argument precedes the platform's variable and the file; Android has its own name."""
    config = tmp_path / "cross.yaml"
    config.write_text("linkers:\n  aarch64: ld.lld --build-id\n  android: ld.lld --icf=all\n")
    (tmp_path / "ld.lld").write_text("#!/bin/sh\n")
    (tmp_path / "ld.lld").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FLEET_CROSS_CONFIG", str(config))
    monkeypatch.setenv("FLEET_LINKER_AARCH64", f"{sys.executable} from-variable")

    assert find_linker(parse_target(TARGETS["aarch64"]), "ld.lld -s").command == ("ld.lld", "-s", "-shared")
    assert find_linker(parse_target(TARGETS["aarch64"])).command == (sys.executable, "from-variable", "-shared")
    assert find_linker(parse_target(TARGETS["android"])).command == ("ld.lld", "--icf=all", "-shared")
    monkeypatch.delenv("FLEET_LINKER_AARCH64")
    assert find_linker(parse_target(TARGETS["aarch64"])).command == ("ld.lld", "--build-id", "-shared")


def test_a_linker_that_is_not_there_is_named_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mistake in the file or the variable is an error."""
    monkeypatch.setenv("FLEET_LINKER_ARMV7L", "no-such-ld")
    with pytest.raises(ConfigError, match=r"'no-such-ld' .from \$FLEET_LINKER_ARMV7L. is not on PATH"):
        find_linker(parse_target(TARGETS["armv7l"]))

    config = tmp_path / "cross.yaml"
    config.write_text("linker:\n  aarch64: gcc\n")
    monkeypatch.setenv("FLEET_CROSS_CONFIG", str(config))
    with pytest.raises(ConfigError, match=r"cross\.yaml: line 1: unknown key 'linker'; did you mean 'linkers'"):
        find_linker(parse_target(TARGETS["aarch64"]))
    config.write_text("linkers:\n  aarch64: no-such-ld\n")
    with pytest.raises(
        ConfigError, match=r"'no-such-ld' .from .*cross\.yaml: line 2: linkers: aarch64. is not on PATH"
    ):
        find_linker(parse_target(TARGETS["aarch64"]))
    monkeypatch.setenv("FLEET_CROSS_CONFIG", str(tmp_path / "missing.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.yaml"):
        find_linker(parse_target(TARGETS["aarch64"]))


def script(path: Path, text: str) -> Linker:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Linker(name=path.name, command=(str(path),))


def test_a_linker_without_output_is_named(tmp_path: Path) -> None:
    """Before, the next step failed: artifacts cannot be written, no such file or directory."""
    with pytest.raises(BuildError, match=r"the linker nothing ended without an error and made no library; .*--linker"):
        link(script(tmp_path / "nothing", "exit 0"), [], tmp_path / "a.so")


@pytest.mark.slow
def test_a_linker_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, only a wrapper script was killed, and its linker kept running forever."""
    monkeypatch.setattr("cross.compile.toolchains._LINK_TIMEOUT_SEC", 1.0)
    linker = script(tmp_path / "hanging", f"sleep 1000 &\necho $! > {tmp_path}/child\nwait")

    with pytest.raises(BuildError, match=r"the linker hanging failed: hanging did not end within 1 s") as caught:
        link(linker, [], tmp_path / "a.so")

    assert caught.value.kind is ErrorKind.BUILD_TIMEOUT
    child = int((tmp_path / "child").read_text())
    _, alive = psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=10)
    assert not alive or all(one.status() == psutil.STATUS_ZOMBIE for one in alive)
