"""Artifacts that do not fit a device are refused with the reason; fitting and unknown ones pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cross.targets.boards import find_board, load_boards
from fleet.artifacts.artifact import Artifact, check_architecture
from fleet.artifacts.elf import arm_float_abi, read_header
from fleet.artifacts.fit import check_fit, check_target, needed_features
from fleet.domain.devices import Inventory
from fleet.errors import ArtifactRefused


def inventory(board_name: str, *features: str, **labels: str) -> Inventory:
    board = find_board(board_name)
    told = dict.fromkeys(" ".join((board.features, *features)).split(), "true")
    return Inventory(kind=board.kind, labels={"arch": board.arch, **told, **labels}, target_json=board.target_json)


def llvm(**more: object) -> str:
    return json.dumps({"kind": "llvm", **more})


def check(target_json: str, device: Inventory) -> None:
    check_target(target_json, device, device_name="devices/it")


ZYNQ = inventory("zynq-7000")
PI4, PI5 = inventory("rpi4-64"), inventory("rpi5-64", "asimdhp asimddp")


@pytest.mark.parametrize(
    ("target_json", "device", "said"),
    [
        (llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a76"), PI4, r"asimddp \(by mcpu cortex-a76\)"),
        (llvm(mtriple="aarch64-linux-gnu", mattr=["+neon", "+dotprod"]), PI4, r"asimddp \(by mattr \+dotprod\)"),
        (llvm(mtriple="aarch64-linux-gnu", mattr=["+fullfp16"]), PI4, r"asimdhp \(by mattr \+fullfp16\)"),
        (llvm(mtriple="aarch64-linux-gnu", mcpu="neoverse-v1"), PI5, r"i8mm \(by mcpu neoverse-v1\), sve"),
        (llvm(mtriple="aarch64-linux-gnu", mattr=["+sve2"]), PI5, "sve2"),
        (llvm(mtriple="armv7l-linux-gnueabihf", mcpu="cortex-a53"), ZYNQ, r"idiva \(by mcpu cortex-a53\), vfpv4"),
        (llvm(mtriple="armv7l-linux-gnueabihf", mattr=["+vfp4"]), ZYNQ, r"vfpv4 \(by mattr \+vfp4\)"),
        (llvm(mcpu="x86-64-v4"), inventory("x86-64-v3"), r"avx512f \(by mcpu x86-64-v4\)"),
        (llvm(mcpu="cascadelake"), inventory("x86-64-v4"), r"avx512_vnni \(by mcpu cascadelake\)"),
        (llvm(mcpu="haswell"), inventory("x86-64-v2"), "avx2 .*fma"),
    ],
)
def test_missing_features_are_named_with_the_requiring_target(target_json: str, device: Inventory, said: str) -> None:
    """The message names the feature, the part of the target that needs it, and the device's target."""
    with pytest.raises(ArtifactRefused, match=said) as caught:
        check(target_json, device)

    assert "lacks" in str(caught.value)
    assert device.target_json in str(caught.value)


