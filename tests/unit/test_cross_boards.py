"""Boards as data: complete, accepted by TVM, and recognised from a machine's facts."""

from __future__ import annotations

import json

import pytest

from cross.compile.cuda_code import architecture as cuda_architecture
from cross.compile.rocm_code import architecture as rocm_architecture
from cross.targets.boards import Board, Found, boards_of, find_board, load_boards, match, refine
from cross.targets.target import host_target, make_target, parse_target, resolve_target
from fleet.errors import ConfigError

BOARDS = load_boards()


def found_features(*words: str) -> frozenset[str]:
    return frozenset(" ".join(words).split())


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_tvm_accepts_every_target(name: str) -> None:
    """No board describes a target that cannot be built for; 32-bit ARM is hard-float."""
    board = BOARDS[name]

    target = parse_target(board.target_json)
    assert str(make_target(target).kind.name) == board.target["kind"]
    if board.triple:
        assert target.arch == board.arch
    if board.arch == "armv7l":
        assert board.cpu_target["mfloat-abi"] == "hard"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, board in BOARDS.items() if board.mcpu])
def test_llvm_knows_every_core(name: str) -> None:
    """LLVM takes an unknown core for a generic one with a mere warning."""
    import tvm_ffi

    target = make_target(parse_target(json.dumps(BOARDS[name].cpu_target)))
    known = tvm_ffi.get_global_func("target.llvm_get_cpu_archlist")(target)
    assert BOARDS[name].mcpu in {str(core) for core in known}


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_names_the_source_of_its_figures(name: str) -> None:
    """Its description has sources, a title, a way to recognise it, and the facts that its kind needs."""
    board = BOARDS[name]
    assert board.sources
    assert all(source.startswith("https://") for source in board.sources)
    assert board.title
    assert any(getattr(board.recognise, field) for field in ("model", "compatible", "gpu", "features", "gfx", "sm"))
    if board.kind == "cuda":
        assert cuda_architecture(board.target)
    if board.kind == "rocm":
        assert rocm_architecture(board.target) == name
    if board.kind in ("raspberry_pi", "zynq", "android"):
        assert board.cores
        assert board.libc


V2 = "sse2 cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("rpi4-64", Found(kind="raspberry_pi", arch="aarch64", model="Raspberry Pi 4 Model B Rev 1.5")),
        ("rpi4-32", Found(kind="raspberry_pi", arch="armv7l", model="Raspberry Pi 4 Model B Rev 1.5")),
        ("rpi3-64", Found(arch="aarch64", model="Raspberry Pi 3 Model B Plus Rev 1.3")),
        ("rpi5-64", Found(arch="aarch64", model="Raspberry Pi Compute Module 5 Rev 1.0")),
        ("rpi-zero2w-64", Found(arch="aarch64", model="Raspberry Pi Zero 2 W Rev 1.0")),
        ("zedboard", Found(arch="armv7l", model="Zynq Zed Development Board", compatible=("xlnx,zynq-7000",))),
        ("zynq-7000", Found(arch="armv7l", model="My own board", compatible=("me,board", "xlnx,zynq-7000"))),
        ("kv260", Found(kind="zynq", model="ZynqMP SMK-K26 Rev1/B/A", compatible=("xlnx,zynqmp",))),
        ("jetson-orin", Found(arch="aarch64", sm="sm_87", compatible=("nvidia,p3768-0000", "nvidia,tegra234"))),
        ("sm_86", Found(kind="cuda", arch="x86_64", sm="sm_86")),
        ("gfx90a", Found(kind="rocm", gfx="gfx90a")),
        ("adreno-7xx", Found(kind="android", arch="aarch64", gpu="QUALCOMM Adreno(TM) 740", model="S23")),
        ("mali-g710", Found(kind="android", arch="aarch64", gpu="Mali-G710", model="Pixel 7")),
        ("android-arm64", Found(kind="android", arch="aarch64", gpu="PowerVR", model="Phone")),
        ("x86-64-v2", Found(kind="cpu", arch="x86_64", features=found_features(V2))),
        ("x86-64-v3", Found(kind="cpu", arch="x86_64", features=found_features(V3, "aes"))),
    ],
)
def test_a_machine_is_recognised(expected: str, found: Found) -> None:
    """The closest description wins, in any order of the files."""
    boards = list(BOARDS.values())
    for order in (boards, boards[::-1]):
        recognised = match(found, order)
        assert recognised is not None
        assert recognised.name == expected


def test_an_unknown_machine_is_none_of_them() -> None:
    """No board is guessed."""
    assert match(Found(kind="raspberry_pi", arch="aarch64", model="Orange Pi 5")) is None
    assert match(Found(arch="riscv64")) is None


def test_a_target_is_refined_by_detected_cores() -> None:
    """Cores and core of the machine at hand go into the target; the rest is the board's."""
    board = find_board("rpi4-64")
    refined = json.loads(refine(board, Found(core_count=2, mcpu="cortex-a76")))

    assert refined == {**board.target, "num-cores": 2, "mcpu": "cortex-a76"}
    assert json.loads(refine(board, Found())) == board.target
    gpu = find_board("jetson-orin")
    assert json.loads(refine(gpu, Found(core_count=8, mcpu="cortex-a78ae"))) == gpu.target


def test_an_unknown_board_names_the_nearest() -> None:
    """The error suggests a board whose name begins like the given one."""
    with pytest.raises(ConfigError, match="unknown board 'rpi4'; did you mean 'rpi4-64'"):
        find_board("rpi4")
    with pytest.raises(ConfigError, match="list them with: fleet targets"):
        find_board("zzz")


def test_a_target_is_named_by_board_by_json_or_as_this_machine() -> None:
    """A board's name, a target's JSON and the word host work in all places; JSON is checked."""
    assert resolve_target("pynq-z2").json == find_board("pynq-z2").target_json
    assert resolve_target(" host ") == host_target()
    assert resolve_target('{"kind": "llvm"}').options == {"kind": "llvm"}
    with pytest.raises(ConfigError, match="no JSON"):
        resolve_target('{"kind":')


def test_a_typo_in_a_board_file_is_found() -> None:
    """The error names board and key."""
    content = {"boards": [{"name": "mine", "title": "Mine", "kind": "cpu", "tripel": "x"}]}
    with pytest.raises(ConfigError, match=r"my\.yaml: mine: unknown key 'tripel'; did you mean 'triple'"):
        boards_of(content, where="my.yaml")


def test_variants_multiply_boards() -> None:
    """Common facts are written once; a board may leave a variant out."""
    content = {
        "common": {"kind": "cpu", "gpu": {"kind": "opencl", "a": 1}},
        "variants": {"64": {"arch": "aarch64", "gpu": {"b": 2}}, "32": {"arch": "armv7l"}},
        "boards": [{"name": "x", "title": "X"}, {"name": "y", "title": "Y", "only": ["64"], "gpu": {"a": 3}}],
    }
    made = {board.name: board for board in boards_of(content, where="f")}

    assert list(made) == ["x-64", "x-32", "y-64"]
    assert made["x-64"].gpu == {"kind": "opencl", "a": 1, "b": 2}
    assert made["y-64"].gpu == {"kind": "opencl", "a": 3, "b": 2}
    assert isinstance(made["x-32"], Board)
    assert made["x-32"].title == "X, 32 bit"