@pytest.mark.parametrize(
    ("target_json", "device"),
    [
        (llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a72", mattr=["+neon"]), PI5),
        (llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a76"), PI5),
        (llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a76", mattr=["-dotprod", "-fullfp16"]), PI4),
        (llvm(mtriple="armv7l-linux-gnueabihf", mcpu="cortex-a9", mattr=["+neon"]), inventory("rpi4-32")),
        (llvm(mcpu="x86-64-v3"), inventory("x86-64-v4")),
        (llvm(mcpu="some-future-core"), inventory("x86-64-v2")),
        (llvm(), PI4),
        ("", PI4),
        ("no json", PI4),
        (llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a76"), Inventory(labels={"arch": "aarch64"})),
    ],
)
def test_compatible_and_unknown_features_pass(target_json: str, device: Inventory) -> None:
    """An agent that reports no features, and an unknown core, refuse no artifact."""
    check(target_json, device)


@pytest.mark.parametrize("name", [name for name, board in load_boards().items() if board.triple])
def test_every_board_fits_itself(name: str) -> None:
    """An artifact built by a board's own description runs on the board."""
    check(find_board(name).target_json, inventory(name))


@pytest.mark.slow
@pytest.mark.parametrize("board_name", ["rpi4-64", "rpi5-64", "jetson-xavier", "jetson-orin", "x86-64-v3", "x86-64-v4"])
def test_features_of_cores_match_those_of_llvm(board_name: str) -> None:
    """The table's features of a core are LLVM's."""
    import tvm_ffi

    from cross.targets.target import make_target, parse_target

    board = find_board(board_name)
    llvm_words = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "abm": "lzcnt", "bmi1": "bmi"}
    target = make_target(parse_target(json.dumps(board.cpu_target)))
    features = tvm_ffi.get_global_func("target.llvm_get_cpu_features")(target)
    known = {str(name) for name in features}
    for feature in needed_features({"mcpu": board.mcpu}, board.arch):
        word = llvm_words.get(feature, feature)
        assert {word, word.replace("_", ".")} & known, f"{board.mcpu} has no {feature} in LLVM"


CUDA_86 = Inventory(kind="cuda", labels={"arch": "x86_64"}, target_json='{"kind": "cuda", "arch": "sm_86"}')
ROCM = Inventory(kind="rocm", target_json='{"kind": "rocm", "mcpu": "gfx90a:sramecc+:xnack-"}')


def test_gpu_code_is_for_its_gpu() -> None:
    """A cubin runs on newer GPUs of its major version, a code object on its own architecture, and other kinds
    nowhere.
    """
    for arch in ("sm_86", "sm_80"):
        check(json.dumps({"kind": "cuda", "arch": arch}), CUDA_86)
    for arch in ("sm_89", "sm_90", "sm_75", "sm_90a"):
        with pytest.raises(ArtifactRefused, match=f"built for {arch}, the GPU of devices/it is sm_86"):
            check(json.dumps({"kind": "cuda", "arch": arch}), CUDA_86)
    check('{"kind": "rocm", "mcpu": "gfx90a"}', ROCM)
    with pytest.raises(ArtifactRefused, match="built for gfx906, the GPU of devices/it is gfx90a"):
        check('{"kind": "rocm", "mcpu": "gfx906"}', ROCM)
    with pytest.raises(ArtifactRefused, match="built for opencl, the kernels of devices/it run as cuda"):
        check('{"kind": "opencl"}', CUDA_86)


def test_the_host_of_gpu_code_is_checked_too() -> None:
    """The part that launches kernels runs on the device's CPU."""
    device = replace(inventory("x86-64-v2"), target_json='{"kind": "cuda", "arch": "sm_86"}')

    with pytest.raises(ArtifactRefused, match="avx2"):
        check(json.dumps({"kind": "cuda", "arch": "sm_86", "host": {"kind": "llvm", "mcpu": "x86-64-v3"}}), device)


def elf(*, machine: int, flags: int, bits: int = 1) -> bytes:
    header = bytearray(64)
    header[:7] = b"\x7fELF" + bytes((bits, 1, 1))
    header[18:20] = machine.to_bytes(2, "little")
    at = 36 if bits == 1 else 48
    header[at : at + 4] = flags.to_bytes(4, "little")
    return bytes(header)


def test_soft_float_arm_is_refused_from_its_first_bytes() -> None:
    """It would load and give wrong results; hard-float files and files without such a mark pass."""
    with pytest.raises(ArtifactRefused, match=r"soft-float.*garbage.*mfloat-abi"):
        check_architecture(elf(machine=40, flags=0x5000200), "armv7l", device_name="devices/zynq")
    check_architecture(elf(machine=40, flags=0x5000400), "armv7l", device_name="devices/zynq")
    check_architecture(elf(machine=40, flags=0x5000000), "armv7l", device_name="devices/zynq")
    check_architecture(elf(machine=183, flags=0x200, bits=2), "aarch64", device_name="devices/pi")


def test_headers_cut_short_do_not_crash() -> None:
    """A header from the network may end anywhere."""
    whole = elf(machine=40, flags=0x5000200)
    for length in range(len(whole)):
        read_header(whole[:length])
        arm_float_abi(whole[:length])
    assert read_header(whole[:20]) is not None
    assert read_header(b"\x7fELF\x07" + whole[5:]) is None


def test_the_whole_artifact_is_checked_before_upload(tmp_path: Path) -> None:
    """An artifact's file and target are compared with the device's labels and target."""
    path = tmp_path / "it.so"
    path.write_bytes(elf(machine=183, flags=0, bits=2))
    artifact = Artifact.of_file(path, target_json=llvm(mtriple="aarch64-linux-gnu", mcpu="cortex-a76"))

    check_fit(artifact, path.read_bytes(), PI5, device_name="devices/pi5")
    with pytest.raises(ArtifactRefused, match="built for aarch64, devices/pc is x86_64"):
        check_fit(artifact, path.read_bytes(), inventory("x86-64-v3"), device_name="devices/pc")
    with pytest.raises(ArtifactRefused, match="CPU features that devices/pi4 lacks"):
        check_fit(artifact, path.read_bytes(), PI4, device_name="devices/pi4")
